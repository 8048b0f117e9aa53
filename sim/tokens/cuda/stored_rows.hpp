#pragma once

#include "sim/cuda/half.hpp"
#include "sim/tokens/cuda/column_kernels.hpp"

// Numbers of a dump, and halves made of them, as kernels read and write them.

namespace kvreplay::cuda {

template <NumberType kType>
KVREPLAY_DEVICE float number_of(const void* data, std::ptrdiff_t at) {
  if (kType == NumberType::f32) return static_cast<const float*>(data)[at];
  const std::uint16_t bits = static_cast<const std::uint16_t*>(data)[at];
  return kType == NumberType::f16 ? from_half(bits) : as_float(static_cast<std::uint32_t>(bits) << 16U);
}
KVREPLAY_DEVICE float number(const StoredRows& rows, std::ptrdiff_t at) {
  return rows.type == NumberType::f32   ? number_of<NumberType::f32>(rows.data, at)
         : rows.type == NumberType::f16 ? number_of<NumberType::f16>(rows.data, at)
                                        : number_of<NumberType::bf16>(rows.data, at);
}

KVREPLAY_DEVICE void put(const HalfMatrix& to, std::ptrdiff_t at, const HalfPair& halves) {
  to.high[at] = halves.high;
  if (to.low != nullptr) to.low[at] = halves.low;
}

/// v - centre of one token, by channel.
struct CentredValue {
  const PreparedRows& v;
  std::ptrdiff_t first;

  KVREPLAY_DEVICE CentredValue(const PreparedRows& values, int token, int d_v)
      : v(values), first(static_cast<std::ptrdiff_t>(token) * d_v) {}
  KVREPLAY_DEVICE float operator[](std::ptrdiff_t c) const {
    return number(v.values, first + c) - v.centre[c];
  }
};

}  // namespace kvreplay::cuda
