#pragma once

#include "viewer/model/status_line.hpp"

#include <chrono>
#include <optional>

namespace kvreplay::viewer {

/// How long something has been waited for: what comes at once is not remarked upon.
class Patience {
 public:
  using Clock = StatusLine::Clock;
  static constexpr std::chrono::milliseconds kLeast{120};

  /// Told in every frame whether it still waits.
  void wait(bool waits, Clock::time_point now) {
    if (!waits)
      since_.reset();
    else if (!since_)
      since_ = now;
  }
  /// Whether it has waited long.
  bool over(Clock::time_point now) const { return since_ && now - *since_ >= kLeast; }
  /// When it will have; nothing where it does not wait, or has.
  std::optional<Clock::time_point> ends(Clock::time_point now) const {
    return since_ && !over(now) ? std::optional(*since_ + kLeast) : std::nullopt;
  }

 private:
  std::optional<Clock::time_point> since_;
};

}  // namespace kvreplay::viewer
