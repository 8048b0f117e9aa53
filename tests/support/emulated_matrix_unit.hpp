#pragma once

#include "sim/simd/matrix_unit.hpp"

#include <bit>
#include <cstdint>

namespace kvreplay::test {

inline float of_bf16(Bf16 x) { return std::bit_cast<float>(static_cast<std::uint32_t>(x) << 16); }

/// Tile registers as the manual describes them (TILELOADD, TDPBF16PS, TILESTORED), but for denormals.
const MatrixUnit& emulated_matrix_unit();

}  // namespace kvreplay::test
