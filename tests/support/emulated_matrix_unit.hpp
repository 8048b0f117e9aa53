#pragma once

#include "sim/simd/matrix_unit.hpp"

namespace kvreplay::test {

/// Tile registers as the manual describes them (TILELOADD, TDPBF16PS, TILESTORED), but for denormals.
const MatrixUnit& emulated_matrix_unit();

}  // namespace kvreplay::test
