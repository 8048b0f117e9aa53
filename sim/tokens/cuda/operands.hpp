#pragma once

#include "sim/cuda/chunks.hpp"
#include "sim/tokens/cuda/column_kernels.hpp"

#include <type_traits>

// Properties of a kernel's operands that are known at compile time. The kernel then has no instructions for
// parts that its operands lack.

namespace kvreplay::cuda {

/// Operands that are the sum of two halves.
enum class Planes {
  any,     ///< the problem says
  none,    ///< Products::tensor, and without values a dump in 16 bits
  values,  ///< values, outputs and weights: a dump in 16 bits
  all,     ///< queries and keys too
};

/// kDepth: channels of keys and values, without a soft cap; 0: the problem says. Without kHasValues there are
/// no values and no outputs: ColumnProblem::d_v is 0.
template <Planes kTwo, int kDepth, bool kHasValues>
struct Operands {
  static constexpr Planes kPlanes = kTwo;
  static constexpr bool kKnown = kPlanes != Planes::any, kValues = kHasValues;
  static_assert(kKnown == (kDepth > 0), "all is known or nothing");
  static_assert(kValues || kPlanes != Planes::values, "no such planes");
  /// Chunks of keys that loops over them are unrolled by, and of keys and values.
  static constexpr int kChunks = kKnown ? kDepth / kChunk : 1, kAllChunks = kChunks * (kValues ? 2 : 1);
  const ColumnProblem& in;

  KVREPLAY_DEVICE bool queries_two() const { return kKnown ? kPlanes == Planes::all : in.q.low != nullptr; }
  KVREPLAY_DEVICE bool keys_two() const { return kKnown ? kPlanes == Planes::all : in.k.low != nullptr; }
  KVREPLAY_DEVICE bool values_two() const {
    return kValues && (kKnown ? kPlanes != Planes::none : in.v.halves.low != nullptr);
  }
  /// Weights and outputs.
  KVREPLAY_DEVICE bool exact() const { return kValues && (kKnown ? kPlanes != Planes::none : in.exact); }
  KVREPLAY_DEVICE int key_depth() const { return kKnown ? kDepth : in.k.depth; }
  KVREPLAY_DEVICE int value_depth() const { return kValues ? (kKnown ? kDepth : in.v.halves.depth) : 0; }
  KVREPLAY_DEVICE float softcap() const { return kKnown ? 0.0F : in.softcap; }
};
template <bool kHasValues>
using AnyOperands = Operands<Planes::any, 0, kHasValues>;

/// choose(Operands<..>) for those that the problem has, where a kernel is compiled for them.
template <bool kHasValues, class Choose>
auto with_operands(const ColumnProblem& in, const Choose& choose) {
  const bool two = in.q.low != nullptr, as_keys = two == (in.k.low != nullptr);
  const bool values = in.v.halves.low != nullptr;
  const bool as_values = !kHasValues || (values == in.exact && (values || !two) && in.d == in.d_v);
  const int depth = as_keys && as_values && !(in.softcap > 0) ? in.d : 0;
  const auto of_depth = [&](auto known) {
    constexpr int kDepth = decltype(known)::value;
    if (two) return choose(Operands<Planes::all, kDepth, kHasValues>{in});
    if constexpr (kHasValues)
      if (values) return choose(Operands<Planes::values, kDepth, true>{in});
    return choose(Operands<Planes::none, kDepth, kHasValues>{in});
  };
  if (depth == 64) return of_depth(std::integral_constant<int, 64>());
  if (depth == 128) return of_depth(std::integral_constant<int, 128>());
  return choose(AnyOperands<kHasValues>{in});
}

}  // namespace kvreplay::cuda
