#pragma once

#include "viewer/questions/budgets.hpp"
#include "viewer/widgets/plot.hpp"

#include <imgui.h>
#include <string>
#include <vector>

namespace kvreplay::viewer {

struct BudgetPlotContent {
  Key key;  ///< says all that the curves depend on
  Index heads = 0, selected = 0;
  std::string title;  ///< of the loss axis
  std::string head;   ///< the selected one's name
  double sigma = 0;   ///< at which methods share
  Index l = 1;
  /// What a method gives the selected head.
  struct Point {
    std::string method;
    double budget = 0, loss = 0;
    ImU32 color = 0;
    bool chosen = false;
  };
  std::vector<Point> points;
};

/// The selected head among the others: its loss at every budget, on log axes, or what it keeps at every
/// compression.
class BudgetPlot {
 public:
  /// Within `size` pixels.
  void draw(ImVec2 size, const BudgetPlotContent& content, BudgetFigures& source);
  bool shows_shares = false;

 private:
  struct Curve {
    std::vector<double> budgets, losses;  ///< thinned for the screen
  };
  void take_curves(const BudgetPlotContent& content, BudgetFigures& source);
  void draw_losses(ImVec2 size, const BudgetPlotContent& content, BudgetFigures& source);
  void draw_shares(ImVec2 size, const BudgetPlotContent& content);

  Key key_;
  std::vector<Curve> curves_;
  std::vector<std::vector<double>> kept_;  ///< [heads], by sigma
  double low_ = 1e-3, high_ = 1;           ///< of all losses shown
  Index l_ = 1;
  PlotView view_, shares_view_;
};

}  // namespace kvreplay::viewer
