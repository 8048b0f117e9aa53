#include "viewer/model/value_scale.hpp"

#include "viewer/model/numbers.hpp"

#include <algorithm>
#include <array>
#include <cmath>

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

}  // namespace kvreplay::viewer
