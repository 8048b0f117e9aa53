#pragma once

#include "viewer/questions/figure_map.hpp"
#include "viewer/questions/scatter.hpp"
#include "viewer/questions/state.hpp"
#include "viewer/widgets/lasso.hpp"
#include "viewer/widgets/plot.hpp"

#include <imgui.h>
#include <memory>
#include <optional>
#include <vector>

namespace kvreplay::viewer {

class HeatmapView;

/// A point a head: one figure of all heads against another. A click selects the head, a lasso chooses
/// several.
class HeadScatter {
 public:
  /// Heads that have both figures; both maps are of the same heads. `colors` lends the map's colours to the
  /// points, which are those of `shown`. Draws within `size` pixels.
  void draw(AppState& state, ImVec2 size, const std::shared_ptr<const FigureMap>& across,
            const std::shared_ptr<const FigureMap>& up, const FigureMap& shown, const HeatmapView& colors);
  /// Heads that a lasso chose, row by row of the map, ascending; empty: all count.
  const std::vector<Index>& chosen() const { return chosen_; }
  /// Whether there were any.
  bool choose_none();

 private:
  void take_hand(AppState& state, const FigureMap& map, const Plot& plot);

  std::shared_ptr<const FigureMap> across_, up_;  // what the points are of
  Scatter points_;
  PlotView view_;
  Lasso lasso_;
  std::vector<Index> chosen_;
};

}  // namespace kvreplay::viewer
