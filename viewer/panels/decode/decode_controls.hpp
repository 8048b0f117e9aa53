#pragma once

#include "viewer/questions/decoding.hpp"
#include "viewer/questions/run.hpp"
#include "viewer/questions/state.hpp"

#include <optional>
#include <string>

namespace kvreplay::viewer {

/// Budget (where linked, the desk's), phase, semantics, and behind a button window, pooling and pins of the
/// selected run's decoding.
void edit_decoding(AppState& state, DecodeSettings& settings);
/// A button with a menu of the policies that can decode on this dump; the one chosen, or empty.
std::string add_policy(const Run& run, const DecodeSettings& settings);
/// What a button of playback_buttons() asks for.
struct PlaybackHit {
  std::optional<Index> to;  ///< this step
  bool toggled = false;     ///< play, or pause
};
/// A step to jump to and what is there; none, and why.
struct PlaybackJump {
  std::optional<Index> step;
  std::string what;
};
/// Back, play or pause, on, to the next spike and to the first divergence; the slider follows on the same
/// line where there is room.
PlaybackHit playback_buttons(bool playing, Index step, Index steps, const PlaybackJump& spike,
                             const PlaybackJump& divergence);
/// A slider for the step in [0, steps); true where it changed. What follows it on the line says the position
/// and, where there is room, its token.
bool edit_step(const Run& run, Index steps, Index first_step, Index& step);

}  // namespace kvreplay::viewer
