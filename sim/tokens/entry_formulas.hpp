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

/// v_dot_o: (v - centre) . (o - centre).
template <class T>
KVREPLAY_HOST_DEVICE inline EntryDistances<T> entry_distances(const EntryRow<T>& row, const EntryToken<T>& v,
                                                              T v_dot_o) {
  const T shift = v.centre_dot_value - row.centre_dot_out;
  return {v.value_centred_sq + row.out_centred_sq - 2 * v_dot_o, v.value_centred_sq - v_dot_o + shift,
          v_dot_o - row.out_centred_sq + shift};
}

template <class T>
KVREPLAY_HOST_DEVICE inline bool distances_cancelled(const EntryRow<T>& row, const EntryToken<T>& v, T u) {
  return !(u >= kCancelled<T> * (v.value_centred_sq + row.out_centred_sq));  // NaN counts: inf - inf
}

/// The same distances from the vectors: value and centre [d_v], outputs [d_v] `stride` apart, both centred.
template <class T>
KVREPLAY_HOST_DEVICE inline EntryDistances<T> entry_differences(const T* value, const T* outputs,
                                                                std::ptrdiff_t stride, const T* centre,
                                                                std::ptrdiff_t d_v) {
  EntryDistances<T> sum{0, 0, 0};
  for (std::ptrdiff_t c = 0; c < d_v; ++c) {
    const T o = outputs[c * stride], diff = value[c] - o;
    sum.u += diff * diff;
    sum.v_dot_diff += (value[c] + centre[c]) * diff;
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

/// expm1 of -1/2 .. 1/2. In float its series to x^8 / 8!, without a branch: all lanes of a warp come here for
/// the sake of a few.
template <class T>
KVREPLAY_HOST_DEVICE inline T small_expm1(T x) {
  if constexpr (sizeof(T) == sizeof(double)) {
    return std::expm1(x);
  } else {
    T sum = 1;
    for (int n = 8; n > 1; --n) sum = 1 + x * (1 / static_cast<T>(n)) * sum;
    return x * sum;
  }
}

/// g t, t = a (exp(-z) - 1): exp(-z) is never formed, and near z = 0, where e - g a cancels, its series takes
/// over.
template <class T>
KVREPLAY_HOST_DEVICE inline T scaled_change(const EntryRow<T>& row, T a, T z) {
  const T ga = row.rescale * a;
  return std::abs(z) < T(0.5) ? ga * small_expm1(-z) : row.zero_logit - ga;
}

/// 1 / (g (1 + t)).
template <class T>
KVREPLAY_HOST_DEVICE inline T scaled_norm(const EntryRow<T>& row, T a) {
  return 1 / (row.zero_weight_sum - row.rescale * a);
}

/// w^2 square; 0 where w is 0, for a square beyond T as well.
template <class T>
KVREPLAY_HOST_DEVICE inline T weighted_square(T w, T square) {
  return w != 0 ? w * w * square : T(0);
}

/// (a z)^2 u.
template <class T>
KVREPLAY_HOST_DEVICE inline T key_entry(T a, T taylor, T u) {
  return weighted_square(a > 0 ? a * taylor : T(0), u);
}

/// c^2 u, c = t / (1 + t).
template <class T>
KVREPLAY_HOST_DEVICE inline T exact_key_entry(const EntryRow<T>& row, T a, T z, T u) {
  return weighted_square(scaled_change(row, a, z) * scaled_norm(row, a), u);
}

/// g^2 (1 + t)^2 ||a (1 - c) v + c o||^2 = ||g a (v - o) + e o||^2.
template <class T>
KVREPLAY_HOST_DEVICE inline EntrySquare<T> exact_joint_square(const EntryRow<T>& row, T a,
                                                              const EntryDistances<T>& to) {
  const T ga = row.rescale * a, squares = ga * ga * to.u + row.zero_logit_out_sq;
  return {squares + 2 * ga * row.zero_logit * to.o_dot_diff, squares};
}

/// (a / (1 - a))^2 u.
template <class T>
KVREPLAY_HOST_DEVICE inline T exact_remove_entry(T a, T u) {
  return weighted_square(a / (1 - a), u);
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
