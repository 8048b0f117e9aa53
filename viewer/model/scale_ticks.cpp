#include "viewer/model/value_scale.hpp"

#include <algorithm>
#include <array>
#include <cmath>

namespace kvreplay::viewer {
namespace {

using Ticks = std::vector<double>;

/// `number` times 10^n, correctly rounded as far as 10^|n| is exact: 3 tenths are 0.3, which 3 * 0.1 is not.
double scaled(double number, int n) {
  return n < 0 ? number / std::pow(10.0, -n) : number * std::pow(10.0, n);
}

/// Whether a tick is within the range, whose ends are floats: that of 0.1 lies above 0.1.
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

}  // namespace

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

}  // namespace kvreplay::viewer
