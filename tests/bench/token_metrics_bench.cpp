// Times the fast CPU path as a ratio to its floor, measured in the same run:
//   token_metrics_bench [--benchmark_repetitions=9]

#include "sim/backend.hpp"
#include "sim/tokens/token_metrics.hpp"
#include "tests/bench/floor.hpp"
#include "tests/bench/random_group.hpp"

#include <benchmark/benchmark.h>

#include <cmath>
#include <cstdio>
#include <random>

namespace {

using namespace kvreplay;

Workers& workers() {
  static Workers all;
  return all;
}

/// All eleven window metrics of one head group, on every core.
void window_metrics(benchmark::State& state) {
  const Index l = state.range(0), w = state.range(1), G = state.range(2), d = 128;
  const HeadGroup<float> group = bench::random_group<float>(l, l, d, G);
  TokenOptions options;
  options.window = w;
  options.metrics = {TokenMetric::attn,        TokenMetric::attn_sq,     TokenMetric::value,
                     TokenMetric::key,         TokenMetric::joint,       TokenMetric::caote,
                     TokenMetric::fastcaote,   TokenMetric::exact_value, TokenMetric::exact_key,
                     TokenMetric::exact_joint, TokenMetric::exact_remove};
  const bench::Floor before = bench::measure_floor(workers());
  for (auto _ : state) benchmark::DoNotOptimize(cpu_backend().token_metrics(group, options, workers()));
  const bench::Floor after = bench::measure_floor(workers());

  // Three products of (visible entries) x d: K Q^T, V^T A, V O^T.
  const double visible = static_cast<double>(G) * static_cast<double>(w) *
                         (static_cast<double>(l) - (static_cast<double>(w) - 1) / 2);
  const double flops = 6 * visible * static_cast<double>(d);
  const double bytes = 4.0 * static_cast<double>(d * (2 * l + G * w));
  const auto rate = [&](double bench::Floor::*which) { return (before.*which + after.*which) / 2; };
  const bench::Floor floor{rate(&bench::Floor::own_flops), rate(&bench::Floor::eigen_flops),
                           rate(&bench::Floor::bytes)};
  using benchmark::Counter;
  state.counters["floor_ms"] = 1e3 * floor.seconds(flops, bytes);
  state.counters["of_floor"] = Counter(floor.seconds(flops, bytes), Counter::kIsIterationInvariantRate);
  state.counters["of_eigen_floor"] =
      Counter(std::max(flops / floor.eigen_flops, bytes / floor.bytes), Counter::kIsIterationInvariantRate);
  state.counters["matrix_GF/s"] = floor.own_flops / 1e9;
  state.counters["eigen_GF/s"] = floor.eigen_flops / 1e9;
  state.counters["memory_GB/s"] = floor.bytes / 1e9;
  state.SetLabel("l=" + std::to_string(l) + " w=" + std::to_string(w) + " G=" + std::to_string(G) +
                 " d=128 float32, " + std::to_string(workers().threads()) + " threads");
}

void shapes(benchmark::internal::Benchmark* metrics) {
  metrics->Args({4096, 4096, 1})
      ->Args({4096, 32, 1})
      ->Args({4096, 32, 4})
      ->Args({32768, 32, 4})
      ->Unit(benchmark::kMillisecond)
      ->UseRealTime()
      ->MeasureProcessCPUTime();
}

BENCHMARK(window_metrics)->Apply(shapes);

}  // namespace
