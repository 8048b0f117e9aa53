#pragma once

#include "viewer/questions/scatter.hpp"
#include "viewer/questions/state.hpp"
#include "viewer/questions/wrongly_evicted.hpp"
#include "viewer/widgets/lasso.hpp"
#include "viewer/widgets/plot.hpp"

#include <cstdint>
#include <imgui.h>
#include <optional>
#include <string>
#include <vector>

namespace kvreplay::viewer {

/// Content of the plot in this frame.
struct ScatterContent {
  const ScatterFacts& facts;
  const ScatterPair* pair = nullptr;     ///< with the pinned run's points, on common axes; null: none
  const ScatterFacts* pinned = nullptr;  ///< the pinned run's, where there is a pair
  std::vector<std::uint8_t> classes;     ///< by token: 0, 1 kept, 2 chosen
  ScatterCut cut;                        ///< the queue's budget, on the axes of scatter()
  Key runs;                              ///< what was zoomed into goes with others

  const Scatter& scatter() const { return pair != nullptr ? pair->own : facts.scatter; }
};

/// A point a token, and a hand with a lasso. Of a pinned run the points are faint, with a line from there to
/// each token that is selected, under the mouse, or chosen; where none is chosen, to those that moved
/// farthest. Two lines are the budget: what it keeps by the score lies right, by the reference above.
class ScatterPlot {
 public:
  /// A plot of fewer points of height has its titles within.
  static constexpr float kLow = 260;
  /// Fills what is left of the panel; what is clicked and lassoed is selected.
  void draw(AppState& state, const ScatterContent& content);
  /// Colour of the pinned run's points.
  static ImU32 pinned_color();

 private:
  void take_lasso(AppState& state, const Scatter& scatter, const Plot& plot,
                  std::optional<ScatterPoint> under);

  PlotView view_;
  Key axes_;  // what view_ belongs to
  Lasso lasso_;
};

/// The tokens that the setting in view evicts though a reference has them among as many largest: with their
/// ranks, the words around them and the policies that keep them.
class EvictedList {
 public:
  /// Fills what is left of the window.
  void draw(PanelContext& context, TokenMetric reference);
  std::string csv(const AppState& state) const;

 private:
  void draw_table(AppState& state);
  void draw_row(AppState& state, Index row);
  /// Selects one token; with Ctrl adds or removes it, with Shift adds all from the last one on.
  void choose(AppState& state, Index row);

  TokenMetric reference_ = TokenMetric::exact_remove;
  EvictedSource source_;
  Index anchor_ = 0;  ///< row with which a range of Shift begins
};

}  // namespace kvreplay::viewer
