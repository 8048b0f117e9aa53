#include "viewer/questions/job_queue.hpp"

#include <algorithm>
#include <condition_variable>
#include <deque>
#include <new>
#include <sys/resource.h>
#include <thread>
#include <tuple>
#include <unistd.h>
#include <unordered_map>
#include <utility>

namespace kvreplay::viewer {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

/// On Linux a thread has a priority of its own: the one that draws goes before those that compute.
void step_back(int nice_value) {
#ifdef __linux__
  setpriority(PRIO_PROCESS, static_cast<id_t>(gettid()), nice_value);
#else
  (void)nice_value;
#endif
}

constexpr std::size_t kLogLength = 200;

}  // namespace

struct JobQueue::State {
  enum class Stage { waiting, running, answered, failed };
  struct Entry {
    std::type_index type = typeid(void);
    Stage stage = Stage::waiting;
    JobRequest request;
    std::function<Result(JobControl&)> compute;
    std::shared_ptr<JobControl> job;  // while it runs
    Clock::time_point started;
    Result answer;
    std::string error;
    std::uint64_t frame = 0, order = 0;  // when it was last asked
  };
  struct LastOfSlot {
    std::type_index type = typeid(void);
    std::shared_ptr<const void> value;
  };

  explicit State(Options given) : options(std::move(given)) {
    cores = options.threads > 0 ? options.threads : static_cast<int>(std::thread::hardware_concurrency());
    cores = std::max(cores, 1);
  }

  /// The next to run among those at most as patient as `patience`; end() where there is none.
  auto next_waiting(Urgency patience) {
    auto best = entries.end();
    const auto rank = [](const Entry& e) { return std::tuple(e.request.urgency, ~e.frame, e.order); };
    for (auto it = entries.begin(); it != entries.end(); ++it) {
      if (it->second.stage != Stage::waiting || it->second.request.urgency > patience) continue;
      if (best == entries.end() || rank(it->second) < rank(best->second)) best = it;
    }
    return best;
  }

  void work(Urgency patience);
  void run(std::unique_lock<std::mutex>& lock, Key key);
  void abandon(const Entry& entry);
  void note(const Entry& entry, std::string error, bool was_cancelled);
  void make_room();
  bool idle() const { return running == 0 && waiting == 0; }

  Options options;
  int cores = 1;
  Unanswered unanswered;
  mutable std::mutex mutex;
  std::condition_variable work_there, settled;
  std::unordered_map<Key, Entry> entries;
  std::unordered_map<Key, LastOfSlot> slots;
  std::deque<Done> log;
  std::string failure;  // the newest that was not taken
  std::uint64_t frame = 1, order = 0, version = 0, answers = 0;
  std::size_t bytes = 0, waiting = 0, running = 0;
  bool ending = false;
  std::vector<std::thread> threads;
};

JobQueue::JobQueue(Options options) : state_(std::make_unique<State>(std::move(options))) {
  // One thread for what a hand waits for and one for what is in view stay free of long work.
  std::vector<Urgency> patience = {Urgency::now, Urgency::soon};
  patience.insert(patience.end(), static_cast<std::size_t>(std::max(state_->cores - 1, 1)), Urgency::idle);
  for (const Urgency most : patience)
    state_->threads.emplace_back([state = state_.get(), most] { state->work(most); });
}

JobQueue::~JobQueue() {
  {
    const std::lock_guard lock(state_->mutex);
    state_->ending = true;
    for (auto& [key, entry] : state_->entries)
      if (entry.job) entry.job->workers().stop();
  }
  state_->work_there.notify_all();
  for (std::thread& thread : state_->threads) thread.join();
}

void JobQueue::State::work(Urgency patience) {
  step_back(patience == Urgency::now ? 2 : 10);
  std::unique_lock lock(mutex);
  while (true) {
    auto next = entries.end();
    work_there.wait(lock, [&] { return ending || (next = next_waiting(patience)) != entries.end(); });
    if (ending) return;
    run(lock, next->first);
  }
}

/// `key` is a copy: its entry may be erased while the job runs.
void JobQueue::State::run(std::unique_lock<std::mutex>& lock,
                          Key key) {  // NOLINT(performance-unnecessary-value-param)
  Entry& waiting_entry = entries.at(key);
  // Shared with the entry: an entry that is abandoned meanwhile leaves the job its own end.
  const std::shared_ptr<JobControl> job(
      new JobControl(waiting_entry.request.all_cores ? cores : 1, options.backend));
  waiting_entry.job = job;
  waiting_entry.stage = Stage::running;
  waiting_entry.started = Clock::now();
  const auto compute = std::move(waiting_entry.compute);
  --waiting;
  ++running;

  lock.unlock();
  Result result;
  std::string error;
  bool interrupted = false;
  try {
    result = compute(*job);
  } catch (const Interrupted&) {
    interrupted = true;
  } catch (const std::bad_alloc&) {
    error = "out of memory";
  } catch (const std::exception& e) {
    error = e.what();
  }
  lock.lock();

  --running;
  const auto found = entries.find(key);
  if (found != entries.end() && found->second.job == job) {
    Entry& entry = found->second;
    entry.job.reset();
    note(entry, error, interrupted);
    if (interrupted) {
      entries.erase(found);
    } else if (!error.empty()) {
      entry.stage = Stage::failed;
      entry.error = error;
    } else {
      entry.stage = Stage::answered;
      entry.answer = result;
      bytes += result.bytes;
      if (!entry.request.slot.empty()) slots[entry.request.slot] = {entry.type, result.value};
      make_room();
    }
  }
  ++version;
  if (idle()) settled.notify_all();
  if (!options.on_answer) return;
  lock.unlock();
  options.on_answer();
  lock.lock();
}

/// A job that nobody wants any more: it ends as soon as it notices, and its answer goes nowhere.
void JobQueue::State::abandon(const Entry& entry) {
  if (entry.stage == Stage::waiting) --waiting;
  if (entry.stage == Stage::running) {
    entry.job->workers().stop();
    note(entry, {}, true);
  }
  if (entry.stage == Stage::answered) bytes -= entry.answer.bytes;
  if (idle()) settled.notify_all();
}

void JobQueue::State::note(const Entry& entry, std::string error, bool was_cancelled) {
  if (error.empty() && !was_cancelled) ++answers;
  if (!error.empty()) failure = entry.request.title + ": " + error;
  log.push_front({entry.request.title, seconds_since(entry.started), std::move(error), was_cancelled});
  if (log.size() > kLogLength) log.pop_back();
}

/// Drops the answers that were asked for longest ago, but none that the last two frames asked for.
void JobQueue::State::make_room() {
  if (bytes <= options.cache_bytes) return;
  std::vector<std::pair<std::pair<std::uint64_t, std::uint64_t>, Key>> oldest;
  for (const auto& [key, entry] : entries)
    if (entry.stage == Stage::answered && entry.frame + 1 < frame)
      oldest.push_back({{entry.frame, entry.order}, key});
  std::sort(oldest.begin(), oldest.end());
  for (const auto& [when, key] : oldest) {
    if (bytes <= options.cache_bytes) return;
    bytes -= entries.at(key).answer.bytes;
    entries.erase(key);
  }
}

JobQueue::Untyped JobQueue::ask_untyped(const JobRequest& request, std::type_index type,
                                        std::function<Result(JobControl&)> compute) {
  const std::lock_guard lock(state_->mutex);
  State& s = *state_;
  auto [it, is_new] = s.entries.try_emplace(request.key);
  State::Entry& entry = it->second;
  if (is_new) {
    entry.type = type;
    entry.compute = std::move(compute);
    ++s.waiting;
  }
  const bool more_urgent = request.urgency < entry.request.urgency;
  entry.request = request;
  entry.frame = s.frame;
  entry.order = s.order++;
  if (is_new || more_urgent) s.work_there.notify_all();

  Untyped found;
  if (entry.type != type) {
    found.error = "two kinds of answers to one request: " + request.title;
    return found;
  }
  if (entry.stage == State::Stage::answered) {
    found.value = entry.answer.value;
    if (!request.slot.empty()) s.slots[request.slot] = {type, found.value};
    return found;
  }
  found.pending = entry.stage != State::Stage::failed;
  found.error = entry.error;
  if (found.pending) {
    ++s.unanswered.pending;
    if (request.urgency < Urgency::background && !request.fills) ++s.unanswered.in_view;
  } else {
    ++s.unanswered.failed;
    s.unanswered.error = found.error;
  }
  if (found.pending && !request.slot.empty()) {
    const auto last = s.slots.find(request.slot);
    if (last != s.slots.end() && last->second.type == type) {
      found.value = last->second.value;
      found.stale = true;
    }
  }
  return found;
}

void JobQueue::next_frame() {
  const std::lock_guard lock(state_->mutex);
  State& s = *state_;
  for (auto it = s.entries.begin(); it != s.entries.end();) {
    State::Entry& entry = it->second;
    const bool open = entry.stage == State::Stage::waiting || entry.stage == State::Stage::running;
    if (open && !entry.request.lasting && entry.frame < s.frame) {
      s.abandon(entry);
      it = s.entries.erase(it);
    } else {
      ++it;
    }
  }
  ++s.frame;
  s.order = 0;
}

std::vector<JobQueue::Job> JobQueue::jobs() const {
  const std::lock_guard lock(state_->mutex);
  std::vector<std::pair<std::tuple<bool, Urgency, std::uint64_t, std::uint64_t>, Job>> found;
  for (const auto& [key, entry] : state_->entries) {
    const bool runs = entry.stage == State::Stage::running;
    if (!runs && entry.stage != State::Stage::waiting) continue;
    Job job{key, entry.request.title, runs, 0, 0, entry.request.urgency};
    if (runs) {
      job.progress = entry.job->progress_.load(std::memory_order_relaxed);
      job.seconds = seconds_since(entry.started);
    }
    found.emplace_back(std::tuple(!runs, entry.request.urgency, ~entry.frame, entry.order), std::move(job));
  }
  std::sort(found.begin(), found.end(), [](const auto& a, const auto& b) { return a.first < b.first; });
  std::vector<Job> jobs;
  for (auto& [rank, job] : found) jobs.push_back(std::move(job));
  return jobs;
}

JobQueue::Unanswered JobQueue::unanswered() const {
  const std::lock_guard lock(state_->mutex);
  return state_->unanswered;
}

std::size_t JobQueue::open_jobs() const {
  const std::lock_guard lock(state_->mutex);
  return state_->waiting + state_->running;
}

std::vector<JobQueue::Done> JobQueue::log() const {
  const std::lock_guard lock(state_->mutex);
  return {state_->log.begin(), state_->log.end()};
}

void JobQueue::cancel(const Key& key) {
  const std::lock_guard lock(state_->mutex);
  const auto it = state_->entries.find(key);
  if (it == state_->entries.end()) return;
  State::Entry& entry = it->second;
  if (entry.stage != State::Stage::waiting && entry.stage != State::Stage::running) return;
  state_->abandon(entry);
  entry.job.reset();
  entry.compute = nullptr;
  entry.stage = State::Stage::failed;
  entry.error = "cancelled";
  ++state_->version;
}

void JobQueue::forget(const Key& first) {
  const std::lock_guard lock(state_->mutex);
  std::erase_if(state_->entries, [&](auto& item) {
    if (!item.first.begins_with(first)) return false;
    state_->abandon(item.second);
    return true;
  });
  std::erase_if(state_->slots, [&](const auto& item) { return item.first.begins_with(first); });
  ++state_->version;
}

void JobQueue::forget_errors() {
  const std::lock_guard lock(state_->mutex);
  std::erase_if(state_->entries, [](const auto& item) { return item.second.stage == State::Stage::failed; });
  ++state_->version;
}

std::uint64_t JobQueue::answers() const {
  const std::lock_guard lock(state_->mutex);
  return state_->answers;
}

std::string JobQueue::take_failure() {
  const std::lock_guard lock(state_->mutex);
  return std::exchange(state_->failure, {});
}

std::size_t JobQueue::cached_bytes() const {
  const std::lock_guard lock(state_->mutex);
  return state_->bytes;
}

std::size_t JobQueue::cache_limit() const {
  const std::lock_guard lock(state_->mutex);
  return state_->options.cache_bytes;
}

void JobQueue::set_cache_limit(std::size_t bytes) {
  const std::lock_guard lock(state_->mutex);
  state_->options.cache_bytes = bytes;
  state_->make_room();
}

std::uint64_t JobQueue::version() const {
  const std::lock_guard lock(state_->mutex);
  return state_->version;
}

bool JobQueue::wait_idle(std::chrono::milliseconds at_most) {
  std::unique_lock lock(state_->mutex);
  return state_->settled.wait_for(lock, at_most, [&] { return state_->idle(); });
}

}  // namespace kvreplay::viewer
