#pragma once

#include "data/dump.hpp"
#include "sim/schedule.hpp"

#include <chrono>
#include <string>

namespace kvreplay {

inline double seconds_since(std::chrono::steady_clock::time_point then) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - then).count();
}

/// A line on standard error that is drawn over and over, and gone in the end; nothing where standard error is
/// no terminal.
class ProgressBar {
 public:
  /// `label` stands in front of the bar.
  explicit ProgressBar(bool wanted, std::string label = "");
  ~ProgressBar();
  ProgressBar(const ProgressBar&) = delete;
  ProgressBar& operator=(const ProgressBar&) = delete;

  void show(Index done, Index total);

 private:
  using Clock = std::chrono::steady_clock;
  bool drawing_;
  std::string label_;
  bool drawn_ = false;
  Clock::time_point begin_ = Clock::now();
  Clock::time_point last_{};
};

/// While it lives, the first SIGINT or SIGTERM stops `workers`, so that parallel_for throws Interrupted.
/// Should the work not come to a halt in 0.7 s (a slow disk, a full one), the process says `message` (unless
/// it is empty) and exits with 130 by itself: files are whole or absent at any moment. More signals change
/// nothing, not even once it is gone: a launcher sends several, and what to do next is still to be said. One
/// at a time.
class InterruptGuard {
 public:
  InterruptGuard(Workers& workers, const std::string& message);
  ~InterruptGuard();
  InterruptGuard(const InterruptGuard&) = delete;
  InterruptGuard& operator=(const InterruptGuard&) = delete;

  static constexpr int kExitCode = 130;
};

/// Message for an interruption: that of the latest guard.
const std::string& interrupt_message();

}  // namespace kvreplay
