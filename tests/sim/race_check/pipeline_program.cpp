// A kernel that is all pipeline: rows of halves pass through shared memory and their columns are added up.
// With a fault planted in the pipeline, or by FAULT in what follows it, thread sanitizer must speak.

#include "sim/cuda/chunks.hpp"

#include <cstdio>
#include <vector>

namespace {

using namespace kvreplay::cuda;

enum Fault { none, sum_without_barrier, warp_ordered_by_shuffle, blocks_share_a_sum };
#if !defined(FAULT)
#define FAULT none
#endif

constexpr int kThreads = 64, kRows = 16, kStages = 3;

/// Grid: parts of the rows. Adds every number of a part to sums[part].
void sum_kernel(const HalfBits* rows, int jobs, float* sums) {
  auto* const stages = reinterpret_cast<HalfBits*>(shared_memory());
  auto* const partial = reinterpret_cast<float*>(stages + kStages * chunk_halves(kRows));
  const int part = static_cast<int>(block_id().x), first = part * jobs * kRows;
  const auto pipeline = copy_pipeline<kStages>([&](int job) {
    if (job < jobs)
      ChunkAt<kRows>{stages + job % kStages * chunk_halves(kRows), false}.copy<kThreads>(
          rows, nullptr, kChunk, 0, [&](int r) { return first + job * kRows + r; });
    end_copy_batch();
  });
  float sum = 0;
  pipeline.start();
  for (int job = 0; job < jobs; ++job) {
    pipeline.wait_for(job);
    for (int r = 0; r < kRows; ++r)
      sum += from_half(stages[job % kStages * chunk_halves(kRows) + r * kChunkStride + thread_id()]);
  }
  wait_for_copies<0>();
  partial[thread_id()] = sum;
  if (FAULT == warp_ordered_by_shuffle && shuffle_xor(sum, 1) != partial[thread_id() ^ 1]) sums[part] = NAN;
  if (FAULT != sum_without_barrier) sync_block();
  if (thread_id() != 0) return;
  float all = 0;
  for (int t = 0; t < kThreads; ++t) all += partial[t];
  sums[FAULT == blocks_share_a_sum ? 0 : part] += all;
}

}  // namespace

int main() {
  constexpr int kParts = 3, kJobs = 7;
  constexpr std::size_t kNumbers = std::size_t{kParts} * kJobs * kRows * kChunk;
  const Stream stream;
  const Buffer<HalfBits> rows(kNumbers);
  const Buffer<float> sums(kParts);
  copy(rows.data(), std::vector<HalfBits>(kNumbers, to_half(1)).data(), kNumbers, stream);
  fill_zero(sums, stream);
  const std::size_t shared =
      kStages * std::size_t{chunk_halves(kRows)} * sizeof(HalfBits) + kThreads * sizeof(float);
  launch(sum_kernel, {kParts}, kThreads, shared, stream, static_cast<const HalfBits*>(rows.data()), kJobs,
         sums.data());
  std::vector<float> found(kParts);
  copy(found.data(), sums.data(), kParts, stream);
  for (const float sum : found) {
    if (sum == static_cast<float>(kNumbers / kParts)) continue;
    std::printf("a sum is %g, expected %zu\n", static_cast<double>(sum), kNumbers / kParts);
    return 1;
  }
  return 0;
}
