#pragma once

#include "viewer/work/score_curves.hpp"

#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

// The three figures that the curves panel draws of a score at a budget.

namespace kvreplay::viewer {

enum class CurveMode { recall, mass, loss };
inline constexpr std::size_t kCurveModes = 3;
std::string_view name_of(CurveMode mode);
std::optional<CurveMode> curve_mode_named(std::string_view name);

std::string_view title_of(CurveMode mode);    ///< "recall@k"
std::string_view meaning_of(CurveMode mode);  ///< in a sentence with its formula
std::string axis_title(CurveMode mode, TokenMetric reference);

double value_of(const CurvePoint& point, CurveMode mode);
/// Whether a comes before b, best first; NaN comes last.
bool better(double a, double b, CurveMode mode);

/// A curve's values at ScoreCurves::budgets; NaN where a log axis has no place for them.
std::vector<double> drawn_values(const ScoreCurves::Curve& curve, CurveMode mode, bool log);
/// What k tokens chosen blindly have on average: k / n of everything.
std::vector<double> chance(const ScoreCurves& curves, CurveMode mode);

struct ValueExtent {
  double low = 0, high = 1;
};
/// The y axis that holds the curves that `shown` tells of; a log one spans at most 9 decades.
ValueExtent extent_of(const ScoreCurves& curves, CurveMode mode, bool log,
                      const std::function<bool(TokenMetric)>& shown);

/// A value with as many digits as its neighbours in a column; "0.839" for shares.
std::string table_text(double value, CurveMode mode);
/// "128 (14.3 %)".
std::string budget_text(Index k, Index n);

}  // namespace kvreplay::viewer
