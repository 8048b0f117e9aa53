// Times decoding steps with an eviction each, as a ratio to their floor, measured in the same run:
//   decode_bench [--benchmark_repetitions=9]
// A run has one thread: its own CPU time is what counts.

#include "sim/backend.hpp"
#include "sim/eviction/decode/decode.hpp"
#include "sim/tokens/token_metrics.hpp"
#include "tests/bench/floor.hpp"
#include "tests/bench/random_group.hpp"

#include <benchmark/benchmark.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <random>
#include <string>
#include <vector>

namespace {

using namespace kvreplay;

constexpr Index kPrompt = 4096, kSteps = 512, kBudget = 1024, kDim = 128;

/// byte/s at which one thread reads a buffer of this size again and again, as steps read their cache.
double read_rate(std::size_t bytes) {
  const std::vector<float> buffer(bytes / sizeof(float), 1.0f);
  double best = 0;
  for (int run = 0; run < 9; ++run) {
    constexpr int kRepeats = 20;
    const auto start = std::chrono::steady_clock::now();
    float sums[64] = {};
    for (int repeat = 0; repeat < kRepeats; ++repeat)
      for (std::size_t i = 0; i + 64 <= buffer.size(); i += 64)
        for (std::size_t k = 0; k < 64; ++k) sums[k] += buffer[i + k];
    benchmark::DoNotOptimize(sums);
    const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - start;
    best = std::max(best, kRepeats * static_cast<double>(bytes) / elapsed.count());
  }
  return best;
}

struct Run {
  const char* name;
  EvictionBase base;
  std::optional<TokenMetric> metric;
  DecodeOptions options;
};

const std::vector<Run>& runs() {
  static const std::vector<Run> all = {
      {"h2o", EvictionBase::h2o, {}, {}},
      {"tova", EvictionBase::tova, {}, {}},
      {"h2o+joint", EvictionBase::h2o, TokenMetric::joint, {}},
      {"h2o+caote", EvictionBase::h2o, TokenMetric::caote, {}},
      {"keydiff", EvictionBase::keydiff, {}, {}},
      {"h2o+exact_joint", EvictionBase::h2o, TokenMetric::exact_joint, {}},
      {"h2o, window 128", EvictionBase::h2o, {}, {.window = 128}},
  };
  return all;
}

void decode(benchmark::State& state) {
  const Run& run = runs()[state.range(0)];
  const Index G = state.range(1);
  Workers alone(1);
  const HeadGroup<float> group = bench::random_group<float>(kPrompt + kSteps, kPrompt, kDim, G);
  PolicyOverrides overrides;
  if (run.base == EvictionBase::h2o)
    overrides.window = 32;  // of the prompt, whose scores are not what is timed
  Policy policy;
  policy.base = run.base;
  policy.metric = run.metric;
  const EvictionRule rule = rule_of(policy, Semantics::paper, overrides, kPrompt, kBudget, false);
  const Matrix<double> scores = decode_start_scores(group, rule, run.options, alone);
  KeptSet start(kPrompt, 0);
  for (Index p = 0; p < kPrompt; p += kPrompt / kBudget) start[p] = 1;
  const std::vector<Matrix<float>> full = decode_full_outputs(group, alone);

  for (auto _ : state)
    benchmark::DoNotOptimize(
        decode_replay(group, rule, start, kBudget, run.options, scores, full, alone).change_sq.data());

  // K q and a V over B + 1 tokens; keys and values read once.
  const double numbers = 2.0 * kDim * (kBudget + 1), flops = 2 * static_cast<double>(G) * numbers;
  const bench::Floor floor = bench::measure_floor(alone);
  const double bytes_rate = read_rate(static_cast<std::size_t>(numbers) * sizeof(float));
  const double seconds = std::max(flops / floor.flops(), sizeof(float) * numbers / bytes_rate);
  using benchmark::Counter;
  state.counters["a_step"] =
      Counter(static_cast<double>(kSteps), Counter::kIsIterationInvariantRate | Counter::kInvert);
  state.counters["floor_us"] = 1e6 * seconds;
  state.counters["of_floor"] = Counter(seconds * kSteps, Counter::kIsIterationInvariantRate);
  state.counters["matrix_GF/s"] = floor.flops() / 1e9;
  state.counters["cache_GB/s"] = bytes_rate / 1e9;
  state.SetLabel(std::string(run.name) + ", l=4096 B=1024 512 steps G=" + std::to_string(G) +
                 " d=128 float32, 1 thread");
}

void arguments(benchmark::internal::Benchmark* bench) {
  for (const Index G : {1, 4})
    for (std::size_t run = 0; run < runs().size(); ++run) bench->Args({static_cast<Index>(run), G});
}
BENCHMARK(decode)->Apply(arguments)->Unit(benchmark::kMillisecond);

/// What the uncompressed cache gives at those steps, once a group, on every core.
void full_outputs(benchmark::State& state) {
  Workers workers;
  const HeadGroup<float> group = bench::random_group<float>(kPrompt + kSteps, kPrompt, kDim, state.range(0));
  for (auto _ : state) benchmark::DoNotOptimize(decode_full_outputs(group, workers).front().data());
  const double flops = 4.0 * static_cast<double>(state.range(0)) * kDim * kSteps * (kPrompt + kSteps / 2.0);
  const bench::Floor floor = bench::measure_floor(workers);
  state.counters["floor_ms"] = 1e3 * flops / floor.flops();
  state.counters["of_floor"] =
      benchmark::Counter(flops / floor.flops(), benchmark::Counter::kIsIterationInvariantRate);
  state.SetLabel("l=4096 512 steps G=" + std::to_string(state.range(0)) + " d=128 float32, " +
                 std::to_string(workers.threads()) + " threads");
}
BENCHMARK(full_outputs)->Arg(1)->Arg(4)->Unit(benchmark::kMillisecond)->UseRealTime();

}  // namespace
