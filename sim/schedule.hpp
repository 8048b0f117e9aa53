#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <exception>
#include <functional>
#include <memory>

namespace kvreplay {

/// Thrown out of parallel_for when stop() was called: the work is incomplete and its results are to be
/// dropped.
struct Interrupted : std::exception {
  const char* what() const noexcept override { return "interrupted"; }
};

/// A fixed set of threads that share numbered items. Any thread may run an item, so an item's result must
/// depend on its number alone; then any number of threads gives the same bytes.
class Workers {
 public:
  /// `threads` includes the calling thread; 0 means one per core that this process may use. Where each has a
  /// core to itself, threads stay awake for `awake` after a loop: a head group takes a handful of short
  /// loops, and waking a thread takes as long as one of them.
  explicit Workers(int threads = 0, std::chrono::microseconds awake = std::chrono::microseconds(20));
  ~Workers();
  Workers(const Workers&) = delete;
  Workers& operator=(const Workers&) = delete;

  int threads() const;

  /// Runs body(0) .. body(n - 1), in order of start, and returns when all have ended. May be called from
  /// within a body: the caller works on its own items and idle threads join in. The first exception of a body
  /// is rethrown here, after the items already started have ended. Throws Interrupted where the stop flag was
  /// raised.
  void parallel_for(std::ptrdiff_t n, const std::function<void(std::ptrdiff_t)>& body);

  /// Stops the loops: no item is started any more. Callable from anywhere, a signal handler included.
  void stop() noexcept { stop_.store(true, std::memory_order_relaxed); }
  bool stopping() const noexcept { return stop_.load(std::memory_order_relaxed); }

 private:
  struct State;
  std::atomic<bool> stop_{false};
  std::unique_ptr<State> state_;
};

}  // namespace kvreplay
