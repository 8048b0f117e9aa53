#pragma once

#include "sim/cuda/chunks.hpp"
#include "sim/tokens/cuda/column_kernels.hpp"

#include <type_traits>

// What a kernel is told of its operands when it is compiled: it then has no instruction for what they lack.

namespace kvreplay::cuda {

/// Which numbers are the sum of two halves.
enum class Planes {
  any,     ///< the problem says
  none,    ///< Products::tensor
  values,  ///< values, outputs and weights: a dump in 16 bits
  all,     ///< queries and keys too
};

/// kDepth: channels of keys and values, without a soft cap; 0: the problem says.
template <Planes kPlanes, int kDepth>
struct Operands {
  static constexpr bool kKnown = kPlanes != Planes::any;
  static_assert(kKnown == (kDepth > 0), "all is known or nothing");
  /// Chunks of keys, or of values, that loops over them are unrolled by.
  static constexpr int kChunks = kKnown ? kDepth / kChunk : 1;
  const ColumnProblem& in;

  KVREPLAY_DEVICE bool queries_two() const { return kKnown ? kPlanes == Planes::all : in.q.low != nullptr; }
  KVREPLAY_DEVICE bool keys_two() const { return kKnown ? kPlanes == Planes::all : in.k.low != nullptr; }
  KVREPLAY_DEVICE bool values_two() const {
    return kKnown ? kPlanes != Planes::none : in.v.halves.low != nullptr;
  }
  /// Weights and outputs.
  KVREPLAY_DEVICE bool exact() const { return kKnown ? kPlanes != Planes::none : in.exact; }
  KVREPLAY_DEVICE int key_depth() const { return kKnown ? kDepth : in.k.depth; }
  KVREPLAY_DEVICE int value_depth() const { return kKnown ? kDepth : in.v.halves.depth; }
  KVREPLAY_DEVICE float softcap() const { return kKnown ? 0.0F : in.softcap; }
};
using AnyOperands = Operands<Planes::any, 0>;

/// choose(Operands<..>) for those that the problem has, where a kernel is compiled for them.
template <class Choose>
auto with_operands(const ColumnProblem& in, const Choose& choose) {
  const bool two = in.q.low != nullptr, as_keys = two == (in.k.low != nullptr);
  const bool values = in.v.halves.low != nullptr, as_values = values == in.exact && (values || !two);
  const int depth = as_keys && as_values && !(in.softcap > 0) && in.d == in.d_v ? in.d : 0;
  const auto of_depth = [&](auto known) {
    constexpr int kDepth = decltype(known)::value;
    if (two) return choose(Operands<Planes::all, kDepth>{in});
    if (values) return choose(Operands<Planes::values, kDepth>{in});
    return choose(Operands<Planes::none, kDepth>{in});
  };
  if (depth == 64) return of_depth(std::integral_constant<int, 64>());
  if (depth == 128) return of_depth(std::integral_constant<int, 128>());
  return choose(AnyOperands{in});
}

}  // namespace kvreplay::cuda
