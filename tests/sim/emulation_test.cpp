// What a device refuses, or what hangs there, is an error where the processor plays it.

#include "sim/cuda/chunks.hpp"
#include "sim/cuda/runtime_emulated.hpp"
#include "tests/support/catch.hpp"

#include <stdexcept>
#include <string>
#include <vector>

using namespace kvreplay::cuda;
using Catch::Contains;

namespace {

constexpr int kThreads = 64;

void nothing() {}
void count(int* blocks) {
  if (thread_id() == 0) ++*blocks;
}
void half_a_barrier() {
  if (warp_id() == 0) sync_block();
}
void lanes_apart(float* x) {
  const float own = lane_id() < 16 ? shuffle_xor(1.0F, 1) : static_cast<float>(shuffle_xor(2.0, 1));
  if (thread_id() == 0) *x = own;
}
/// A number on its way, `at` bytes into shared memory.
void copy_one(const float* from, int at, bool waits, float* seen) {
  float* const to = reinterpret_cast<float*>(shared_memory() + at);
  if (thread_id() != 0) return;
  copy_16_async(to, from, true);
  end_copy_batch();
  seen[0] = to[0];
  if (waits) wait_for_copies<0>();
  seen[1] = to[0];
}

template <class... Parameters, class... Arguments>
void start(void (*kernel)(Parameters...), Grid grid, std::size_t shared, const Arguments&... arguments) {
  const Stream stream;
  launch(kernel, grid, kThreads, shared, stream, arguments...);
}

}  // namespace

TEST_CASE("the processor as a device refuses what a device does", "[emulation]") {
  int blocks = 0;
  start(count, {3, 2, 5}, 0, &blocks);
  CHECK(blocks == 30);
  for (const Grid& grid : {Grid{0, 1, 1}, Grid{1, 0, 1}, Grid{1, 1, 0}, Grid{1, 65536, 1}, Grid{1, 1, 65536}})
    CHECK_THROWS_WITH(start(nothing, grid, 0), Contains("a grid of"));
  for (const int device : {0, 1}) {
    use_device(device);
    CHECK_NOTHROW(start(nothing, {}, shared_memory_limit()));
    CHECK_THROWS_WITH(start(nothing, {}, shared_memory_limit() + 1), Contains("shared memory"));
  }
  use_device(0);
  CHECK_THROWS_WITH(start(half_a_barrier, {}, 0), Contains("32 of 64 threads wait for others in vain"));
  float x = 0;
  CHECK_THROWS_WITH(start(lanes_apart, {}, 0, &x), Contains("lanes of one warp call"));
}

TEST_CASE("a copy to shared memory is there when it is waited for, and no earlier", "[emulation]") {
  alignas(16) const float from[8] = {1, 2, 3, 4, 5, 6, 7, 8};
  float seen[2] = {};
  start(copy_one, {}, 64, static_cast<const float*>(from + 4), 16, true, static_cast<float*>(seen));
  CHECK(std::isnan(seen[0]));
  CHECK(seen[1] == 5);
  CHECK_THROWS_WITH(
      start(copy_one, {}, 64, static_cast<const float*>(from), 16, false, static_cast<float*>(seen)),
      Contains("on their way"));
  CHECK_THROWS_WITH(
      start(copy_one, {}, 64, static_cast<const float*>(from), 8, true, static_cast<float*>(seen)),
      Contains("no multiple of 16"));
  CHECK_THROWS_WITH(
      start(copy_one, {}, 64, static_cast<const float*>(from + 1), 16, true, static_cast<float*>(seen)),
      Contains("no multiple of 16"));
}

TEST_CASE("uploads of any size are read before they are asked to go on without their source", "[emulation]") {
  const Stream stream;
  for (const std::size_t n : {std::size_t{1}, std::size_t{1000}, std::size_t{3} << 20}) {
    const Buffer<float> on_device(n);
    copy(on_device.data(), std::vector<float>(n, 7).data(), n, stream);
    std::vector<float> back(n);
    copy(back.data(), on_device.data(), n, stream);
    CHECK(back == std::vector<float>(n, 7));
    // What the driver may do late.
    CHECK_THROWS_WITH(detail::copy(on_device.data(), back.data(), n * sizeof(float), stream),
                      Contains("nobody waits for"));
  }
}

TEST_CASE("what a kernel may use is its code's, not its device's", "[emulation]") {
  for (const int device : {0, 1}) {
    use_device(device);
    CHECK(device_code().architecture == capability());
  }
  {
    const EmulatedCode old(1, 80);
    CHECK(capability() == 90);
    CHECK(device_code().from_ptx);
  }
  const EmulatedCode none(1, 0);
  CHECK_THROWS_AS(device_code(), DeviceError);
}
