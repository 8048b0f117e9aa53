#pragma once

#include "data/facts_table.hpp"
#include "viewer/model/tiles.hpp"
#include "viewer/model/value_scale.hpp"

#include <optional>
#include <span>
#include <string_view>
#include <vector>

// Which values the colours span.

namespace kvreplay::viewer {

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

/// The same of what is selected: the columns, over all rows in view; or where there are none the row. A texel
/// counts as selected where one of its cells is. Empty where nothing is selected, or nothing of it in view.
std::vector<float> selected_values(const TileMap& tiles, const Camera& camera, MatrixSize size, int width,
                                   int height, std::span<const Index> columns, std::optional<Index> row,
                                   std::size_t most);

/// The scale's ends as chosen: from `full` (known of the whole), `visible` (texels in view) and `selected`
/// (texels selected). Where the chosen set holds nothing that the scale can show the next wider one counts.
/// On a log scale only positive values count, and symmetric has no meaning. Always usable().
ValueScale scale_in_range(const RangeChoice& choice, ScaleKind kind, const TileStats& full,
                          const std::vector<float>& visible, const std::vector<float>& selected);

/// Whether the largest finite magnitude is more than 30 times the 95th percentile of all (of few values the
/// next smaller one): on a linear scale it would leave no colour to the others.
bool has_outlier(std::vector<float> values);

/// The linear part of symlog over magnitudes up to m: three decades below it; 1 where m is not positive and
/// finite.
float symlog_threshold(float largest_magnitude);

}  // namespace kvreplay::viewer
