#pragma once

#include <array>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>

// A GPU's way of running a kernel, on the processor: every thread of a block is a fiber, and blocks run one
// after the other, in their order or in one that KVREPLAY_EMULATION_SEED gives. A barrier that some threads
// never reach, a warp whose lanes call different things, a launch that a device refuses, is an error. Under
// thread sanitizer a race between threads of a block or between blocks is one too: barriers order what they
// order on the device, and shuffles and matrix products nothing (emulation.cpp, namespace race). For tests of
// kernels where there is no GPU.

namespace kvreplay::cuda::emulation {

struct Size3 {
  unsigned x = 1, y = 1, z = 1;
};

/// The running fiber.
struct Thread {
  unsigned index = 0;  ///< in its block
  Size3 block;
  unsigned char* shared = nullptr;
};
inline thread_local const Thread* running_thread = nullptr;
inline const Thread& this_thread() { return *running_thread; }

/// Runs `body` for every thread of every block. Shared memory is full of NaN at the start of each block.
/// Throws std::logic_error where threads wait for each other in vain, or where a device would refuse;
/// rethrows what a thread throws.
void run(Size3 grid, unsigned threads, std::size_t shared_bytes, const std::function<void()>& body);
/// Calls of run() since the program began.
std::int64_t runs();

void sync_block();

/// One lane's part of an instruction of the whole warp.
struct LaneShare {
  const void* given;  ///< the lane's own
  void* taken;        ///< where its part of the result goes
};
using Lanes = std::array<LaneShare, 32>;
/// Waits until all 32 lanes are here with the same `what`; the last one then carries it out for all.
void warp_together(const char* what, LaneShare mine, void (*carry_out)(const Lanes&));

inline constexpr std::size_t kLateCopy = 16;  // bytes
/// A copy that is made only when its thread waits for it, as late as a device may: until then there is NaN.
/// `from` null: zeros. Both at multiples of 16.
void copy_late(void* to, const void* from);
/// Late copies since the last call are one batch; waits until only the last `batches_left` may be on their
/// way.
void end_late_batch();
void wait_for_late(unsigned batches_left);

/// As float32, rounded towards 0: how matrix units add.
inline float truncated(double x) {
  const auto nearest = static_cast<float>(x);
  const bool beyond = std::abs(static_cast<double>(nearest)) > std::abs(x);
  return std::bit_cast<float>(std::bit_cast<std::uint32_t>(nearest) - (beyond ? 1U : 0U));
}

/// Every lane takes the value that lane `from` (of all 32) gives.
template <class T>
T shuffle(T value, unsigned from) {
  struct Given {
    T value;
    unsigned from;
  } given{value, from};
  T taken{};
  constexpr const char* kWhat = sizeof(T) == 4 ? "a shuffle of 4 bytes" : "a shuffle of 8 bytes";
  static_assert(sizeof(T) == 4 || sizeof(T) == 8, "what a device shuffles");
  warp_together(kWhat, {&given, &taken}, [](const Lanes& lanes) {
    for (const LaneShare& lane : lanes) {
      const auto* own = static_cast<const Given*>(lane.given);
      *static_cast<T*>(lane.taken) = static_cast<const Given*>(lanes[own->from % 32].given)->value;
    }
  });
  return taken;
}

}  // namespace kvreplay::cuda::emulation
