#pragma once

#include "sim/simd/matrix_unit.hpp"

namespace kvreplay {

/// The vectors of a processor with AVX-512 BF16, whose dot products of two bfloat16 numbers each are the same
/// sums as those of tiles; null elsewhere.
const MatrixUnit* bf16_dots_unit();

}  // namespace kvreplay
