#pragma once

#include "viewer/panels/curve_lines.hpp"
#include "viewer/panels/decode/cache_strips.hpp"
#include "viewer/panels/decode/decode_shown.hpp"
#include "viewer/work/state.hpp"

#include <optional>
#include <string>

namespace kvreplay::viewer {

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
/// When a position leaves a cache: "leaves at step 12".
std::string fate_text(const CacheFates& fates, Index position);
/// "snapkv" or "snapkv, append-only".
std::string title_of(const DecodeRun& run);

}  // namespace kvreplay::viewer
