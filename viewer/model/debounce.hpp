#pragma once

#include "viewer/model/status_line.hpp"

#include <chrono>
#include <optional>

namespace kvreplay::viewer {

/// Debounce for waiting: a wait is reported only if it takes at least kLeast.
class Debounce {
 public:
  using Clock = StatusLine::Clock;
  static constexpr std::chrono::milliseconds kLeast{120};

  /// Called in every frame with the current state.
  void wait(bool waits, Clock::time_point now) {
    if (!waits)
      since_.reset();
    else if (!since_)
      since_ = now;
  }
  /// True if the wait has taken at least kLeast.
  bool over(Clock::time_point now) const { return since_ && now - *since_ >= kLeast; }
  /// Time at which over() becomes true; nothing if there is no wait or over() is already true.
  std::optional<Clock::time_point> ends(Clock::time_point now) const {
    return since_ && !over(now) ? std::optional(*since_ + kLeast) : std::nullopt;
  }

 private:
  std::optional<Clock::time_point> since_;
};

}  // namespace kvreplay::viewer
