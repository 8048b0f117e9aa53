#include "viewer/model/value_range.hpp"

#include "viewer/model/heatmap_image.hpp"
#include "viewer/model/numbers.hpp"

#include <algorithm>
#include <cmath>
#include <set>

namespace kvreplay::viewer {
namespace {

TileStats stats_of(const std::vector<float>& values) {
  TileStats stats;
  stats.add(values.data(), std::ssize(values));
  return stats;
}

/// Whether there is anything that a range on this scale can hold.
bool says_something(const TileStats& stats, ScaleKind kind) {
  return stats.finite > 0 && (kind != ScaleKind::log || stats.max > 0);
}

struct Ends {
  float low = kNaN, high = kNaN;
};

Ends ends_of(const TileStats& stats, ScaleKind kind) {
  if (stats.finite == 0) return {};
  return {kind == ScaleKind::log ? stats.least_positive : stats.min, stats.max};
}

Ends percentile_ends(const RangeChoice& choice, std::vector<float> values, ScaleKind kind) {
  if (kind == ScaleKind::log)
    values.erase(std::remove_if(values.begin(), values.end(), [](float v) { return !(v > 0); }),
                 values.end());
  return {percentile(values, choice.low_percent), percentile(values, choice.high_percent)};
}

using Texels = std::vector<std::int32_t>;

/// The texels that pixels show along an axis, each once, ascending.
Texels shown_once(const AxisView& axis, int pixels, Index cells, int level) {
  Texels shown = axis_texels(axis, pixels, cells, level);
  shown.erase(std::remove(shown.begin(), shown.end(), -1), shown.end());
  shown.erase(std::unique(shown.begin(), shown.end()), shown.end());
  return shown;
}

/// Those at hand where some rows and columns cross: at most `most`, every n-th row and column.
std::vector<float> values_at(const TileMap& tiles, MatrixSize size, int level, const Texels& rows,
                             const Texels& columns, std::size_t most) {
  std::vector<float> values;
  if (most == 0) return values;
  std::size_t row_step = 1, column_step = 1;
  const auto taken = [](std::size_t all, std::size_t step) { return (all + step - 1) / step; };
  while (taken(rows.size(), row_step) * taken(columns.size(), column_step) > most)
    ++(taken(rows.size(), row_step) > taken(columns.size(), column_step) ? row_step : column_step);
  values.reserve(taken(rows.size(), row_step) * taken(columns.size(), column_step));
  TexelReader texels(tiles, size, level);
  for (std::size_t r = 0; r < rows.size(); r += row_step)
    for (std::size_t c = 0; c < columns.size(); c += column_step)
      if (const std::optional<float> value = texels.at(rows[r], columns[c])) values.push_back(*value);
  return values;
}

}  // namespace

float percentile(std::vector<float>& values, double p) {
  const auto end =
      std::partition(values.begin(), values.end(), [](float value) { return std::isfinite(value); });
  const auto known = end - values.begin();
  if (known == 0 || std::isnan(p)) return kNaN;
  const double place = std::clamp(p, 0.0, 100.0) / 100 * static_cast<double>(known - 1);
  const auto below = static_cast<std::ptrdiff_t>(place);
  const auto at = values.begin() + below;
  std::nth_element(values.begin(), at, end);
  const double share = place - static_cast<double>(below);
  if (share == 0) return *at;
  const double low = *at, high = *std::min_element(at + 1, end);
  return static_cast<float>(low + share * (high - low));
}

Histogram histogram(const std::vector<float>& values, const ValueScale& scale, int bins) {
  Histogram counted;
  counted.counts.assign(std::max(bins, 1), 0);
  const auto last = static_cast<float>(counted.counts.size() - 1);
  for (const float value : values) {
    if (std::isnan(value))
      ++counted.missing;
    else if (scale.below(value))
      ++counted.under;
    else if (scale.above(value))
      ++counted.over;
    else
      ++counted.counts[static_cast<std::size_t>(
          std::clamp(scale.place(value) * static_cast<float>(counted.counts.size()), 0.0F, last))];
  }
  return counted;
}

std::vector<float> visible_values(const TileMap& tiles, const Camera& camera, MatrixSize size, int width,
                                  int height, std::size_t most) {
  const int level = drawn_level(camera, size);
  return values_at(tiles, size, level, shown_once(camera.y, height, size.rows, level),
                   shown_once(camera.x, width, size.columns, level), most);
}

std::vector<float> selected_values(const TileMap& tiles, const Camera& camera, MatrixSize size, int width,
                                   int height, std::span<const Index> columns, std::optional<Index> row,
                                   std::size_t most) {
  const int level = drawn_level(camera, size);
  Texels shown_rows = shown_once(camera.y, height, size.rows, level);
  Texels shown_columns = shown_once(camera.x, width, size.columns, level);
  const auto keep = [level](Texels& shown, std::span<const Index> cells) {
    std::set<Index> wanted;
    for (const Index cell : cells) wanted.insert(cell >> level);
    std::erase_if(shown, [&](std::int32_t texel) { return !wanted.contains(texel); });
  };
  if (!columns.empty())
    keep(shown_columns, columns);
  else if (row)
    keep(shown_rows, {&*row, 1});
  else
    return {};
  return values_at(tiles, size, level, shown_rows, shown_columns, most);
}

ValueScale scale_in_range(const RangeChoice& choice, ScaleKind kind, const TileStats& full,
                          const std::vector<float>& visible, const std::vector<float>& selected) {
  Ends ends{choice.fixed_low, choice.fixed_high};
  if (choice.kind != RangeKind::fixed) {
    const bool by_visible = choice.kind == RangeKind::visible || choice.kind == RangeKind::percentiles;
    TileStats chosen = choice.kind == RangeKind::selection ? stats_of(selected) : TileStats{};
    const bool by_selected = says_something(chosen, kind);
    if (!by_selected && (by_visible || choice.kind == RangeKind::selection)) chosen = stats_of(visible);
    const bool in_view = !by_selected && says_something(chosen, kind);
    if (!says_something(chosen, kind)) chosen = full;
    ends = choice.kind == RangeKind::percentiles && in_view ? percentile_ends(choice, visible, kind)
                                                            : ends_of(chosen, kind);
  }
  if (choice.symmetric && kind != ScaleKind::log) {
    float reach = std::max(std::abs(ends.low), std::abs(ends.high));
    if (reach == 0) reach = 1;  // 0 stays in the middle
    ends = {-reach, reach};
  }
  ValueScale scale{kind, ends.low, ends.high, 0};
  scale = usable(scale);
  if (kind == ScaleKind::symlog)
    scale.threshold = symlog_threshold(std::max(std::abs(scale.low), std::abs(scale.high)));
  return usable(scale);
}

bool has_outlier(std::vector<float> values) {
  std::erase_if(values, [](float value) { return !std::isfinite(value); });
  if (values.size() < 2) return false;
  for (float& value : values) value = std::abs(value);
  const auto last = static_cast<std::ptrdiff_t>(values.size()) - 1;
  const auto at =
      values.begin() + std::min(static_cast<std::ptrdiff_t>(0.95 * static_cast<double>(last)), last - 1);
  std::nth_element(values.begin(), at, values.end());
  return *std::max_element(at + 1, values.end()) > 30 * *at;
}

float symlog_threshold(float largest_magnitude) {
  return largest_magnitude > 0 && std::isfinite(largest_magnitude) ? largest_magnitude * 1e-3F : 1.0F;
}

}  // namespace kvreplay::viewer
