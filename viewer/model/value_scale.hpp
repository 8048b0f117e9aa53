#pragma once

#include "data/facts_table.hpp"

#include <string_view>
#include <vector>

namespace kvreplay::viewer {

enum class ScaleKind { linear, log, symlog };
struct ScaleFacts {
  ScaleKind id;
  std::string_view name;
};
inline constexpr auto kScaleKinds = facts_table<ScaleFacts>(
    {{ScaleKind::linear, "linear"}, {ScaleKind::log, "log"}, {ScaleKind::symlog, "symlog"}});
constexpr std::string_view name_of(ScaleKind kind) { return kScaleKinds[kind].name; }

/// How a value becomes a place t on the colour bar. Computed in float, operation by operation as in the
/// shader (viewer/gl/heatmap_shader.hpp).
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

}  // namespace kvreplay::viewer
