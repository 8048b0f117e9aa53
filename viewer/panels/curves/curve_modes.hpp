#pragma once

#include "data/facts_table.hpp"
#include "viewer/panels/curve_lines.hpp"
#include "viewer/questions/score_curves.hpp"

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace kvreplay::viewer {

// The three figures that the curves panel draws of a score at a budget.

enum class CurveMode { recall, mass, loss };
struct CurveModeFacts {
  CurveMode id;
  std::string_view name, button;
  std::string_view title;    ///< "recall@k"
  std::string_view meaning;  ///< in a sentence with its formula
  double CurvePoint::*at;
  std::vector<double> ScoreCurves::Curve::*values;
};
inline constexpr auto kCurveModes = facts_table<CurveModeFacts>(
    {{CurveMode::recall, "recall", "Recall", "recall@k",
      "recall@k: share of the reference's k largest tokens that are among the score's, "
      "|top-k(s) \xE2\x88\xA9 top-k(e)| / k",
      &CurvePoint::recall, &ScoreCurves::Curve::recall},
     {CurveMode::mass, "mass", "Error mass", "error mass@k",
      "Error mass@k: share of the reference's sum that the score's k largest tokens hold", &CurvePoint::mass,
      &ScoreCurves::Curve::mass},
     {CurveMode::loss, "loss", "Loss", "loss L(b)",
      "Loss L(b): sum of the reference over the tokens that are evicted when the score's b largest are kept",
      &CurvePoint::loss, &ScoreCurves::Curve::loss}});
constexpr std::string_view name_of(CurveMode mode) { return kCurveModes[mode].name; }

/// True if a ranks before b, best first; NaN ranks last.
bool better(double a, double b, CurveMode mode);

/// A curve's values at ScoreCurves::budgets; NaN where a log axis has no place for them.
std::vector<double> drawn_values(const ScoreCurves::Curve& curve, CurveMode mode, bool log);
/// Average over k randomly chosen tokens: k / n of the total.
std::vector<double> chance(const ScoreCurves& curves, CurveMode mode);

struct ValueExtent {
  double low = 0, high = 1;
};
/// The curves as they are drawn: in one mode, with those of a pinned run beside them or subtracted.
struct CurveFigure {
  const ScoreCurves* own = nullptr;
  const ScoreCurves* pinned = nullptr;  ///< against the same reference, of as many tokens; null: none
  bool less = false;                    ///< values are those of `own` less the pinned run's
  CurveMode mode = CurveMode::recall;
  bool log = false;  ///< the y axis, never where `less`
  MetricSet hidden;

  /// The reference's own curve, the best possible, is always shown.
  bool shows(TokenMetric score) const { return score == own->reference || !hidden.contains(score); }
  /// The pinned run's curve of the same score; null where there is none.
  const ScoreCurves::Curve* pinned_curve(TokenMetric score) const {
    return pinned != nullptr ? pinned->find(score) : nullptr;
  }
  /// At budget k; NaN where the pinned run lacks what is to be subtracted.
  double at(const ScoreCurves::Curve& curve, Index k) const;
  /// At own->budgets.
  std::vector<double> drawn(const ScoreCurves::Curve& curve) const;
  /// The y axis that holds all that is shown; a log one spans at most 9 decades.
  ValueExtent extent() const;
  std::string axis() const;
};

/// A value with as many digits as its neighbours in a column; "0.839" for shares, "+0.013" for what is
/// `less`.
std::string table_text(double value, CurveMode mode, bool less = false);
/// "128 (14.3 %)".
std::string budget_text(Index k, Index n);

// The curves panel's table, which is its legend too.

struct CurveLook {
  ImU32 color;
  Stroke stroke;
};
/// A metric looks the same in every head and whatever else is shown.
CurveLook look_of(TokenMetric score, TokenMetric reference);

/// A row a score with its value at budget k, best first, hidden ones last. A click changes `hidden`;
/// `pointed` is set to the score under the mouse.
void draw_curve_rows(const CurveFigure& figure, Index k, MetricSet& hidden,
                     std::optional<TokenMetric>& pointed);

}  // namespace kvreplay::viewer
