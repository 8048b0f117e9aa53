#pragma once

#include "viewer/panels/curve_lines.hpp"
#include "viewer/panels/decode/cache_strips.hpp"
#include "viewer/panels/decode/decode_question.hpp"
#include "viewer/work/state.hpp"

#include <functional>
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
  /// Fills the height that is left. `color_of` a policy's name; runs can be removed where `editable`.
  Done draw(AppState& state, const DecodeAnswers& answers, Index step,
            const std::function<ImU32(const std::string&)>& color_of, bool editable);

 private:
  struct Row;
  void draw_row(const DecodeAnswers& answers, std::size_t r, const Row& row, Done& done);
  void draw_tip(AppState& state, const DecodeAnswers& answers) const;
  CacheStrips strips_;
};

/// The stroke of a run's curve.
inline Stroke stroke_of(const DecodeRun& run) { return run.append_only ? Stroke::dashed : Stroke::solid; }
/// "snapkv" or "snapkv, append-only".
std::string title_of(const DecodeRun& run);

}  // namespace kvreplay::viewer
