// Times the exact error of kept sets, the exact searches and the exact knapsack:
//   eviction_bench [--benchmark_repetitions=7]

#include "analysis/budgets/loss_curve.hpp"
#include "sim/eviction/exact/greedy.hpp"
#include "tests/bench/floor.hpp"
#include "tests/bench/random_group.hpp"
#include "tests/support/kept_changes.hpp"

#include <benchmark/benchmark.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <numeric>
#include <random>
#include <string>
#include <vector>

namespace {

using namespace kvreplay;

constexpr Index kPrompt = 4096, kDim = 128;

/// `sets` random kept sets, as many at a half, a fifth and a tenth of the prompt.
std::vector<KeptSet> random_sets(Index sets) {
  std::mt19937 engine(2);
  std::vector<KeptSet> all;
  for (Index s = 0; s < sets; ++s) {
    const Index keep = kPrompt / (s % 3 == 0 ? 2 : s % 3 == 1 ? 5 : 10);
    KeptSet kept(kPrompt, 0);
    std::fill_n(kept.begin(), keep, std::uint8_t{1});
    std::shuffle(kept.begin(), kept.end(), engine);
    all.push_back(std::move(kept));
  }
  return all;
}

/// One head group, 128 decoding steps, several kept sets at once.
void kept_outputs(benchmark::State& state) {
  constexpr Index kSteps = 128, kGroup = 4;
  Workers workers;
  const HeadGroup<float> group = bench::random_group<float>(kPrompt + kSteps, kPrompt, kDim, kGroup);
  const std::vector<KeptSet> sets = random_sets(state.range(0));
  const RowRange rows{kPrompt, kPrompt + kSteps};
  for (auto _ : state)
    benchmark::DoNotOptimize(kept_changes(group, rows, sets, false, workers).change_sq.data());

  // K q once, a V for the whole cache and for every set.
  double entries = 2.0 * (kPrompt + kSteps / 2.0);
  for (const KeptSet& kept : sets) entries += static_cast<double>(count(kept)) + kSteps / 2.0;
  const double flops = 2.0 * kGroup * kSteps * kDim * entries;
  const bench::Floor floor = bench::measure_floor(workers);
  using benchmark::Counter;
  state.counters["floor_ms"] = 1e3 * flops / floor.flops();
  state.counters["of_floor"] = Counter(flops / floor.flops(), Counter::kIsIterationInvariantRate);
  state.SetLabel(std::to_string(sets.size()) + " kept sets, l=4096 128 steps G=4 d=128 float32, " +
                 std::to_string(workers.threads()) + " threads");
}
BENCHMARK(kept_outputs)->Arg(1)->Arg(45)->Unit(benchmark::kMillisecond)->UseRealTime();

/// byte/s at which one thread runs over three arrays of a step's size as a step does, reading all and
/// writing one.
double stream_rate(std::size_t n) {
  std::vector<double> x(n, 1.0);
  const std::vector<double> e(n, 1e-9), y(n, 1.0);
  double best = 0;
  for (int run = 0; run < 25; ++run) {
    const auto start = std::chrono::steady_clock::now();
    double sums[16] = {};
    for (std::size_t i = 0; i + 16 <= n; i += 16)
      for (std::size_t k = 0; k < 16; ++k) {
        x[i + k] -= e[i + k];
        sums[k] += x[i + k] + y[i + k];
      }
    benchmark::DoNotOptimize(sums);
    const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - start;
    best = std::max(best, 4.0 * sizeof(double) * static_cast<double>(n) / elapsed.count());
  }
  return best;
}

/// From 4096 tokens down to 5 %, 32 rows of 4 query heads, one thread.
void greedy(benchmark::State& state) {
  Workers alone(1);
  const HeadGroup<double> group = bench::random_group<double>(kPrompt + 1, kPrompt, kDim, 4);
  const RowRange rows{kPrompt - 32, kPrompt};
  const Index keep = kPrompt / 20;
  for (auto _ : state) benchmark::DoNotOptimize(greedy_exact(group, rows, keep, alone).error.data());
  // A step in float32 reads the weight, o . v and u, and writes u: 16 bytes a row and token left, and 4 d a
  // token for x . v.
  double tokens = 0;
  for (Index left = kPrompt; left > keep; --left) tokens += static_cast<double>(left);
  const double bytes = tokens * (16.0 * 4 * 32 + 4.0 * kDim), rate = stream_rate(64 * kPrompt);
  using benchmark::Counter;
  state.counters["floor_s"] = bytes / rate;
  state.counters["of_floor"] = Counter(bytes / rate, Counter::kIsIterationInvariantRate);
  state.counters["stream_GB/s"] = rate / 1e9;
  state.SetLabel("l=4096 to 205, 32 rows, G=4 d=128, 1 thread");
}
BENCHMARK(greedy)->Unit(benchmark::kSecond)->UseRealTime();

void exchange_from_greedy(benchmark::State& state) {
  Workers alone(1);
  const HeadGroup<double> group = bench::random_group<double>(kPrompt + 1, kPrompt, kDim, 4);
  const RowRange rows{kPrompt - 32, kPrompt};
  const KeptSet start = kept_by(greedy_exact(group, rows, state.range(0), alone), kPrompt, state.range(0));
  for (auto _ : state) benchmark::DoNotOptimize(exchange(group, rows, start, alone).data());
  state.SetLabel("l=4096, " + std::to_string(state.range(0)) + " kept, 32 rows, G=4 d=128, 1 thread");
}
BENCHMARK(exchange_from_greedy)->Arg(2048)->Arg(410)->Unit(benchmark::kSecond)->UseRealTime();

/// Heavy-tailed importance under an order that knows it to a factor of about e.
LossCurves heavy_tailed_curves(Index heads, Index l) {
  std::mt19937 engine(3);
  std::normal_distribution<double> normal;
  LossCurves curves(heads, l);
  for (Index head = 0; head < heads; ++head) {
    std::vector<double> importance(l), score(importance.size());
    for (std::size_t p = 0; p < importance.size(); ++p) {
      importance[p] = std::exp(2 * normal(engine));
      score[p] = importance[p] * std::exp(normal(engine));
    }
    std::vector<std::int32_t> order(importance.size());
    std::iota(order.begin(), order.end(), 0);
    std::sort(order.begin(), order.end(),
              [&](std::int32_t a, std::int32_t b) { return score[a] > score[b]; });
    curves.set(head, order, importance);
  }
  return curves;
}

void optimal_budgets(benchmark::State& state) {
  constexpr Index kLayers = 32, kHeads = 8;
  const Index l = state.range(0);
  const LossCurves curves = heavy_tailed_curves(kLayers * kHeads, l);
  const BudgetFrame frame = budget_frame(kLayers, kHeads, l, 0.8);
  for (auto _ : state) {
    const HullGreedy hull(curves, 0);
    benchmark::DoNotOptimize(optimal(frame, curves, hull).data());
  }
  state.SetLabel("32 x 8 heads, l=" + std::to_string(l) + ", sigma 0.8, hulls included, 1 thread");
}
BENCHMARK(optimal_budgets)->Arg(4096)->Arg(32768)->Unit(benchmark::kMillisecond)->UseRealTime();

}  // namespace
