#pragma once

#include "sim/tokens/largest_column.hpp"

#include <cmath>
#include <cstddef>

// What one row does with one token, from the row's and the token's constants: scalar formulas in T, for every
// backend. Symbols as in METRICS.md; g and e as in tiles.hpp's RowConstant.

namespace kvreplay {

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
  // What is the token's or the row's alone is added up once.
  return {multiply_add(-2 * scale, v_dot_o, v.value_centred_sq + row.out_centred_sq),
          (v.value_centred_sq + v.centre_dot_value) - multiply_add(v_dot_o, scale, row.centre_dot_out),
          multiply_add(v_dot_o, scale, v.centre_dot_value) - (row.out_centred_sq + row.centre_dot_out)};
}

template <class T>
KVREPLAY_HOST_DEVICE inline bool distances_cancelled(const EntryRow<T>& row, const EntryToken<T>& v, T u) {
  return !(u >= kCancelled<T> * (v.value_centred_sq + row.out_centred_sq));  // NaN counts: inf - inf
}

/// The same distances from the vectors: value (anything with []) and centre [d_v], outputs [d_v] `stride`
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

/// || of_value v + of_output o ||^2 from the vectors, as above.
template <class T>
KVREPLAY_HOST_DEVICE inline T entry_combination_sq(T of_value, T of_output, const T* value, const T* outputs,
                                                   std::ptrdiff_t stride, const T* centre,
                                                   std::ptrdiff_t d_v) {
  T sum = 0;
  for (std::ptrdiff_t c = 0; c < d_v; ++c) {
    const T x = of_value * (value[c] + centre[c]) + of_output * (outputs[c * stride] + centre[c]);
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

/// ||v + z (v - o)||^2, z as the Taylor scores take it.
template <class T>
KVREPLAY_HOST_DEVICE inline EntrySquare<T> joint_square(T taylor, T value_sq, const EntryDistances<T>& to) {
  const T squares = value_sq + taylor * taylor * to.u;
  return {squares + 2 * taylor * to.v_dot_diff, squares};
}

/// Beyond this a difference of exponentials has lost two bits at most.
template <class T>
inline constexpr T kSmallLogit = sizeof(T) == 4 ? T(0.25) : T(0.5);

/// expm1 of -kSmallLogit .. kSmallLogit. In float its minimax polynomial, to 1e-7, without a branch: all
/// lanes of a warp come here for the sake of a few.
template <class T>
KVREPLAY_HOST_DEVICE inline T small_expm1(T x) {
  if constexpr (sizeof(T) == sizeof(double)) {
    return std::expm1(x);
  } else {
    T sum = T(0.00835195);
    for (const T coefficient : {T(0.0417753), T(0.16666623), T(0.4999983), T(1)}) sum = coefficient + x * sum;
    return x * sum;
  }
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
  const T ga = row.rescale * a;
  const T near = ga * small_expm1(-z), far = row.zero_logit - ga;
  return std::abs(z) < kSmallLogit<T> ? near : far;
}

/// 1 / (g (1 + t)).
template <class T>
KVREPLAY_HOST_DEVICE inline T scaled_norm(const EntryRow<T>& row, T a) {
  return reciprocal(row.zero_weight_sum - row.rescale * a);
}

/// Whether weights, logits and squares may be beyond T.
enum class Range { any, finite };

/// w^2 square; 0 where w is 0, for a square beyond T as well.
template <Range kRange = Range::any, class T>
KVREPLAY_HOST_DEVICE inline T weighted_square(T w, T square) {
  return kRange == Range::finite || w != 0 ? w * w * square : T(0);
}

/// (a z)^2 u.
template <Range kRange = Range::any, class T>
KVREPLAY_HOST_DEVICE inline T key_entry(T a, T taylor, T u) {
  return weighted_square<kRange>(kRange == Range::finite || a > 0 ? a * taylor : T(0), u);
}

/// c^2 u, c = t / (1 + t).
template <Range kRange = Range::any, class T>
KVREPLAY_HOST_DEVICE inline T exact_key_entry(const EntryRow<T>& row, T a, T z, T u) {
  return weighted_square<kRange>(scaled_change(row, a, z) * scaled_norm(row, a), u);
}

/// g^2 (1 + t)^2 ||a (1 - c) v + c o||^2 = ||g a (v - o) + e o||^2.
template <class T>
KVREPLAY_HOST_DEVICE inline EntrySquare<T> exact_joint_square(const EntryRow<T>& row, T a,
                                                              const EntryDistances<T>& to) {
  const T ga = row.rescale * a, cross = 2 * row.zero_logit * to.o_dot_diff;
  return {multiply_add(ga, multiply_add(ga, to.u, cross), row.zero_logit_out_sq),
          multiply_add(ga * ga, to.u, row.zero_logit_out_sq)};
}

/// (a / (1 - a))^2 u.
template <Range kRange = Range::any, class T>
KVREPLAY_HOST_DEVICE inline T exact_remove_entry(T a, T u) {
  return weighted_square<kRange>(a * reciprocal(1 - a), u);
}

/// What the largest column of one row is worth, scored from what remains of the row without it.
struct LargestScores {
  std::ptrdiff_t at;  ///< its position
  double attn, key, joint, exact_key, exact_joint, exact_remove;
};

/// taylor_z: its logit as the Taylor scores take it; with o' the output without it diff_sq = ||v - o'||^2,
/// joint = ||v + z (1 - a) (v - o')||^2, exact_joint = ||a v + delta o'||^2.
KVREPLAY_HOST_DEVICE inline LargestScores largest_scores(std::ptrdiff_t at, const LargestColumn& c,
                                                         double taylor_z, double diff_sq, double joint,
                                                         double exact_joint) {
  const double az = c.a * taylor_z * c.one_minus_a;
  return {at,
          c.a,
          az * az * diff_sq,
          c.a * c.a * joint,
          c.delta * c.delta * diff_sq,
          exact_joint,
          c.a * c.a * diff_sq};
}

}  // namespace kvreplay
