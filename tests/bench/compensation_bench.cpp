// Times what a kept set's values and masses are fitted in, and the search for what fits make up for:
//   compensation_bench [--benchmark_repetitions=7]

#include "sim/compensation/compensate.hpp"
#include "sim/tokens/leverage.hpp"
#include "tests/bench/floor.hpp"
#include "tests/bench/random_group.hpp"

#include <benchmark/benchmark.h>

#include <string>

namespace {

using namespace kvreplay;
using benchmark::Counter;

constexpr Index kDim = 128, kRows = 1000;

/// float64 products run at half the rate.
void count(benchmark::State& state, double flops, Workers& workers, const std::string& label) {
  const double seconds = flops / (bench::measure_floor(workers).flops() / 2);
  state.counters["floor_ms"] = 1e3 * seconds;
  state.counters["of_floor"] = Counter(seconds, Counter::kIsIterationInvariantRate);
  state.SetLabel(label + ", " + std::to_string(workers.threads()) + " threads");
}

/// One head group's kept fifth; the floor is two Gram products and two Cholesky factors: what a fit with
/// given ridges cannot do without. The choice of a ridge is a factor and a solution each on top.
void fit(benchmark::State& state, const FixedRidges& ridges, const char* which) {
  const Index l = state.range(0), m = l / 5;
  Workers workers;
  const HeadGroup<float> group = bench::random_group<float>(l, l, kDim, 1);
  const ReferenceRows<float> rows =
      reference_rows(group, {.kind = Reference::window, .window = kRows}, workers);
  KeptSet kept(static_cast<std::size_t>(l), 0);
  for (Index p = 0; p < m; ++p) kept[p * 5] = 1;
  for (auto _ : state)
    benchmark::DoNotOptimize(
        compensated(group, kept, Compensation::fit, &rows, workers, ridges).values.data());
  const double n = kRows, M = static_cast<double>(m), wide = M + kDim;
  count(state, n * M * M + n * wide * wide + 2 * M * M * M / 3, workers,
        "l=" + std::to_string(l) + " |M|=" + std::to_string(m) + " 1000 rows d=128 float32, " + which);
}
BENCHMARK_CAPTURE(fit, chosen, FixedRidges{}, "7 lambdas, 7 mus")
    ->Arg(1024)
    ->Arg(4096)
    ->Unit(benchmark::kMillisecond)
    ->UseRealTime();
BENCHMARK_CAPTURE(fit, given, (FixedRidges{.lambda = 1, .mu = 1}), "given ridges")
    ->Arg(1024)
    ->Arg(4096)
    ->Unit(benchmark::kMillisecond)
    ->UseRealTime();

void reference(benchmark::State& state) {
  const Index l = state.range(0);
  Workers workers;
  const HeadGroup<float> group = bench::random_group<float>(l, l, kDim, 1);
  for (auto _ : state)
    benchmark::DoNotOptimize(
        reference_rows(group, {.kind = Reference::window, .window = kRows}, workers).fitted.n);
  const double products = 2.0 * kRows * static_cast<double>(l) * 2 * kDim;
  count(state, products / 2, workers,
        "l=" + std::to_string(l) + " 1000 rows d=128 float32");  // not float64's
}
BENCHMARK(reference)->Arg(4096)->Unit(benchmark::kMillisecond)->UseRealTime();

}  // namespace
