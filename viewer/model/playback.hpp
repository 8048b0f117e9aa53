#pragma once

#include "data/dump.hpp"
#include "viewer/model/status_line.hpp"

#include <optional>
#include <span>

namespace kvreplay::viewer {

/// Steps that follow each other in time, to the last one.
class Playback {
 public:
  using Clock = StatusLine::Clock;
  static constexpr std::chrono::milliseconds kStep{125};

  bool playing() const { return since_.has_value(); }
  void play(Clock::time_point now) { since_ = now; }
  void pause() { since_.reset(); }
  /// The step that is due, of 0 .. steps - 1, where `step` is the present one; it stops at the last. Where
  /// nobody looked for a second it goes on from where it was.
  Index advance(Index step, Index steps, Clock::time_point now);
  /// Time at which the next step is due; empty while paused.
  std::optional<Clock::time_point> due() const;

 private:
  std::optional<Clock::time_point> since_;  // when the present step began; empty: paused
};

/// The first spike of an error behind `step` (before it where not `forward`): where it is larger than both
/// neighbours and than twice the median of the 16 finite errors on either side; none where there is none.
std::optional<Index> next_spike(std::span<const double> error, Index step, bool forward);

}  // namespace kvreplay::viewer
