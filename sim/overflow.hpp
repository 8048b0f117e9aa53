#pragma once

#include "data/error.hpp"
#include "sim/head_group.hpp"

#include <cmath>
#include <limits>
#include <string>

namespace kvreplay {

template <class T>
[[noreturn]] void report_overflow(const HeadGroup<T>& group, Index g, const std::string& where) {
  if (std::isnan(group.rule.scale))
    throw InputError("attention rule", "a scale, 1 / sqrt(d) in most models", "none");
  throw InputError("layer " + std::to_string(group.layer) + ", query head " +
                       std::to_string(group.kv_head * group.G() + g) + ", " + where,
                   std::string("logits and outputs within ") +
                       (sizeof(T) == 4 ? "float32 (see --precision f64)" : "float64"),
                   "an overflow");
}

/// Query head g's sink logit in T, -inf where it has none. Throws InputError where it is beyond T.
template <class T>
T sink_logit(const HeadGroup<T>& group, Index g) {
  constexpr T infinity = std::numeric_limits<T>::infinity();
  if (group.rule.sink_logit.empty()) return -infinity;
  const T sink = static_cast<T>(group.rule.sink_logit[g]);
  if (sink == infinity) report_overflow(group, g, "sink logit");
  return sink;
}

}  // namespace kvreplay
