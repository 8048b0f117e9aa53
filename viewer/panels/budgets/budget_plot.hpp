#pragma once

#include "viewer/panels/budgets/budget_figures.hpp"
#include "viewer/widgets/plot.hpp"

#include <imgui.h>
#include <string>
#include <vector>

namespace kvreplay::viewer {

struct BudgetPlotContent {
  Key key;  ///< says all that the curves depend on
  Index heads = 0, selected = 0;
  std::string title;  ///< of the loss axis
  /// What a method gives the selected head.
  struct Point {
    std::string method;
    double budget = 0, loss = 0;
    ImU32 color = 0;
    bool chosen = false;
  };
  std::vector<Point> points;
};

/// The selected head's loss at every budget, on log axes, among those of the other heads.
class BudgetPlot {
 public:
  /// Within `size` pixels.
  void draw(ImVec2 size, const BudgetPlotContent& content, BudgetFigures& source);

 private:
  struct Curve {
    std::vector<double> budgets, losses;  ///< thinned for the screen
  };
  void take_curves(const BudgetPlotContent& content, BudgetFigures& source);

  Key key_;
  std::vector<Curve> curves_;
  double low_ = 1e-3, high_ = 1;  ///< of all losses shown
  Index l_ = 1;
  PlotView view_;
};

}  // namespace kvreplay::viewer
