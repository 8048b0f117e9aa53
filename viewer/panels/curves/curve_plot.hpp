#pragma once

#include "viewer/panels/curves/curve_modes.hpp"
#include "viewer/widgets/plot.hpp"
#include "viewer/work/desk.hpp"

#include <optional>

namespace kvreplay::viewer {

/// All scores' curves over the budget, and a budget line to drag.
class CurvePlot {
 public:
  struct Done {
    std::optional<Index> budget;         ///< the line was dragged there
    std::optional<TokenMetric> pointed;  ///< the score whose curve is under the mouse
  };
  /// `size` in pixels, the line at `budget`; the score `pointed` stands out. What was zoomed into goes with
  /// another `run`, or other axes. `fade` is the opacity of all.
  Done draw(ImVec2 size, const CurveFigure& shown, const Key& run, Index budget,
            std::optional<TokenMetric> pointed, float fade);

 private:
  PlotView view_;
  Key axes_;  // what view_ belongs to
};

}  // namespace kvreplay::viewer
