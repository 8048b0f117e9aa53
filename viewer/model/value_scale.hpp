#pragma once

#include <optional>
#include <string_view>
#include <vector>

namespace kvreplay::viewer {

enum class ScaleKind { linear, log, symlog };
std::string_view name_of(ScaleKind kind);
std::optional<ScaleKind> scale_named(std::string_view name);

/// How a value becomes a place on the colour bar. Computed in float, operation by operation as in the shader
/// (viewer/gl/heatmap_shader.hpp).
///   linear  t = (v - low) / (high - low)
///   log     the same of log10; values <= 0 lie below every range
///   symlog  the same of s(v) = sign(v) log10(1 + |v| / threshold), which is linear near 0
struct ValueScale {
  ScaleKind kind = ScaleKind::linear;
  float low = 0, high = 1;  ///< low < high; both > 0 for log
  float threshold = 1;      ///< symlog only, > 0

  /// 0 at low, 1 at high, below 0 or above 1 beyond; NaN for NaN.
  float place(float value) const;
  /// The inverse of place(): the value at t.
  float value_at(float t) const;
  bool operator==(const ValueScale&) const = default;
};

/// A scale that can be drawn, whatever is asked for: NaN, equal or reversed ends, a log range that reaches 0
/// or below are mended (a range of one value v becomes v -+ |v|/2, or 0..1 at 0; for log the low end becomes
/// high * 1e-6).
ValueScale usable(ValueScale scale);

/// Values for the labels of a colour bar or an axis, ascending, within [low, high]: round numbers (1, 2, 5
/// times a power of ten) for linear, powers of ten (with 2 and 5 where there are few) for log, both signs'
/// powers and 0 for symlog. At most `most`, at least one where the range holds a round number.
std::vector<double> scale_ticks(const ValueScale& scale, int most);

}  // namespace kvreplay::viewer
