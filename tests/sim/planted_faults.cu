#include "sim/cuda/kernel.hpp"
#include "tests/sim/planted_faults.hpp"

namespace kvreplay::test {
namespace {

using namespace kvreplay::cuda;

KVREPLAY_KERNEL void beyond(float* numbers) { numbers[thread_id()] = numbers[thread_id() + (1 << 20)]; }

KVREPLAY_KERNEL void no_barrier(float* numbers) {
  auto* const shared = reinterpret_cast<float*>(shared_memory());
  shared[thread_id()] = static_cast<float>(thread_id());
  numbers[thread_id() % 32] = shared[63 - thread_id()];
}

KVREPLAY_KERNEL void unwritten(float* numbers) { numbers[thread_id()] += 1; }

KVREPLAY_KERNEL void some_at_barrier(float* numbers) {
  if (thread_id() % 32 < 16) {
    __syncthreads();
    numbers[thread_id() % 32] = 1;
  }
  __syncthreads();
}

}  // namespace

void read_beyond(float* numbers, const Stream& stream) { launch(beyond, {}, 32, 0, stream, numbers); }
void read_without_barrier(float* numbers, const Stream& stream) {
  launch(no_barrier, {}, 64, 64 * sizeof(float), stream, numbers);
}
void read_unwritten(float* numbers, const Stream& stream) { launch(unwritten, {}, 32, 0, stream, numbers); }
void leave_some_at_barrier(float* numbers, const Stream& stream) {
  launch(some_at_barrier, {}, 64, 0, stream, numbers);
}

}  // namespace kvreplay::test
