#pragma once

#include "sim/simd/matrix_unit.hpp"

namespace kvreplay {

/// Intel's Advanced Matrix Extensions; null where the build, the processor or the system has none.
const MatrixUnit* amx_unit();

}  // namespace kvreplay
