// Pass two on devices that have less shared memory than the one that the emulation plays by itself.

#include "sim/cuda/runtime_emulated.hpp"
#include "sim/tokens/cuda/token_readings_cuda.hpp"
#include "sim/tokens/token_metrics.hpp"
#include "tests/support/catch.hpp"
#include "tests/support/compare.hpp"
#include "tests/support/cuda_devices.hpp"
#include "tests/support/group_in_16_bits.hpp"
#include "tests/support/random_group.hpp"

#include <cstdint>
#include <vector>

using namespace kvreplay;
using namespace kvreplay::test;

namespace {

constexpr std::size_t kKiB = 1024;

/// What pass two makes of d channels of keys and values: halves of each number of queries and keys, and of
/// values and outputs; without values 0.
cuda::ScorePlan plan_for(int d, int key_planes, int value_planes) {
  std::uint16_t half = 0;
  const auto matrix = [&](int planes) {
    return cuda::HalfMatrix{&half, planes > 1 ? &half : nullptr, nullptr, planes > 0 ? d : 0};
  };
  cuda::ColumnProblem problem{};
  problem.q = problem.k = matrix(key_planes);
  problem.v.halves = matrix(value_planes);
  problem.exact = value_planes > 1;
  return cuda::score_plan(problem);
}

}  // namespace

TEST_CASE("blocks of pass two are as large as a device's shared memory allows", "[emulation]") {
  using enum cuda::ScoreBlock;
  struct Row {
    std::size_t kib;  // H100 227, A100 163, RTX 30, 40 and 50 99
    int d, key_planes, value_planes;
    cuda::ScoreBlock block;
  };
  cuda::use_device(1);
  for (const auto& [kib, d, keys, values, block] : std::vector<Row>{{227, 128, 1, 2, wide},
                                                                    {227, 128, 2, 2, wide},
                                                                    {227, 256, 1, 2, narrow},
                                                                    {163, 128, 1, 2, wide},
                                                                    {163, 128, 2, 2, narrow},
                                                                    {163, 256, 1, 2, narrow},
                                                                    {99, 64, 1, 2, narrow},
                                                                    {99, 64, 2, 2, narrow},
                                                                    {99, 128, 1, 2, narrow},
                                                                    {99, 128, 1, 1, wide},
                                                                    {99, 128, 1, 0, wide},
                                                                    {99, 128, 2, 0, narrow},
                                                                    {99, 128, 2, 2, streamed},
                                                                    {64, 64, 1, 2, narrow},
                                                                    {64, 128, 1, 2, streamed}}) {
    const cuda::EmulatedSharedMemory shared(kib * kKiB);
    INFO(kib << " KiB, " << d << " channels, " << keys << " and " << values << " halves");
    const cuda::ScorePlan plan = plan_for(d, keys, values);
    CHECK(plan.block == block);
    CHECK(plan.bytes <= kib * kKiB);
  }
}

TEST_CASE("narrow blocks agree with the reference, in the same bits in every run", "[cuda]") {
  using cuda::NumberType;
  using M = TokenMetric;
  struct Case {
    std::size_t kib;
    NumberType type;
    GroupSpec spec;
    Index window;
  };
  MetricSet all = MetricSet::all();
  for (const M m : kTokenMetrics.all())
    if (kTokenMetrics[m].rows == MetricRows::prompt || kTokenMetrics[m].on_host) all.erase(m);
  const MetricSet weights{M::attn, M::attn_sq}, largest{M::oracle_importance};
  Workers workers(1);
  // All rows and a few, borders of blocks of tokens, channels that the kernels know and do not.
  for (const auto& [kib, type, spec, window] : std::vector<Case>{
           {99, NumberType::f16, {.l = 260, .T = 300, .G = 2, .d = 128, .d_v = 128}, 260},
           {99, NumberType::bf16, {.l = 257, .T = 262, .G = 3, .d = 128, .d_v = 128}, 9},
           {99, NumberType::f16, {.l = 190, .T = 230, .G = 2, .d = 64, .d_v = 64, .sliding_window = 90}, 190},
           {99, NumberType::f32, {.l = 193, .T = 200, .G = 2, .d = 64, .d_v = 64}, 70},
           {99, NumberType::f16, {.l = 140, .T = 150, .G = 2, .d = 80, .d_v = 80, .softcap = 9.0}, 140},
           {99,
            NumberType::f32,
            {.l = 150, .T = 190, .G = 2, .d = 128, .d_v = 24},
            150},  // narrow for weights
           {99, NumberType::f32, {.l = 150, .T = 190, .G = 1, .d = 160, .d_v = 24}, 20},
           {163, NumberType::f32, {.l = 200, .T = 240, .G = 2, .d = 128, .d_v = 128}, 200},
           {227, NumberType::f16, {.l = 150, .T = 190, .G = 1, .d = 256, .d_v = 256}, 40}}) {
    HeadGroup<float> group = to_float(random_group(spec));
    group.k.row(0) *= 3;                                                // a sink
    for (Index p = 70; p < 100; ++p) group.v.row(p) = group.v.row(69);  // distances that cancel
    const GroupIn16Bits in_16(group, type == NumberType::f32 ? NumberType::f16 : type);
    const HeadGroup<float>& of = type == NumberType::f32 ? group : in_16.group();
    const cuda::StoredNumbers numbers = type == NumberType::f32 ? cuda::stored_numbers(of) : in_16.stored();
    cuda::use_device(1);
    const cuda::EmulatedSharedMemory shared(kib * kKiB);
    for (const MetricSet& metrics : {all, weights, largest}) {
      const TokenOptions options{.window = window, .metrics = metrics};
      const TokenMetrics want = token_metrics_reference(to_double(of), options);
      const auto read = [&] { return cuda::token_metrics_of(of, numbers, options, Products::f32, workers); };
      const TokenMetrics once = read(), again = read();
      INFO(kib << " KiB, " << spec.d << " channels, type " << static_cast<int>(type));
      CHECK(mismatches("", want, once, kSingle) == "");
      for (const M m : kTokenMetrics.all()) CHECK(same_bytes(once[m], again[m]));
    }
  }
}
