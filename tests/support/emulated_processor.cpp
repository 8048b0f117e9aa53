#include "sim/simd/amx.hpp"
#include "tests/support/emulated_matrix_unit.hpp"

// In place of sim/simd/amx.cpp: a processor that plays one with matrix units.

namespace kvreplay {

const MatrixUnit* amx_unit() { return &test::emulated_matrix_unit(); }

}  // namespace kvreplay
