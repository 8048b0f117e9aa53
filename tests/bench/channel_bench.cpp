// Times how key channels interact, in the logits and in the output, and the searches for what to prune:
//   channel_bench [--benchmark_repetitions=7]

#include "sim/channels/channel_interaction.hpp"
#include "sim/channels/convex_bound.hpp"
#include "sim/channels/output_interaction.hpp"
#include "tests/bench/floor.hpp"
#include "tests/bench/random_group.hpp"

#include <benchmark/benchmark.h>

#include <cmath>
#include <numeric>
#include <random>
#include <string>
#include <vector>

namespace {

using namespace kvreplay;
using benchmark::Counter;

constexpr Index kDim = 128, kGroup = 4, kWindow = 32;

std::string size_label(Index l, const Workers& workers) {
  return "l=" + std::to_string(l) + " 32 rows G=4 d=128 float32, " + std::to_string(workers.threads()) +
         " threads";
}

/// H of one head group: both Gram matrices and their entrywise product.
void channel_interaction(benchmark::State& state) {
  const Index l = state.range(0);
  Workers workers;
  const HeadGroup<float> group = bench::random_group<float>(l, l, kDim, kGroup);
  std::vector<Index> keys(l);
  std::iota(keys.begin(), keys.end(), Index{0});
  const RowRange rows = window_rows(l, 0, kWindow);
  Matrix<double> H;
  for (auto _ : state) {
    H = gram_f64(group.k, keys, workers).cwiseProduct(query_gram(group, rows, workers));
    benchmark::DoNotOptimize(H.data());
  }
  const double n = static_cast<double>(l + kGroup * kWindow), d = kDim;
  const bench::Floor floor = bench::measure_floor(workers);
  const double half = floor.seconds(n * d * (d + 1), n * d * sizeof(float));
  const double whole = floor.seconds(2 * n * d * d, n * d * sizeof(float));
  state.counters["floor_ms"] = 1e3 * half;
  state.counters["of_floor"] = Counter(half, Counter::kIsIterationInvariantRate);
  state.counters["of_whole"] = Counter(whole, Counter::kIsIterationInvariantRate);  // both triangles' flops
  state.counters["GB/s"] = floor.bytes / 1e9;
  state.counters["GF/s"] = floor.flops() / 1e9;
  state.SetLabel(size_label(l, workers));
}
BENCHMARK(channel_interaction)
    ->Name("channel_interaction_f64")
    ->Arg(4096)
    ->Arg(32768)
    ->Unit(benchmark::kMillisecond)
    ->UseRealTime();

/// All but the recent 32 keys prunable.
void output_interaction(benchmark::State& state) {
  const Index l = state.range(0);
  Workers workers;
  const HeadGroup<float> group = bench::random_group<float>(l, l, kDim, kGroup);
  const PrunableKeys keys = prompt_keys(l, 32);
  for (auto _ : state)
    benchmark::DoNotOptimize(output_interaction(group, window_rows(l, 0, kWindow), keys, workers).data());
  const bench::Floor floor = bench::measure_floor(workers);
  // What depends on |P| d d_v; the rest is another 3 % at this size.
  const double flops = 2.0 * kGroup * kWindow * static_cast<double>(l - 32) * kDim * kDim;
  state.counters["floor_ms"] = 1e3 * flops / floor.flops();
  state.counters["of_floor"] = Counter(flops / floor.flops(), Counter::kIsIterationInvariantRate);
  state.counters["GF/s"] = floor.flops() / 1e9;
  state.SetLabel(size_label(l, workers));
}
BENCHMARK(output_interaction)->Arg(4096)->Unit(benchmark::kMillisecond)->UseRealTime();

/// Interaction matrices of channels that differ in size and share 16 directions.
std::vector<Matrix<double>> interactions(Index heads) {
  std::mt19937 engine(4);
  std::normal_distribution<double> normal;
  const auto random = [&](Index rows, Index columns) {
    Matrix<double> m(rows, columns);
    for (Index i = 0; i < m.size(); ++i) m.data()[i] = normal(engine);
    return m;
  };
  const auto correlated = [&](Index rows) {
    Matrix<double> x = random(rows, 16) * random(16, kDim) / 4 + random(rows, kDim);
    for (Index c = 0; c < kDim; ++c) x.col(c) *= std::exp(normal(engine));
    return Matrix<double>(x.transpose() * x);
  };
  std::vector<Matrix<double>> all;
  for (Index head = 0; head < heads; ++head)
    all.push_back(correlated(1024).cwiseProduct(correlated(kGroup * kWindow)));
  return all;
}

enum Search { kGreedy, kExchange, kConvex };
constexpr const char* kSearchNames[] = {"greedy", "greedy + exchange", "convex"};

/// The error of a search's set of n channels; counts the sets that their bound does not reach.
double run_search(const Matrix<double>& H, Search search, Index n, double& unproven) {
  const ChannelSet greedy = first_of(greedy_order(H, {}), n, kDim);
  if (search == kGreedy) return subset_error(H, greedy);
  if (search == kExchange) return subset_error(H, exchange_channels(H, greedy, {}));
  const BoundedSubset found = bounded_subset(H, n, {}, {});
  unproven += found.proven ? 0 : 1;
  return found.error;
}

/// Half of 128 channels, one head after the other.
void one_search(benchmark::State& state) {
  const auto search = static_cast<Search>(state.range(0));
  const std::vector<Matrix<double>> H = interactions(8);
  std::size_t head = 0;
  double unproven = 0;
  for (auto _ : state) benchmark::DoNotOptimize(run_search(H[head++ % H.size()], search, kDim / 2, unproven));
  if (search == kConvex) state.counters["unproven"] = Counter(unproven, Counter::kAvgIterations);
  state.SetLabel(std::string(kSearchNames[search]) + ", 64 of 128 channels, 1 thread");
}
BENCHMARK(one_search)->Arg(kGreedy)->Arg(kExchange)->Arg(kConvex)->Unit(benchmark::kMicrosecond);

/// What a model of 32 layers with 8 KV heads takes at four ratios.
void model_search(benchmark::State& state) {
  constexpr Index kHeads = 256, kRatios = 4;
  const auto search = static_cast<Search>(state.range(0));
  Workers workers;
  const std::vector<Matrix<double>> H = interactions(kHeads);
  std::vector<double> unproven(kHeads * kRatios);
  for (auto _ : state)
    workers.parallel_for(kHeads * kRatios, [&](Index item) {
      const auto at = static_cast<std::size_t>(item);
      unproven[at] = 0;
      const Index n = kDim * (item % kRatios + 1) / 5;
      benchmark::DoNotOptimize(run_search(H[at / kRatios], search, n, unproven[at]));
    });
  if (search == kConvex)
    state.counters["unproven"] = std::accumulate(unproven.begin(), unproven.end(), 0.0) / (kHeads * kRatios);
  state.SetLabel(std::string(kSearchNames[search]) + ", 256 heads of 128 channels, ratios 0.2 to 0.8, " +
                 std::to_string(workers.threads()) + " threads");
}
BENCHMARK(model_search)
    ->Arg(kGreedy)
    ->Arg(kExchange)
    ->Arg(kConvex)
    ->Unit(benchmark::kMillisecond)
    ->UseRealTime();

}  // namespace
