#pragma once

#include "sim/host_device.hpp"

#include <cmath>
#include <cstddef>

// Parts of the formulas for one row and one token, from the row's and the token's constants: scalars in T,
// for every backend. Symbols as in METRICS.md; g and e as in tiles.hpp's RowConstant.

namespace kvreplay {

/// 1 / (1 + exp(-x)), without overflow; 0 and 1 at -inf and +inf.
KVREPLAY_HOST_DEVICE inline double logistic(double x) {
  if (x >= 0) return 1 / (1 + std::exp(-x));
  const double e = std::exp(x);
  return e / (1 + e);
}

/// A row's largest column (logit z) against all the others (log-sum-exp rest_lse, -inf where there are none).
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

/// A row after pass one.
template <class T>
struct EntryRow {
  T lse;
  T rescale;          ///< g = exp(min(lse, 0))
  T zero_logit;       ///< e = exp(-max(lse, 0))
  T zero_weight_sum;  ///< g + e
  T zero_logit_out_sq;
  T out_centred_sq;  ///< ||o - centre||^2
  T centre_dot_out;  ///< centre . (o - centre)
};

KVREPLAY_HOST_DEVICE inline EntryRow<double> entry_row(double lse, double out_sq, double out_centred_sq = 0,
                                                       double centre_dot_out = 0) {
  const double rescale = std::exp(lse < 0 ? lse : 0.0), zero_logit = std::exp(lse > 0 ? -lse : 0.0);
  return {lse,
          rescale,
          zero_logit,
          rescale + zero_logit,
          zero_logit * zero_logit * out_sq,
          out_centred_sq,
          centre_dot_out};
}

/// A token's value.
template <class T>
struct EntryToken {
  T value_sq;          ///< ||v||^2
  T value_centred_sq;  ///< ||v - centre||^2
  T centre_dot_value;  ///< centre . (v - centre)
};

/// A logit, and z_raw dz/dz_raw, which takes its place in the Taylor scores.
template <class T>
struct EntryLogit {
  T z;
  T taylor;
};

/// z = cap tanh(raw / cap); cap 0: none.
template <class T>
KVREPLAY_HOST_DEVICE inline EntryLogit<T> entry_logit(T raw, T cap) {
  if (!(cap > 0)) return {raw, raw};
  const T x = std::abs(raw / cap), e = std::exp(-2 * x), per_sum = 1 / (1 + e);
  // 1 - exp(-2x) cancels for small x; 1 - tanh^2 = 4 exp(-2x) / (1 + exp(-2x))^2 never does.
  const T tanh = (x < T(0.25) ? -std::expm1(-2 * x) : 1 - e) * per_sum;
  return {std::copysign(cap * tanh, raw), raw * (4 * e * per_sum * per_sum)};
}

/// Below this share of its terms a sum of squares has cancelled: 8 bits of float's 24 are lost, or 20 of
/// double's 53. It is then to be taken from the vectors themselves.
template <class T>
inline constexpr T kCancelled = sizeof(T) == 4 ? T(1) / 256 : T(1) / 1048576;

/// u = ||v - o||^2 and the products of its vectors.
template <class T>
struct EntryDistances {
  T u;
  T v_dot_diff;  ///< v . (v - o)
  T o_dot_diff;  ///< o . (v - o)
};

/// a b + c: one instruction of a device.
template <class T>
KVREPLAY_HOST_DEVICE inline T multiply_add(T a, T b, T c) {
#if defined(__CUDA_ARCH__)
  return fma(a, b, c);
#else
  return a * b + c;
#endif
}

/// v_dot_o times `scale`: (v - centre) . (o - centre).
template <class T>
KVREPLAY_HOST_DEVICE inline EntryDistances<T> entry_distances(const EntryRow<T>& row, const EntryToken<T>& v,
                                                              T v_dot_o, T scale = 1) {
  // Terms of the token alone or of the row alone are added up once.
  return {multiply_add(-2 * scale, v_dot_o, v.value_centred_sq + row.out_centred_sq),
          (v.value_centred_sq + v.centre_dot_value) - multiply_add(v_dot_o, scale, row.centre_dot_out),
          multiply_add(v_dot_o, scale, v.centre_dot_value) - (row.out_centred_sq + row.centre_dot_out)};
}

template <class T>
KVREPLAY_HOST_DEVICE inline bool distances_cancelled(const EntryRow<T>& row, const EntryToken<T>& v, T u) {
  return !(u >= kCancelled<T> * (v.value_centred_sq + row.out_centred_sq));  // NaN counts: inf - inf
}

/// A token's distances from the vectors: value (anything with []) and centre [d_v], outputs [d_v] `stride`
/// apart, value and outputs centred.
template <class T, class Value>
KVREPLAY_HOST_DEVICE inline EntryDistances<T> entry_differences(const Value& value, const T* outputs,
                                                                std::ptrdiff_t stride, const T* centre,
                                                                std::ptrdiff_t d_v) {
  EntryDistances<T> sum{0, 0, 0};
  for (std::ptrdiff_t c = 0; c < d_v; ++c) {
    const T v = value[c], o = outputs[c * stride], diff = v - o;
    sum.u += diff * diff;
    sum.v_dot_diff += (v + centre[c]) * diff;
    sum.o_dot_diff += (o + centre[c]) * diff;
  }
  return sum;
}

/// of_value v + of_output o.
template <class T>
struct EntryVector {
  T of_value;
  T of_output;
};

/// ||of_value v + of_output o||^2 from the vectors, as above.
template <class T>
KVREPLAY_HOST_DEVICE inline T entry_vector_sq(const EntryVector<T>& of, const T* value, const T* outputs,
                                              std::ptrdiff_t stride, const T* centre, std::ptrdiff_t d_v) {
  T sum = 0;
  for (std::ptrdiff_t c = 0; c < d_v; ++c) {
    const T x = of.of_value * (value[c] + centre[c]) + of.of_output * (outputs[c * stride] + centre[c]);
    sum += x * x;
  }
  return sum;
}

/// A squared norm as a sum of terms that may cancel, and the sum of those that cannot.
template <class T>
struct EntrySquare {
  T sum;
  T squares;
  KVREPLAY_HOST_DEVICE bool cancelled() const { return !(sum >= kCancelled<T> * squares); }
};

/// Beyond this a difference of exponentials has lost two bits at most.
template <class T>
inline constexpr T kSmallLogit = sizeof(T) == 4 ? T(0.25) : T(0.5);

/// expm1 of -kSmallLogit .. kSmallLogit: its minimax polynomial, to 1e-7, without a branch: all lanes of a
/// warp come here for the sake of a few.
KVREPLAY_HOST_DEVICE inline float small_expm1(float x) {
  float sum = 0.00835195F;
  for (const float coefficient : {0.0417753F, 0.16666623F, 0.4999983F, 1.0F}) sum = coefficient + x * sum;
  return x * sum;
}

/// 1 / x of an ordinary number.
template <class T>
KVREPLAY_HOST_DEVICE inline T reciprocal(T x) {
#if defined(__CUDA_ARCH__)
  if constexpr (sizeof(T) == sizeof(float)) {
    T found;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(found) : "f"(x));
    return found;
  }
#endif
  return 1 / x;
}

/// g t, t = a (exp(-z) - 1): exp(-z) is never formed, and near z = 0, where e - g a cancels, its series takes
/// over.
template <class T>
KVREPLAY_HOST_DEVICE inline T scaled_change(const EntryRow<T>& row, T a, T z) {
  const T ga = row.rescale * a, far = row.zero_logit - ga;
  if constexpr (sizeof(T) == sizeof(float)) {
    const T near = ga * small_expm1(-z);
    return std::abs(z) < kSmallLogit<T> ? near : far;
  } else {
    return std::abs(z) < kSmallLogit<T> ? ga * std::expm1(-z) : far;
  }
}

/// 1 / (g (1 + t)).
template <class T>
KVREPLAY_HOST_DEVICE inline T scaled_norm(const EntryRow<T>& row, T a) {
  return reciprocal(row.zero_weight_sum - row.rescale * a);
}

/// Range of weights, logits and squares: any, also beyond T, or finite in T.
enum class Range { any, finite };

/// w^2 square; 0 where w is 0, for a square beyond T as well.
template <Range kRange = Range::any, class T>
KVREPLAY_HOST_DEVICE inline T weighted_square(T w, T square) {
  return kRange == Range::finite || w != 0 ? w * w * square : T(0);
}

/// Lower bound of a share of the attention, or of all of it: less counts as none, and a quotient by more
/// stays finite.
inline constexpr double kNoAttention = 1e-280;

/// s/(1-s) ||mean - v|| of CAOTE, from a token's attention, that of all `others` and the distance. Where it
/// holds all there is, the factor is s.
KVREPLAY_HOST_DEVICE inline double caote_score(double attn, double others, double distance) {
  if (!(attn > 0 && distance > 0)) return 0;
  return others > kNoAttention * attn ? attn / others * distance : distance;
}

}  // namespace kvreplay
