#include "analysis/results/compare_report.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace kvreplay {

double relative(const ComparedFigure& figure) {
  const double apart = std::abs(difference(figure.a, figure.b));
  const double size = std::max(std::abs(figure.a), std::abs(figure.b));
  if (std::isnan(apart)) return std::isnan(figure.a) != std::isnan(figure.b) ? HUGE_VAL : 0;
  return apart == 0 ? 0 : std::isinf(size) ? HUGE_VAL : apart / size;
}

double weight(const ComparedFigure& figure, FigureScale scale) {
  const double apart = std::abs(difference(figure.a, figure.b));
  return has_fixed_range(scale) && !std::isnan(apart) ? apart : relative(figure);
}

std::string headline_of(const FolderComparison& comparison) {
  std::size_t a_better = 0, b_better = 0, all = 0;
  const ComparedPivot* where = nullptr;
  const ComparedFigure* most = nullptr;
  for (const TableComparison& table : comparison.tables)
    for (const ComparedPivot& pivot : table.pivots) {
      if (pivot.better == Better::neither) continue;
      for (const ComparedFigure& figure : pivot.figures) {
        if (figure.is_oracle || std::isnan(figure.a) || std::isnan(figure.b)) continue;
        ++all;
        if (figure.a == figure.b) continue;
        const bool a_less = figure.a < figure.b;
        ++(a_less == (pivot.better == Better::smaller) ? a_better : b_better);
        if (most == nullptr || weight(figure, pivot.scale) > weight(*most, where->scale))
          most = &figure, where = &pivot;
      }
    }
  if (all == 0) return "No main figure of one is better than the other's";
  if (most == nullptr) return fmt::format("A and B are equal in all {} main figures, oracles apart", all);
  const bool a_wins = a_better > b_better;
  const std::string won =
      a_better == b_better
          ? fmt::format("Neither wins: each is better in {} of {} main figures, oracles apart", a_better, all)
          : fmt::format("{} is better in {} of {} main figures, oracles apart, {} in {}", a_wins ? "A" : "B",
                        std::max(a_better, b_better), all, a_wins ? "B" : "A", std::min(a_better, b_better));
  const double apart = difference(most->a, most->b);
  const std::string size =
      has_fixed_range(where->scale) || most->a == 0
          ? fmt::format("{} {}", fmt::format("{:.3g}", std::abs(apart)), apart > 0 ? "more" : "less")
          : fmt::format("{:.3g} times", most->b / most->a);
  return fmt::format("{}; they differ most in {}, of {}{}: {} in A, {} in B ({})", won, where->title,
                     most->shown, most->setting.empty() ? "" : ", " + most->setting,
                     fmt::format("{:.3g}", most->a), fmt::format("{:.3g}", most->b), size);
}

}  // namespace kvreplay
