#pragma once

#include "viewer/panels/decode/decode_shown.hpp"
#include "viewer/widgets/plot.hpp"
#include "viewer/work/state.hpp"

#include <optional>

namespace kvreplay::viewer {

/// The output error of every decoding step, a curve a run, and a line at the present one.
class DecodePlot {
 public:
  /// `size` in pixels; the run of number `pointed` stands out. The step that was gone to, else nothing.
  std::optional<Index> draw(AppState& state, const DecodeShown& shown, ImVec2 size,
                            std::optional<std::size_t> pointed);

 private:
  PlotView view_;
};

}  // namespace kvreplay::viewer
