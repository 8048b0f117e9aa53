#pragma once

#include "viewer/model/key.hpp"
#include "viewer/widgets/plot.hpp"
#include "viewer/work/window_curves.hpp"

#include <optional>

namespace kvreplay::viewer {

/// recall@k over the window: a line a score, and a dashed one with the reserved tokens.
class WindowPlot {
 public:
  /// `size` in pixels; a line stands at the `window` that other panels look at. Returns the score whose curve
  /// is under the mouse.
  std::optional<TokenMetric> draw(ImVec2 size, const WindowCurves& shown, const MetricSet& hidden,
                                  const Key& run, Index window, std::optional<TokenMetric> pointed,
                                  float fade);

 private:
  PlotView view_;
  Key axes_;  // what view_ belongs to
};

}  // namespace kvreplay::viewer
