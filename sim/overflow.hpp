#pragma once

#include "data/error.hpp"
#include "sim/head_group.hpp"

#include <cmath>
#include <limits>
#include <string>

namespace kvreplay {

/// Name of T in messages.
template <class T>
inline constexpr const char* kNumberText = sizeof(T) == 4 ? "float32 (see --precision f64)" : "float64";

/// Throws that a number of a head group, or `where` in it, is not finite: it is beyond T.
template <class T>
[[noreturn]] void report_not_finite(const HeadGroup<T>& group, const std::string& expected,
                                    const std::string& where = "") {
  throw InputError(
      "layer " + std::to_string(group.layer) + ", KV head " + std::to_string(group.kv_head) + where, expected,
      std::string("an overflow of ") + kNumberText<T>);
}

template <class T>
[[noreturn]] void report_overflow(const HeadGroup<T>& group, Index g, const std::string& where) {
  if (std::isnan(group.rule.scale))
    throw InputError("attention rule", "a scale, 1 / sqrt(d) in most models", "none");
  throw InputError("layer " + std::to_string(group.layer) + ", query head " +
                       std::to_string(group.kv_head * group.G() + g) + ", " + where,
                   std::string("logits and outputs within ") + kNumberText<T>, "an overflow");
}

/// Query head g's sink logit in T, -inf where it has none. Throws InputError where it is beyond T.
template <class T>
T sink_logit(const HeadGroup<T>& group, Index g) {
  const T sink = static_cast<T>(group.sink(g));
  if (sink == std::numeric_limits<T>::infinity()) report_overflow(group, g, "sink logit");
  return sink;
}

}  // namespace kvreplay
