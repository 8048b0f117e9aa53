#pragma once

#include "sim/host_device.hpp"

#include <cmath>
#include <limits>

// A row's largest column, scored from what remains of the row without it. Scalar formulas, for every backend.

namespace kvreplay {

/// 1 / (1 + exp(-x)), without overflow; 0 and 1 at -inf and +inf.
KVREPLAY_HOST_DEVICE inline double logistic(double x) {
  if (x >= 0) return 1 / (1 + std::exp(-x));
  const double e = std::exp(x);
  return e / (1 + e);
}

/// The largest column (logit z) against all the others of its row (log-sum-exp rest_lse, -inf where there are
/// none).
struct LargestColumn {
  double a;            ///< its weight
  double one_minus_a;  ///< the others' weight, exact however small
  double lse;          ///< of the whole row
  double delta;        ///< change of its weight when its key is zeroed, that is, when z becomes 0
};

KVREPLAY_HOST_DEVICE inline LargestColumn largest_column(double z, double rest_lse) {
  LargestColumn c;
  const double gap = z - rest_lse;  // +inf where it is alone
  c.a = logistic(gap);
  c.one_minus_a = logistic(-gap);
  c.lse = gap >= 0 ? z + std::log1p(std::exp(-gap)) : rest_lse + std::log1p(std::exp(gap));
  c.delta = z >= 0 ? c.a * std::expm1(-z) * logistic(rest_lse)
                   : -c.one_minus_a * std::expm1(z) * logistic(-rest_lse);
  return c;
}

/// A share of the attention, or all of it, below this is none: what is divided by a larger one stays finite.
inline constexpr double kNoAttention = 1e-280;

/// s/(1-s) ||mean - v|| of CAOTE, from a token's attention, that of all `others` and the distance. Where it
/// holds all there is, the factor is s.
KVREPLAY_HOST_DEVICE inline double caote_score(double attn, double others, double distance) {
  if (!(attn > 0 && distance > 0)) return 0;
  return others > kNoAttention * attn ? attn / others * distance : distance;
}

}  // namespace kvreplay
