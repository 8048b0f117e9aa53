#include "analysis/python/calls.hpp"

#include <array>
#include <atomic>
#include <chrono>
#include <map>
#include <mutex>
#include <pthread.h>
#include <sys/syscall.h>
#include <unistd.h>
#include <vector>

namespace kvreplay::python {
namespace {

/// Threads between calls. Never destroyed: they end with the process, and a fork leaves them behind.
struct Pool {
  std::mutex mutex;
  std::map<int, std::vector<std::unique_ptr<Workers>>> idle;  // by the number asked for
};

std::atomic<Pool*> g_pool{nullptr};

Pool& pool() {
  static const bool once = [] {
    g_pool = new Pool;
    pthread_atfork(nullptr, nullptr, [] { g_pool = new Pool; });
    return true;
  }();
  static_cast<void>(once);
  return *g_pool.load();
}

std::atomic<int> g_threads{0};
std::atomic<Workers*> g_stopped_by_interrupt{nullptr};
struct sigaction g_handler = {};  // Python's; set before the pointer above is

extern "C" void on_interrupt(int signal) {
  if (Workers* workers = g_stopped_by_interrupt.load()) workers->stop();
  g_handler.sa_handler(signal);
}

bool in_main_thread() { return ::syscall(SYS_gettid) == ::getpid(); }

}  // namespace

BoundOptions bound(CallOptions& options) {
  using namespace compute_option;
  return {bind_option(backend, options.backend), bind_option(precision, options.precision),
          bind_option(threads, options.threads)};
}

int default_threads() { return g_threads; }
void set_default_threads(int threads) { g_threads = threads; }

Lease::Lease(int threads) : threads_(threads) {
  {
    Pool& from = pool();
    const std::lock_guard lock(from.mutex);
    auto& idle = from.idle[threads];
    if (!idle.empty()) {
      workers_ = std::move(idle.back());
      idle.pop_back();
    }
  }
  // One call follows another within a notebook's or a press's loop.
  if (!workers_) workers_ = std::make_unique<Workers>(threads, std::chrono::microseconds(100));
}

Lease::~Lease() {
  if (workers_->stopping()) return;
  Pool& to = pool();
  const std::lock_guard lock(to.mutex);
  to.idle[threads_].push_back(std::move(workers_));
}

StopOnInterrupt::StopOnInterrupt(Workers& workers) {
  if (!in_main_thread()) return;
  sigaction(SIGINT, nullptr, &before_);
  const bool handled = (before_.sa_flags & SA_SIGINFO) == 0 && before_.sa_handler != SIG_DFL &&
                       before_.sa_handler != SIG_IGN && before_.sa_handler != on_interrupt;
  if (!handled) return;
  active_ = true;
  g_handler = before_;
  g_stopped_by_interrupt = &workers;
  struct sigaction action = before_;
  action.sa_handler = on_interrupt;
  sigaction(SIGINT, &action, nullptr);
}

StopOnInterrupt::~StopOnInterrupt() {
  if (!active_) return;
  sigaction(SIGINT, &before_, nullptr);
  g_stopped_by_interrupt = nullptr;
}

ChosenCompute chosen_compute(const CallOptions& options) {
  static std::map<std::pair<BackendChoice, Precision>, ChosenCompute> chosen;  // behind Python's lock
  const std::pair key(options.backend, options.precision);
  auto found = chosen.find(key);
  if (found == chosen.end())
    found = chosen.emplace(key, choose_compute(options.backend, options.precision, true)).first;
  return found->second;
}

void raise_interrupt() {
  if (PyErr_CheckSignals() == 0) PyErr_SetNone(PyExc_KeyboardInterrupt);
  throw nb::python_error();
}

}  // namespace kvreplay::python
