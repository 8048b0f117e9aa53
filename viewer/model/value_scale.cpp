#include "viewer/model/value_scale.hpp"

#include "viewer/model/heatmap_image.hpp"
#include "viewer/model/numbers.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <set>

namespace kvreplay::viewer {
namespace {

// Ends stay where their difference neither overflows nor is lost in denormal numbers, which GPUs take for 0.
constexpr float kLargest = 1e38F, kSmallest = 1e-36F;

float symlog(float value, float threshold) {
  const float size = std::log10(1.0F + std::abs(value) / threshold);
  return value < 0 ? -size : size;
}

/// The part of float's range of 24 bits that a scale's range must at least take up.
constexpr float kResolved = 1e-4F;

bool resolved(const ValueScale& scale) {
  if (scale.kind == ScaleKind::log) return std::log10(scale.high / scale.low) >= kResolved;
  if (scale.kind == ScaleKind::symlog) {
    const float low = symlog(scale.low, scale.threshold), high = symlog(scale.high, scale.threshold);
    return high - low >= kResolved * std::max(std::abs(low), std::abs(high));
  }
  return scale.high - scale.low >= kSmallest;
}

ValueScale widened(ValueScale scale) {
  double reach = static_cast<double>(scale.high) - scale.low;
  const double middle = (static_cast<double>(scale.high) + scale.low) / 2;
  reach = std::max(reach, std::abs(middle) * 1e-6);
  while (!resolved(scale)) {
    scale.low = static_cast<float>(middle - reach);
    scale.high = static_cast<float>(middle + reach);
    reach *= 2;
  }
  return scale;
}

using Ticks = std::vector<double>;

/// `number` times 10^n, correctly rounded as far as 10^|n| is exact: 3 tenths are 0.3, which 3 * 0.1 is not.
double scaled(double number, int n) {
  return n < 0 ? number / std::pow(10.0, -n) : number * std::pow(10.0, n);
}

/// True if a tick is within the range. The range's ends are floats: the float of 0.1 is above 0.1, so the
/// tick is rounded, too.
bool in_range(double tick, const ValueScale& scale) {
  const auto value = static_cast<float>(tick);
  return value >= scale.low && value <= scale.high;
}

bool too_many(const Ticks& ticks, int most) { return ticks.size() > static_cast<std::size_t>(most); }

/// Multiples of the smallest 1, 2 or 5 times a power of ten of which there are no more than `most`.
Ticks linear_ticks(const ValueScale& scale, int most) {
  constexpr std::array kSteps = {1.0, 2.0, 5.0};
  const double low = scale.low, high = scale.high;
  Ticks finer;
  for (int decade = static_cast<int>(std::floor(std::log10((high - low) / most))) - 1;; ++decade)
    for (const double step : kSteps) {
      // Beyond by one on both sides: in_range() decides.
      const double size = scaled(step, decade);
      const double first = std::floor(low / size), last = std::ceil(high / size);
      Ticks ticks;
      for (double multiple = first; multiple <= last; ++multiple)
        if (const double tick = scaled(multiple * step, decade); in_range(tick, scale))
          ticks.push_back(tick == 0 ? 0.0 : tick);
      if (!ticks.empty() && !too_many(ticks, most)) return ticks;
      if (ticks.empty()) {
        finer.resize(std::min(finer.size(), static_cast<std::size_t>(most)));
        return finer;
      }
      finer = std::move(ticks);
    }
}

int decade_below(double value) { return static_cast<int>(std::floor(std::log10(value))); }

/// The powers of ten of every n-th decade, n as small as `most` allows.
Ticks log_ticks(const ValueScale& scale, int most) {
  const int first = decade_below(scale.low), last = decade_below(scale.high) + 1;
  Ticks ticks;
  for (int every = 1; every == 1 || too_many(ticks, most); ++every) {
    Ticks fewer;
    for (int n = first; n <= last; ++n)
      if (n % every == 0 && in_range(scaled(1, n), scale)) fewer.push_back(scaled(1, n));
    if (every > 1 && fewer.empty()) {
      ticks.resize(most);
      break;
    }
    ticks = std::move(fewer);
  }
  if (ticks.size() > 3) return ticks;
  Ticks with_parts;
  for (int n = first; n <= last; ++n)
    for (const double part : {1.0, 2.0, 5.0})
      if (in_range(scaled(part, n), scale)) with_parts.push_back(scaled(part, n));
  return too_many(with_parts, most) ? ticks : with_parts;
}

/// 0 and both signs' powers of ten from the threshold on, every n-th decade counted from the outermost.
Ticks symlog_ticks(const ValueScale& scale, int most) {
  const double largest = std::max(std::abs(scale.low), std::abs(scale.high));
  const int last = decade_below(largest * (1 + 1e-6)), first = decade_below(scale.threshold * (1 - 1e-6)) + 1;
  Ticks ticks;
  for (int every = 1; every == 1 || (too_many(ticks, most) && every <= last - first + 1); ++every) {
    ticks.clear();
    for (int n = last; n >= first; n -= every) ticks.push_back(-scaled(1, n));
    ticks.push_back(0);
    for (int n = last; n >= first; n -= every) ticks.push_back(scaled(1, n));
    ticks.erase(
        std::remove_if(ticks.begin(), ticks.end(), [&](double tick) { return !in_range(tick, scale); }),
        ticks.end());
  }
  if (too_many(ticks, most)) {
    if (in_range(0, scale))
      ticks = {0};
    else
      ticks.resize(most);
  }
  std::sort(ticks.begin(), ticks.end());
  return ticks;
}

TileStats stats_of(const std::vector<float>& values) {
  TileStats stats;
  stats.add(values.data(), std::ssize(values));
  return stats;
}

/// True if the values allow a range on this scale.
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

/// Values at hand where some rows and columns cross: at most `most`, every n-th row and column.
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

float ValueScale::place(float value) const {
  if (std::isnan(value)) return value;
  if (std::isinf(value)) return value;
  if (kind == ScaleKind::log)
    return value > 0 ? std::log10(value / low) / std::log10(high / low) : -kInfinity;
  if (kind == ScaleKind::symlog) {
    const float start = symlog(low, threshold);
    return (symlog(value, threshold) - start) / (symlog(high, threshold) - start);
  }
  return (value - low) / (high - low);
}

float ValueScale::value_at(float t) const {
  if (t == 0) return low;
  if (t == 1) return high;
  const double from = low, to = high;
  if (kind == ScaleKind::log) return static_cast<float>(from * std::pow(to / from, static_cast<double>(t)));
  if (kind == ScaleKind::symlog) {
    const double unit = threshold;
    const auto s = [&](double v) { return std::copysign(std::log10(1 + std::abs(v) / unit), v); };
    const double at = s(from) + t * (s(to) - s(from));
    return static_cast<float>(std::copysign(unit * (std::pow(10.0, std::abs(at)) - 1), at));
  }
  return static_cast<float>(from + t * (to - from));
}

ValueScale usable(ValueScale scale) {
  float low = scale.low, high = scale.high;
  if (std::isnan(low) && std::isnan(high)) {
    low = 0;
    high = 1;
  }
  if (std::isnan(low)) low = high;
  if (std::isnan(high)) high = low;
  low = std::clamp(low, -kLargest, kLargest);
  high = std::clamp(high, -kLargest, kLargest);
  if (low > high) std::swap(low, high);
  if (high - low < kSmallest) {
    const float reach = std::abs(low) / 2;
    high = reach < 4 * kSmallest ? 1.0F : low + reach;
    low = reach < 4 * kSmallest ? 0.0F : low - reach;
  }
  low = std::max(low, -kLargest);
  high = std::min(high, kLargest);
  if (scale.kind == ScaleKind::log) {
    high = high > 0 ? std::max(high, 10 * kSmallest) : 1.0F;
    if (low < high * 1e-30F || low < kSmallest / 10) low = std::max(high * 1e-6F, kSmallest / 10);
  }
  scale.low = low;
  scale.high = high;
  if (scale.kind != ScaleKind::symlog) {
    scale.threshold = 1;  // has no meaning, but NaN would make a scale differ from itself
  } else {
    const float largest = std::max(std::abs(low), std::abs(high));
    if (!(scale.threshold > 0) || !std::isfinite(scale.threshold)) scale.threshold = largest * 1e-3F;
    // Set well within the bounds: widening below makes `largest` larger.
    if (scale.threshold < std::max(largest * 1e-12F, kSmallest))
      scale.threshold = std::max(largest * 4e-12F, kSmallest);
    if (scale.threshold > largest * 10) scale.threshold = largest * 5;
  }
  return widened(scale);
}

std::vector<double> scale_ticks(const ValueScale& scale, int most) {
  if (most <= 0) return {};
  const ValueScale drawn = usable(scale);
  Ticks ticks;
  if (drawn.kind == ScaleKind::log) ticks = log_ticks(drawn, most);
  if (drawn.kind == ScaleKind::symlog) ticks = symlog_ticks(drawn, most);
  if (ticks.size() < 2 && (ticks.empty() || most > 1)) {
    Ticks even = linear_ticks(drawn, most);
    if (even.size() > ticks.size()) return even;
  }
  return ticks;
}

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
