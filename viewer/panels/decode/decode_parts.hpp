#pragma once

#include "viewer/panels/curve_lines.hpp"
#include "viewer/questions/decoding.hpp"
#include "viewer/questions/run.hpp"
#include "viewer/questions/state.hpp"
#include "viewer/widgets/position_axis.hpp"

#include <functional>
#include <imgui.h>
#include <optional>
#include <string>
#include <vector>

namespace kvreplay::viewer {

/// Content that all parts of the panel draw in a frame; `now` has a view with runs.
struct DecodeShown {
  const DecodeAnswers& now;
  const DecodeAnswers* pinned =
      nullptr;  ///< the pinned run's under the same settings, with a view; null: none
  std::vector<Divergence> divergences = {};
  Index step = 0;
  std::function<ImU32(const DecodeRun&)> color_of = {};

  const std::vector<DecodeRun>& runs() const { return now.view->runs; }
  Index steps() const { return runs().front().steps(); }
  Index first_step() const { return runs().front().first_step; }
  /// The pinned run's, by the number of this run's; none where it has none of that policy and phase.
  std::optional<std::size_t> in_pinned(std::size_t run) const {
    return pinned != nullptr ? same_run(pinned->view->runs, runs()[run]) : std::nullopt;
  }
  const DecodeRun* pinned_run(std::size_t run) const {
    const auto at = in_pinned(run);
    return at ? &pinned->view->runs[*at] : nullptr;
  }
  const CacheFates* pinned_fates(std::size_t run) const {
    const auto at = in_pinned(run);
    return at && *at < pinned->fates.size() ? &pinned->fates[*at] : nullptr;
  }
};

/// Strips one below the other over all positions, each a cache after one step.
class CacheStrips {
 public:
  struct Marks {
    std::optional<Index> selected, hovered;
    Index now = 0;  ///< the step's own position
  };
  /// Begins a frame. All strips lie between the pixels `left` and `right`.
  void begin(float left, float right, Index positions, const Marks& marks);
  /// One strip from the cursor's height on: what is held in `color`, what was evicted grey, what leaves in
  /// this step's cut in the colour of text.
  void draw(const char* id, float height, ImU32 color, const CacheFates& fates, Index step);
  /// Numbers below the last strip.
  void draw_numbers() const;
  const PositionAxis& axis() const { return axis_; }

 private:
  PositionAxis axis_;
  Marks marks_;  // of this frame
};

/// The curves' key with their figures, and below each run what its cache holds after one step.
class DecodeList {
 public:
  struct Done {
    std::optional<std::size_t> pointed;  ///< number of the run under the mouse
    std::string removed;                 ///< policy whose button was pressed
  };
  /// Fills the height that is left; runs can be removed where `editable`.
  Done draw(AppState& state, const DecodeShown& shown, bool editable);

 private:
  struct Row;
  void draw_row(const DecodeShown& shown, std::size_t r, const Row& row, Done& done);
  void draw_tip(AppState& state, const DecodeShown& shown) const;
  CacheStrips strips_;
};

/// The stroke of a run's curve.
inline Stroke stroke_of(const DecodeRun& run) { return run.append_only ? Stroke::dashed : Stroke::solid; }
/// Time at which a position leaves a cache: "leaves at step 12".
std::string fate_text(const CacheFates& fates, Index position);
/// "snapkv" or "snapkv, append-only".
std::string title_of(const DecodeRun& run);

/// Budget (where linked, the queue's), phase, semantics, and behind a button window, pooling and pins of the
/// selected run's decoding.
void edit_decoding(AppState& state, DecodeSettings& settings);
/// A button with a menu of the policies that can decode on this dump; the one chosen, or empty.
std::string add_policy(const Run& run, const DecodeSettings& settings);
/// Request from a button of playback_buttons().
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
