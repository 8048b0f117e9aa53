#include "tests/bench/floor.hpp"

#include "sim/simd/panel_gemm.hpp"
#include "sim/tokens/tiles.hpp"
#include "tests/bench/eigen_rate.hpp"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <functional>
#include <vector>

namespace kvreplay::bench {
namespace {

constexpr Index kRows = 128, kTokens = 256, kDepth = 128;
constexpr double kTileFlops = 2.0 * kRows * kTokens * kDepth;
std::atomic<float> sink;

float own_products(int repeats) {
  constexpr Index W = kPanelWidth<float>;
  const std::vector<float> k(kTokens * kDepth, 0.02f), q(kRows * kDepth, 0.01f);
  std::vector<float> z(kTokens * W);
  for (int i = 0; i < repeats; ++i)
    for (Index panel = 0; panel < kRows / W; ++panel)
      panel_gemm(kTokens, kDepth, k.data(), kDepth, q.data() + panel * W * kDepth, z.data());
  return z.front();
}

/// The best rate of a few runs of `work` on every thread at once, each doing `amount`.
double best_rate(Workers& workers, double amount, const std::function<float()>& work) {
  double best = 0;
  for (int run = 0; run < 5; ++run) {
    const auto start = std::chrono::steady_clock::now();
    workers.parallel_for(workers.threads(), [&](std::ptrdiff_t) { sink = work(); });
    const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - start;
    best = std::max(best, amount * workers.threads() / elapsed.count());
  }
  return best;
}

}  // namespace

double Floor::seconds(double work_flops, double work_bytes) const {
  return std::max(work_flops / flops(), work_bytes / bytes);
}

Floor measure_floor(Workers& workers) {
  constexpr int kRepeats = 60;
  Floor floor;
  floor.own_flops = best_rate(workers, kRepeats * kTileFlops, [] { return own_products(kRepeats); });
  floor.eigen_flops = best_rate(workers, kRepeats * kTileFlops, [] { return eigen_products(kRepeats); });
  static const std::vector<float> memory(64u << 20, 1.0f);  // 256 MiB, beyond any cache
  std::atomic<std::size_t> next{0};
  const std::size_t share = memory.size() / static_cast<std::size_t>(workers.threads());
  floor.bytes = best_rate(workers, static_cast<double>(share) * sizeof(float), [&] {
    const float* from = memory.data() + (next++ % static_cast<std::size_t>(workers.threads())) * share;
    float sums[64] = {};
    for (std::size_t i = 0; i + 64 <= share; i += 64)
      for (std::size_t k = 0; k < 64; ++k) sums[k] += from[i + k];
    return sums[0] + sums[63];
  });
  return floor;
}

}  // namespace kvreplay::bench
