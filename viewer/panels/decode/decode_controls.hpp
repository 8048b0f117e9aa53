#pragma once

#include "viewer/work/decode_view.hpp"
#include "viewer/work/run.hpp"

#include <optional>
#include <string>

namespace kvreplay::viewer {

/// Budget (where linked, the desk's), phase, semantics, and behind a button window, pooling and pins. True
/// where something changed.
bool edit_decoding(const Run& run, KeptBudget& desk, DecodeSettings& settings);
/// A button with a menu of the policies that can decode on this dump; the one chosen, or empty.
std::string add_policy(const Run& run, const DecodeSettings& settings);
/// What a button of playback_buttons() asks for.
struct PlaybackHit {
  std::optional<Index> to;  ///< this step
  bool toggled = false;     ///< play, or pause
};
/// Back, play or pause, on, and to the next `spike` where there is one, whose query is `token`; the slider
/// follows on the same line where there is room.
PlaybackHit playback_buttons(bool playing, Index step, Index steps, std::optional<Index> spike,
                             const std::string& token);
/// A slider for the step in [0, steps); true where it changed. What follows it on the line says the position
/// and, where there is room, its token.
bool edit_step(const Run& run, Index steps, Index first_step, Index& step);

}  // namespace kvreplay::viewer
