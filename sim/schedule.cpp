#include "sim/schedule.hpp"

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <list>
#include <mutex>
#include <sched.h>
#include <system_error>
#include <thread>
#include <vector>

namespace kvreplay {
namespace {

int usable_cores() {
  cpu_set_t set;
  CPU_ZERO(&set);
  if (sched_getaffinity(0, sizeof(set), &set) == 0) return std::max(1, CPU_COUNT(&set));
  return std::max(1u, std::thread::hardware_concurrency());
}

struct Job {
  const std::function<void(std::ptrdiff_t)>* body = nullptr;
  std::ptrdiff_t n = 0;
  std::atomic<std::ptrdiff_t> next{0};
  std::atomic<int> helpers{0};  // threads other than the owner inside run(); raised under State::mutex only
  std::exception_ptr error;     // the first one; guarded by State::mutex
};

/// Polls `done` for at most `time`, without sleeping. True as soon as `done` is true.
template <class Done>
bool spin_until(std::chrono::microseconds time, Done done) {
  using Clock = std::chrono::steady_clock;
  const Clock::time_point end = Clock::now() + time;
  do {
    for (int i = 0; i < 32; ++i) {
      if (done()) return true;
#if defined(__x86_64__) || defined(__i386__)
      __builtin_ia32_pause();
#elif defined(__aarch64__)
      asm volatile("yield");
#endif
    }
  } while (Clock::now() < end);
  return false;
}

}  // namespace

struct Workers::State {
  std::mutex mutex;
  std::condition_variable work;     // a job was added, or quit
  std::condition_variable left;     // a helper left a job
  std::list<Job*> jobs;             // the newest first, so that nested work is finished before more is begun
  std::atomic<unsigned> posted{0};  // jobs ever added
  std::chrono::microseconds awake{0};
  bool quit = false;
  std::vector<std::thread> threads;

  Job* open_job() {
    for (Job* job : jobs)
      if (job->next.load(std::memory_order_relaxed) < job->n) return job;
    return nullptr;
  }

  void run(Job& job, const Workers& workers) {
    while (!workers.stopping()) {
      const std::ptrdiff_t i = job.next.fetch_add(1, std::memory_order_relaxed);
      if (i >= job.n) return;
      try {
        (*job.body)(i);
      } catch (...) {
        const std::lock_guard lock(mutex);
        if (!job.error) job.error = std::current_exception();
        job.next.store(job.n, std::memory_order_relaxed);
      }
    }
  }

  /// False where the system refuses some of the threads; those that started stay.
  bool start(const Workers& workers, int count) {
    try {
      while (static_cast<int>(threads.size()) < count)
        threads.emplace_back([this, &workers] { serve(workers); });
    } catch (const std::system_error&) {
      return false;
    }
    return true;
  }

  void join() {
    {
      const std::lock_guard lock(mutex);
      quit = true;
    }
    work.notify_all();
    for (std::thread& thread : threads) thread.join();
    threads.clear();
    quit = false;
  }

  void serve(const Workers& workers) {
    std::unique_lock lock(mutex);
    for (;;) {
      Job* job = nullptr;
      work.wait(lock, [&] { return quit || (!workers.stopping() && (job = open_job()) != nullptr); });
      if (quit) return;
      ++job->helpers;
      lock.unlock();
      run(*job, workers);
      const unsigned seen = posted.load();
      // The owner may return as soon as the count is 0: the job is not touched after that.
      if (--job->helpers == 0) {
        { const std::lock_guard owner_waits(mutex); }
        left.notify_all();
      }
      spin_until(awake, [&] { return posted.load() != seen; });
      lock.lock();
    }
  }
};

Workers::Workers(int threads, std::chrono::microseconds awake) : state_(std::make_unique<State>()) {
  const int cores = usable_cores(), n = threads > 0 ? threads : cores;
  if (n <= cores) state_->awake = awake;
  state_->threads.reserve(n - 1);
  if (!state_->start(*this, n - 1)) {
    // Threads that started may have taken all address space: half of them leave some to compute with.
    const int started = static_cast<int>(state_->threads.size());
    state_->join();
    state_->start(*this, started / 2);
  }
}

Workers::~Workers() { state_->join(); }

int Workers::threads() const { return static_cast<int>(state_->threads.size()) + 1; }

void Workers::parallel_for(std::ptrdiff_t n, const std::function<void(std::ptrdiff_t)>& body) {
  Job job;
  job.body = &body;
  job.n = n;
  const bool shared = n > 1 && !state_->threads.empty();
  if (shared) {
    {
      const std::lock_guard lock(state_->mutex);
      state_->jobs.push_front(&job);
      ++state_->posted;
    }
    state_->work.notify_all();
  }
  state_->run(job, *this);
  if (shared) {
    {
      const std::lock_guard lock(state_->mutex);
      state_->jobs.remove(&job);
    }
    const auto alone = [&] { return job.helpers.load() == 0; };
    if (!spin_until(state_->awake, alone)) {
      std::unique_lock lock(state_->mutex);
      state_->left.wait(lock, alone);
    }
  }
  if (job.error) std::rethrow_exception(job.error);
  if (stopping()) throw Interrupted{};
}

}  // namespace kvreplay
