// Times how key channels interact, in the logits and in the output:
//   channel_bench [--benchmark_repetitions=7]

#include "sim/channels/channel_interaction.hpp"
#include "sim/freed_memory.hpp"
#include "tests/bench/floor.hpp"
#include "tests/bench/random_group.hpp"

#include <benchmark/benchmark.h>

#include <numeric>
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
  std::vector<Index> keys(static_cast<std::size_t>(l));
  std::iota(keys.begin(), keys.end(), Index{0});
  const Rows rows = window_rows(l, 0, kWindow);
  Matrix<double> H;
  for (auto _ : state) {
    H = gram(group.k, keys, workers).cwiseProduct(query_gram(group, rows, workers));
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
BENCHMARK(channel_interaction)->Arg(4096)->Arg(32768)->Unit(benchmark::kMillisecond)->UseRealTime();

}  // namespace

int main(int argc, char** argv) {
  keep_freed_memory();  // as the program does
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 2;
  benchmark::RunSpecifiedBenchmarks();
  return 0;
}
