#pragma once

#include "sim/cuda/runtime.hpp"

namespace kvreplay::test {

// What compute-sanitizer's tools are there to find, one fault each: a tool that does not see its own would
// not see the kernels'. `numbers` are 32 in device memory.

void read_beyond(float* numbers, const cuda::Stream& stream);           ///< memcheck
void read_without_barrier(float* numbers, const cuda::Stream& stream);  ///< racecheck
void read_unwritten(float* numbers, const cuda::Stream& stream);  ///< initcheck, where nobody wrote them
void leave_some_at_barrier(float* numbers, const cuda::Stream& stream);  ///< synccheck

}  // namespace kvreplay::test
