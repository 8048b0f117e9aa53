#pragma once

#include "sim/cuda/half.hpp"

// Rows of halves on their way through shared memory, kChunk channels at a time. A block multiplies rows of A
// that stay with it by rows of B that pass by: where all of A's chunks fit they are read once and the chunks
// of B come three deep, else a chunk of A comes with every chunk of B.

namespace kvreplay::cuda {

// A warp's share of a matrix product from half-precision matrix units: 16 x 8 x 16 (PTX ISA,
// mma.m16n8k16), products exact, sums in float32. The units truncate what they add,
// so that long sums drift: sums here are short, and are added up outside in float32 that rounds.

/// One lane's part of A [16][16]: (g, 2t), (g + 8, 2t), (g, 2t + 8), (g + 8, 2t + 8), each with its right
/// neighbour; lane = 4 g + t.
struct HalfA {
  std::uint32_t at[4];
};
/// One lane's part of B [16 of k][16 of n]: for the columns n < 8 (k, k + 1 = 2t, 2t + 1 of column g), the
/// same for k + 8, then both for the columns n >= 8.
struct HalfB {
  std::uint32_t at[4];
};

namespace detail {

#if defined(__CUDACC__)
KVREPLAY_DEVICE void load_matrices(std::uint32_t* to, const HalfBits* row) {
  const auto address = static_cast<std::uint32_t>(__cvta_generic_to_shared(row));
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
               : "r"(address));
}
KVREPLAY_DEVICE void load_transposed(std::uint32_t* to, const HalfBits* row) {
  const auto address = static_cast<std::uint32_t>(__cvta_generic_to_shared(row));
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
               : "r"(address));
}
#else
inline std::uint32_t right_pair(const HalfBits* at) { return packed(at[0], at[1]); }
inline std::uint32_t pair_below(const HalfBits* at, int stride) { return packed(at[0], at[stride]); }
#endif

}  // namespace detail

/// A from 16 rows of halves in shared memory, `stride` apart; rows start at multiples of 16 bytes.
KVREPLAY_DEVICE HalfA load_a(const HalfBits* rows, int stride) {
  HalfA a;
#if defined(__CUDACC__)
  detail::load_matrices(a.at, rows + lane_id() % 16 * stride + lane_id() / 16 * 8);
#else
  const HalfBits* own = rows + lane_id() / 4 * stride + lane_id() % 4 * 2;
  for (int i = 0; i < 4; ++i) a.at[i] = detail::right_pair(own + i % 2 * 8 * stride + i / 2 * 8);
#endif
  return a;
}

/// B of a product with the transpose of 16 rows of halves: row n holds column n.
KVREPLAY_DEVICE HalfB load_b_of_transpose(const HalfBits* rows, int stride) {
  HalfB b;
#if defined(__CUDACC__)
  detail::load_matrices(b.at, rows + (lane_id() % 8 + lane_id() / 16 * 8) * stride + lane_id() / 8 % 2 * 8);
#else
  const HalfBits* own = rows + lane_id() / 4 * stride + lane_id() % 4 * 2;
  for (int i = 0; i < 4; ++i) b.at[i] = detail::right_pair(own + i / 2 * 8 * stride + i % 2 * 8);
#endif
  return b;
}

/// B from 16 rows of halves: row k holds the 16 columns of k.
KVREPLAY_DEVICE HalfB load_b(const HalfBits* rows, int stride) {
  HalfB b;
#if defined(__CUDACC__)
  detail::load_transposed(b.at, rows + lane_id() % 16 * stride + lane_id() / 16 * 8);
#else
  const HalfBits* own = rows + lane_id() % 4 * 2 * stride + lane_id() / 4;
  for (int i = 0; i < 4; ++i) b.at[i] = detail::pair_below(own + i % 2 * 8 * stride + i / 2 * 8, stride);
#endif
  return b;
}

/// C += A B for the 8 columns that b0, b1 are of: C is (g, 2t), (g, 2t + 1), (g + 8, 2t), (g + 8, 2t + 1).
KVREPLAY_DEVICE void multiply_add(float* c, const HalfA& a, std::uint32_t b0, std::uint32_t b1) {
#if defined(__CUDACC__)
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
      "{%0, %1, %2, %3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a.at[0]), "r"(a.at[1]), "r"(a.at[2]), "r"(a.at[3]), "r"(b0), "r"(b1));
#else
  struct Operands {
    HalfA a;
    std::uint32_t b[2];
  } operands{a, {b0, b1}};
  emulation::warp_together("mma.m16n8k16", {&operands, c}, [](const emulation::Lanes& lanes) {
    double left[16][16], right[16][8];
    float sums[16][8];
    const auto put = [](std::uint32_t pair, double& first, double& second) {
      first = static_cast<double>(from_half(static_cast<HalfBits>(pair & 0xffffU)));
      second = static_cast<double>(from_half(static_cast<HalfBits>(pair >> 16U)));
    };
    for (int lane = 0; lane < 32; ++lane) {
      const auto& given = *static_cast<const Operands*>(lanes[lane].given);
      const int g = lane / 4, t = lane % 4;
      for (int i = 0; i < 4; ++i) {
        double* row = left[g + i % 2 * 8] + 2 * t + i / 2 * 8;
        put(given.a.at[i], row[0], row[1]);
      }
      for (int i = 0; i < 2; ++i) put(given.b[i], right[2 * t + 8 * i][g], right[2 * t + 1 + 8 * i][g]);
    }
    for (int lane = 0; lane < 32; ++lane) {
      const auto* out = static_cast<const float*>(lanes[lane].taken);
      const int g = lane / 4, t = lane % 4;
      for (int i = 0; i < 4; ++i) sums[g + 8 * (i / 2)][2 * t + i % 2] = out[i];
    }
    for (int half = 0; half < 16; half += 8) {
      for (int row = 0; row < 16; ++row) {
        double sum[8];  // of a row's columns at once: vectors
        for (int n = 0; n < 8; ++n) sum[n] = static_cast<double>(sums[row][n]);
        for (int k = half; k < half + 8; ++k)
          for (int n = 0; n < 8; ++n) sum[n] += left[row][k] * right[k][n];
        for (int n = 0; n < 8; ++n) sums[row][n] = emulation::truncated(sum[n]);
      }
    }
    for (int lane = 0; lane < 32; ++lane) {
      auto* out = static_cast<float*>(lanes[lane].taken);
      const int g = lane / 4, t = lane % 4;
      for (int i = 0; i < 4; ++i) out[i] = sums[g + 8 * (i / 2)][2 * t + i % 2];
    }
  });
#endif
}

/// Rows of numbers that are `high`, or high + low where they are of two halves.
struct HalfRows {
  const HalfBits *high, *low;
  bool two;
};

/// A warp's 16 kTiles rows by 8 kColumnTiles columns.
template <int kTiles, int kColumnTiles>
struct HalfTile {
  static_assert(kColumnTiles % 2 == 0, "");
  float at[kTiles][kColumnTiles][4];

  KVREPLAY_DEVICE static int row(int tile, int i) { return 16 * tile + lane_id() / 4 + i / 2 * 8; }
  KVREPLAY_DEVICE static int col(int tile, int i) { return 8 * tile + lane_id() % 4 * 2 + i % 2; }

  KVREPLAY_DEVICE void fill(float value) {
    KVREPLAY_UNROLL
    for (int m = 0; m < kTiles; ++m) {
      KVREPLAY_UNROLL
      for (int n = 0; n < kColumnTiles; ++n) {
        KVREPLAY_UNROLL
        for (int i = 0; i < 4; ++i) at[m][n][i] = value;
      }
    }
  }

  /// Adds A B^T over 16 `steps` channels of both, rows `stride` apart; overwrites the sums where
  /// `first_of_some`. For numbers in two halves, the product of the low halves is left out: it is below
  /// float32's rounding. kAtOnce column tiles are summed at a time: fewer take fewer registers and read A
  /// again.
  template <int kAtOnce = kColumnTiles>
  KVREPLAY_DEVICE void add_product_with_transpose(const HalfRows& a, const HalfRows& b, int stride, int steps,
                                                  bool first_of_some) {
    KVREPLAY_UNROLL
    for (int first = 0; first < kColumnTiles; first += kAtOnce) {
      HalfTile<kTiles, kAtOnce> sum;
      sum.fill(0);
      for (int step = 0; step < steps; ++step) {
        const int k = 16 * step;
        HalfA high[kTiles], low[kTiles];
        KVREPLAY_UNROLL
        for (int m = 0; m < kTiles; ++m) {
          high[m] = load_a(a.high + 16 * m * stride + k, stride);
          low[m] = a.two ? load_a(a.low + 16 * m * stride + k, stride) : HalfA{};
        }
        KVREPLAY_UNROLL
        for (int n = 0; n < kAtOnce; n += 2) {
          const int row = 8 * (first + n) * stride + k;
          const HalfB b_high = load_b_of_transpose(b.high + row, stride);
          if (b.two) sum.add(n, high, load_b_of_transpose(b.low + row, stride));
          if (a.two) sum.add(n, low, b_high);
          sum.add(n, high, b_high);
        }
      }
      KVREPLAY_UNROLL
      for (int m = 0; m < kTiles; ++m) {
        KVREPLAY_UNROLL
        for (int n = 0; n < kAtOnce; ++n) {
          KVREPLAY_UNROLL
          for (int i = 0; i < 4; ++i) {
            float& x = at[m][first + n][i];
            x = first_of_some ? sum.at[m][n][i] : x + sum.at[m][n][i];
          }
        }
      }
    }
  }

  /// The column tiles n and n + 1 += A B.
  KVREPLAY_DEVICE void add(int n, const HalfA* a, const HalfB& b) {
    KVREPLAY_UNROLL
    for (int m = 0; m < kTiles; ++m) {
      multiply_add(at[m][n], a[m], b.at[0], b.at[1]);
      multiply_add(at[m][n + 1], a[m], b.at[2], b.at[3]);
    }
  }
};

// Copies from device to shared memory run beside the arithmetic (PTX ISA, cp.async).

/// 16 bytes, both at multiples of 16; 0 where they are not `real`. Others see them after a thread has waited
/// for its own copies and the block has met.
KVREPLAY_DEVICE void copy_16_async(void* shared, const void* global, bool real) {
#if defined(__CUDACC__)
  const auto to = static_cast<unsigned>(__cvta_generic_to_shared(shared));
  const int bytes = real ? 16 : 0;
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(global), "r"(bytes));
#else
  emulation::copy_late(shared, real ? global : nullptr);
#endif
}

/// Makes one batch of the copies since the last call.
KVREPLAY_DEVICE void end_copy_batch() {
#if !defined(__CUDACC__)
  emulation::end_late_batch();
#else
  asm volatile("cp.async.commit_group;");
#endif
}

/// Waits until only the thread's last kLeft batches may still be on their way.
template <int kLeft>
KVREPLAY_DEVICE void wait_for_copies() {
#if !defined(__CUDACC__)
  emulation::wait_for_late(kLeft);
#else
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

  /// Turns are unrolled where there are at most kUnrolled: registers are dearer than a loop.
  template <int kThreads, int kUnrolled = 2, class RowAt>
  KVREPLAY_DEVICE void copy(const HalfBits* from_high, const HalfBits* from_low, int depth, int chunk,
                            RowAt row_at) const {
    constexpr int kTurns = (kRows * (kChunk / 8) + kThreads - 1) / kThreads;
    const int c = thread_id() % (kChunk / 8) * 8;
    KVREPLAY_UNROLL_BY(kTurns <= kUnrolled ? kTurns : 1)
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

/// Shared memory of a pass.
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
