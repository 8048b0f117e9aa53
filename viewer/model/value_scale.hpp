#pragma once

#include "data/facts_table.hpp"
#include "viewer/model/tiles.hpp"

#include <optional>
#include <span>
#include <string_view>
#include <vector>

// Mapping of values to positions on a colour bar or an axis, and choice of the value range.

namespace kvreplay::viewer {

enum class ScaleKind { linear, log, symlog };
struct ScaleFacts {
  ScaleKind id;
  std::string_view name;
};
inline constexpr auto kScaleKinds = facts_table<ScaleFacts>(
    {{ScaleKind::linear, "linear"}, {ScaleKind::log, "log"}, {ScaleKind::symlog, "symlog"}});
constexpr std::string_view name_of(ScaleKind kind) { return kScaleKinds[kind].name; }

/// Mapping of a value v to a position t on the colour bar. Computed in float, operation by operation as in
/// the shader (viewer/gl/heatmap.frag).
///   linear  t = (v - low) / (high - low)
///   log     t = log10(v / low) / log10(high / low); -infinity for v <= 0
///   symlog  t = (s(v) - s(low)) / (s(high) - s(low)), s(v) = sign(v) log10(1 + |v| / threshold), which is
///           linear near 0
struct ValueScale {
  ScaleKind kind = ScaleKind::linear;
  float low = 0, high = 1;  ///< low < high; both > 0 for log
  float threshold = 1;      ///< symlog only, > 0

  /// 0 at low, 1 at high, below 0 or above 1 beyond (infinite for infinities); NaN for NaN. Rounding may
  /// carry values next to an end over it: below() and above() do not err.
  float place(float value) const;
  bool below(float value) const { return value < low; }
  bool above(float value) const { return value > high; }
  /// The inverse of place(): the value at t; low at 0 and high at 1 exactly.
  float value_at(float t) const;
  bool operator==(const ValueScale&) const = default;
};

/// A scale that can be drawn, whatever is asked for: NaN, equal or reversed ends, a log range that reaches 0
/// or below are mended (a range of one value v becomes v -+ |v|/2, or 0..1 at 0; for log the low end becomes
/// high * 1e-6; for symlog a threshold that is none becomes a thousandth of the larger end). Ranges that
/// float cannot resolve on the scale are widened. A scale that can be drawn stays as it is.
ValueScale usable(ValueScale scale);

/// Values for the labels of a colour bar or an axis, ascending, within [low, high]: round numbers (1, 2, 5
/// times a power of ten) for linear, powers of ten (with 2 and 5 where there are few) for log, both signs'
/// powers and 0 for symlog; linear ones also where a range is too narrow for powers. At most `most`.
std::vector<double> scale_ticks(const ValueScale& scale, int most);

enum class RangeKind { visible, full, selection, percentiles, fixed };
struct RangeFacts {
  RangeKind id;
  std::string_view name;  ///< for sessions
  std::string_view meaning;
};
/// `fixed` is set by hand, or locked to another panel's.
inline constexpr auto kRangeKinds =
    facts_table<RangeFacts>({{RangeKind::visible, "visible", "what is in view"},
                             {RangeKind::full, "full", "all that is known"},
                             {RangeKind::selection, "selection", "what is selected"},
                             {RangeKind::percentiles, "percentiles", "percentiles of what is in view"},
                             {RangeKind::fixed, "fixed", "fixed"}});
constexpr std::string_view name_of(RangeKind kind) { return kRangeKinds[kind].name; }

struct RangeChoice {
  RangeKind kind = RangeKind::visible;
  bool symmetric = false;  ///< -m..m, m the larger magnitude
  double low_percent = 1, high_percent = 99;
  float fixed_low = 0, fixed_high = 1;
  bool operator==(const RangeChoice&) const = default;
};

/// The p-th percentile (0..100) of the finite values, linear between the two nearest; NaN where there is
/// none. Reorders `values`.
float percentile(std::vector<float>& values, double p);

/// Counts of values in `bins` equal steps of the scale's place over [0, 1]; those below and above the range,
/// infinities among them, and NaN (missing) apart.
struct Histogram {
  std::vector<std::int64_t> counts;
  std::int64_t under = 0, over = 0, missing = 0;
};
Histogram histogram(const std::vector<float>& values, const ValueScale& scale, int bins);

/// The texels in view that are at hand, NaN among them; at most `most` of them, every n-th row and column.
std::vector<float> visible_values(const TileMap& tiles, const Camera& camera, MatrixSize size, int width,
                                  int height, std::size_t most);

/// The texels of what is selected: the columns, over all rows in view; or where there are none the row. A
/// texel counts as selected where one of its cells is. Empty where nothing is selected, or nothing of it in
/// view.
std::vector<float> selected_values(const TileMap& tiles, const Camera& camera, MatrixSize size, int width,
                                   int height, std::span<const Index> columns, std::optional<Index> row,
                                   std::size_t most);

/// The scale's ends as chosen: from `full` (known of the whole), `visible` (texels in view) and `selected`
/// (texels selected). Where the chosen set holds nothing that the scale can show the next wider one counts.
/// On a log scale only positive values count, and symmetric has no meaning. Always usable().
ValueScale scale_in_range(const RangeChoice& choice, ScaleKind kind, const TileStats& full,
                          const std::vector<float>& visible, const std::vector<float>& selected);

/// True if the largest finite magnitude is more than 30 times the 95th percentile of all finite magnitudes
/// (of few values, the second largest). On a linear scale, such an outlier would leave no colour range to the
/// others.
bool has_outlier(std::vector<float> values);

/// The linear part of symlog over magnitudes up to m: three decades below it; 1 where m is not positive and
/// finite.
float symlog_threshold(float largest_magnitude);

}  // namespace kvreplay::viewer
