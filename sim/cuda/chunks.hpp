#pragma once

#include "sim/cuda/half_tile.hpp"

// Rows of halves on their way through shared memory, kChunk channels at a time. A block multiplies rows of A
// that stay with it by rows of B that pass by: where all of A's chunks fit they are read once and the chunks
// of B come three deep, else a chunk of A comes with every chunk of B.

namespace kvreplay::cuda {

// Copies from device to shared memory run beside the arithmetic (PTX ISA, cp.async, from capability 8.0 on;
// at once before).

/// 16 bytes, both at multiples of 16; 0 where they are not `real`. Others see them after a thread has waited
/// for its own copies and the block has met.
KVREPLAY_DEVICE void copy_16_async(void* shared, const void* global, bool real) {
#if defined(__CUDACC__)
#if __CUDA_ARCH__ >= 800
  const auto to = static_cast<unsigned>(__cvta_generic_to_shared(shared));
  const int bytes = real ? 16 : 0;
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(global), "r"(bytes));
#else
  *static_cast<uint4*>(shared) = real ? *static_cast<const uint4*>(global) : make_uint4(0, 0, 0, 0);
#endif
#else
  emulation::copy_late(shared, real ? global : nullptr);
#endif
}

/// Makes one batch of the copies since the last call.
KVREPLAY_DEVICE void end_copy_batch() {
#if !defined(__CUDACC__)
  emulation::end_late_batch();
#elif __CUDA_ARCH__ >= 800
  asm volatile("cp.async.commit_group;");
#endif
}

/// Waits until only the thread's last kLeft batches may still be on their way.
template <int kLeft>
KVREPLAY_DEVICE void wait_for_copies() {
#if !defined(__CUDACC__)
  emulation::wait_for_late(kLeft);
#elif __CUDA_ARCH__ >= 800
  asm volatile("cp.async.wait_group %0;" ::"n"(kLeft) : "memory");
#endif
}

inline constexpr int kChunk = 64;                // channels
inline constexpr int kChunkStride = kChunk + 8;  // halves: keeps eight rows in different banks
inline constexpr int kStagesWhereResident = 3;

KVREPLAY_HOST_DEVICE constexpr int chunks_of(int depth) { return (depth + kChunk - 1) / kChunk; }
/// Steps of the matrix units in a chunk.
KVREPLAY_HOST_DEVICE constexpr int chunk_steps(int depth, int chunk) {
  return (depth - chunk * kChunk < kChunk ? depth - chunk * kChunk : kChunk) / 16;
}
KVREPLAY_HOST_DEVICE constexpr int chunk_halves(int rows) { return rows * kChunkStride; }

/// One chunk of kRows rows of a matrix: both planes, the low ones behind the high ones. row_at(r) is where
/// row r stands in the matrix; below 0: nowhere, and 0 takes its place.
template <int kRows>
struct ChunkAt {
  HalfBits* high;
  bool has_low;

  template <int kThreads, class RowAt>
  KVREPLAY_DEVICE void copy(const HalfBits* from_high, const HalfBits* from_low, int depth, int chunk,
                            RowAt row_at) const {
    constexpr int kTurns = (kRows * (kChunk / 8) + kThreads - 1) / kThreads;
    const int c = thread_id() % (kChunk / 8) * 8;
    KVREPLAY_UNROLL_BY(kTurns <= 2 ? kTurns : 1)  // registers are dearer than a loop
    for (int turn = 0; turn < kTurns; ++turn) {
      const int r = (turn * kThreads + thread_id()) / (kChunk / 8);
      if (kRows * (kChunk / 8) % kThreads != 0 && r >= kRows) break;
      const int row = row_at(r);
      const bool real = row >= 0 && (depth % kChunk == 0 || kChunk * chunk + c < depth);
      const std::ptrdiff_t from = real ? static_cast<std::ptrdiff_t>(row) * depth + kChunk * chunk + c : 0;
      HalfBits* to = high + r * kChunkStride + c;
      copy_16_async(to, from_high + from, real);
      if (has_low) copy_16_async(to + chunk_halves(kRows), from_low + from, real);
    }
  }
  KVREPLAY_DEVICE HalfRows rows_from(int row) const {
    const HalfBits* own = high + row * kChunkStride;
    return {own, own + chunk_halves(kRows), has_low};
  }
};

/// The order of jobs, each a batch of copies and then work on it: `issue(job)` starts a job's copies into the
/// stage job % kStages and ends the batch. The whole block calls.
template <int kStages, class Issue>
struct CopyPipeline {
  Issue issue;

  KVREPLAY_DEVICE void start() const {
    KVREPLAY_UNROLL
    for (int job = 0; job < kStages - 1; ++job) issue(job);
  }
  /// Returns when the job's copies are there for all.
  KVREPLAY_DEVICE void wait_for(int job) const {
    if (kStages == 1) {
      sync_block();
      issue(job);
      wait_for_copies<0>();
      sync_block();
    } else {
      wait_for_copies<(kStages > 1 ? kStages - 2 : 0)>();
      sync_block();  // the stage that issue() fills is one that all have done with
      issue(job + kStages - 1);
    }
  }
};
template <int kStages, class Issue>
KVREPLAY_DEVICE CopyPipeline<kStages, Issue> copy_pipeline(Issue issue) {
  return {issue};
}

/// What a pass takes of shared memory.
struct ChunkPlan {
  bool resident;
  std::size_t bytes;
};
/// Halves of A as a whole, of one chunk of it, and of one chunk of B, all planes counted.
inline ChunkPlan chunk_plan(std::size_t all_of_a, std::size_t chunk_of_a, std::size_t chunk_of_b) {
  const std::size_t resident = (all_of_a + kStagesWhereResident * chunk_of_b) * sizeof(HalfBits);
  if (resident <= shared_memory_limit()) return {true, resident};
  return {false, (chunk_of_a + chunk_of_b) * sizeof(HalfBits)};
}

}  // namespace kvreplay::cuda
