#pragma once

#include "viewer/model/playback.hpp"
#include "viewer/panels/decode/decode_shown.hpp"
#include "viewer/panels/panel.hpp"

#include <optional>
#include <string>

namespace kvreplay::viewer {

/// Which decoding step is looked at: it goes with the selected query, can be played, and jumps to where
/// something happens.
class DecodeSteps {
 public:
  Index now() const { return now_; }
  /// Once a frame, before all else: follows the selection, and plays on.
  void begin(AppState& state, const DecodeShown& shown);
  void go_to(AppState& state, Index step);
  /// Its buttons and slider, and what diverges at this step, a line each. `pinned` is the pinned run's name.
  void draw(PanelContext& context, const DecodeShown& shown, const std::string& pinned);

 private:
  Playback playback_;
  Index now_ = 0, first_step_ = 0;
  bool chosen_ = false;  // else the last one
  std::optional<Index> followed_row_;
};

}  // namespace kvreplay::viewer
