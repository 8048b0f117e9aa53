#include "data/error.hpp"
#include "sim/tokens/cuda/token_readings_cuda.hpp"
#include "sim/tokens/token_metrics.hpp"
#include "tests/support/cases.hpp"
#include "tests/support/catch.hpp"
#include "tests/support/compare.hpp"
#include "tests/support/cuda_devices.hpp"
#include "tests/support/group_in_16_bits.hpp"

#include <fmt/format.h>

#include <string>
#include <vector>

using namespace kvreplay;
using namespace kvreplay::test;

namespace {

/// On every device.
void check(const TokenCase& token_case, const Tolerance& tolerance = kSingle) {
  const HeadGroup<float> group = to_float(token_case.group());
  Workers workers(1);
  const TokenMetrics want = token_metrics_reference(to_double(group), token_case.options);
  for (const cuda::DeviceInfo& device : all_devices()) {
    cuda::use_device(device.index);
    CHECK(mismatches(fmt::format("{} on {}", token_case.name, device.name), want,
                     token_metrics_cuda(group, token_case.options, workers), tolerance) == "");
  }
}

/// Those that are made of the window's weights alone, and values without the passes.
MetricSet of_weights(const MetricSet& metrics = MetricSet::all()) {
  using M = TokenMetric;
  MetricSet weights;
  for (const M m : {M::attn, M::attn_sq, M::value, M::caote, M::fastcaote})
    if (metrics.contains(m)) weights.insert(m);
  return weights;
}

/// All that a group without RoPE has.
MetricSet of_tokens() {
  MetricSet metrics = MetricSet::all();
  for (const TokenMetric m : kTokenMetrics.all())
    if (kTokenMetrics[m].rows == MetricRows::prompt || kTokenMetrics[m].on_host) metrics.erase(m);
  return metrics;
}
/// All that a group with it has, but for what takes float64.
MetricSet with_rope() {
  MetricSet metrics = of_tokens();
  metrics.insert(TokenMetric::expected_attention);
  return metrics;
}

}  // namespace

TEST_CASE("the CUDA twin agrees with the reference on small cases", "[cuda]") {
  for (const TokenCase& token_case : small_token_cases()) check(token_case);
}

TEST_CASE("the CUDA twin agrees with the reference across tile edges, in the same bits in every run",
          "[cuda]") {
  Workers workers(1);
  for (const TokenCase& token_case : large_token_cases()) {
    const HeadGroup<float> group = to_float(token_case.group());
    const TokenMetrics want = token_metrics_reference(to_double(group), token_case.options);
    for (const cuda::DeviceInfo& device : all_devices()) {
      cuda::use_device(device.index);
      const std::string name = fmt::format("{} on {}", token_case.name, device.name);
      const TokenMetrics once = token_metrics_cuda(group, token_case.options, workers),
                         again = token_metrics_cuda(group, token_case.options, workers);
      CHECK(mismatches(name, want, once, kSingle) == "");
      for (TokenMetric metric : kTokenMetrics.all()) {
        INFO(name << ": " << name_of(metric));
        CHECK(same_bytes(once[metric], again[metric]));
      }
    }
  }
}

TEST_CASE("weights alone agree with the reference, in the same bits in every run", "[cuda]") {
  Workers workers(1);
  for (const auto* const cases : {&small_token_cases(), &large_token_cases()}) {
    for (const TokenCase& token_case : *cases) {
      TokenOptions options = token_case.options;
      options.metrics = of_weights(options.metrics);
      const HeadGroup<float> group = to_float(token_case.group());
      const TokenMetrics want = token_metrics_reference(to_double(group), options);
      for (const cuda::DeviceInfo& device : all_devices()) {
        cuda::use_device(device.index);
        const std::string name = fmt::format("{} on {}", token_case.name, device.name);
        const TokenMetrics once = token_metrics_cuda(group, options, workers),
                           again = token_metrics_cuda(group, options, workers);
        CHECK(mismatches(name, want, once, kSingle) == "");
        INFO(name);
        CHECK(same_bytes(once[TokenMetric::attn], again[TokenMetric::attn]));
        CHECK(once[TokenMetric::joint].size() == 0);
      }
    }
  }
}

TEST_CASE("weights of rows that one column holds are as good as float64", "[cuda]") {
  for (TokenCase token_case : held_token_cases()) {
    token_case.options.metrics = of_weights(token_case.options.metrics);
    check(token_case, kDouble);
  }
}

TEST_CASE("kernels of weights that know their operands agree with the reference", "[cuda]") {
  using cuda::NumberType;
  struct Shape {
    Index l, d, d_v, window;
  };
  Workers workers(1);
  // Every row; few rows of a prompt in segments; a head of more channels than a block holds; odd ones.
  for (const auto& [l, d, d_v, window] : std::vector<Shape>{{200, 64, 64, 200},
                                                            {200, 128, 24, 200},
                                                            {1100, 64, 24, 20},
                                                            {2060, 128, 24, 3},
                                                            {130, 576, 24, 40},
                                                            {150, 21, 35, 150}}) {
    HeadGroup<float> group =
        to_float(random_group({.l = l, .T = l + 2, .G = 2, .d = d, .d_v = d_v, .sink_logit = 1.0}));
    group.k.row(0) *= 3;
    group.k.row(l / 2) = group.k.row(l / 2 + 60) *= 3;  // equal logits, the first is apart
    const auto check_on_devices = [&, length = l, channels = d, rows = window](
                                      const HeadGroup<float>& of, const cuda::StoredNumbers& numbers) {
      const TokenOptions options{.window = rows, .per_query_head = true, .metrics = of_weights()};
      const TokenMetrics want = token_metrics_reference(to_double(of), options);
      on_devices([&] {
        INFO(length << " tokens, " << channels << " channels, type " << static_cast<int>(numbers.type));
        CHECK(mismatches("", want, cuda::token_metrics_of(of, numbers, options, Products::f32, workers),
                         kSingle) == "");
      });
    };
    check_on_devices(group, cuda::stored_numbers(group));
    const GroupIn16Bits in_16(group, d % 2 == 0 ? NumberType::f16 : NumberType::bf16);
    check_on_devices(in_16.group(), in_16.stored());
  }
}

TEST_CASE("values come to a device for what is asked after weights", "[cuda]") {
  Workers workers(1);
  for (const Index channels : {64, 48}) {
    const HeadGroup<float> group = to_float(random_group(
        {.l = 200, .T = 210, .G = 2, .d = 64, .d_v = channels, .samples = 2, .window_gradients = 50}));
    const TokenOptions options{.window = 50, .metrics = {TokenMetric::attn, TokenMetric::exact_loss}};
    const TokenMetrics want = token_metrics_reference(to_double(group), options);
    on_devices(
        [&] { CHECK(mismatches("", want, token_metrics_cuda(group, options, workers), kSingle) == ""); });
  }
}

TEST_CASE("the largest weights of decoding steps and of a second reading agree with the reference",
          "[cuda]") {
  using M = TokenMetric;
  Workers workers(1);
  for (const Index channels : {64, 128, 40}) {
    HeadGroup<float> group = to_float(random_group(
        {.l = 200, .T = 270, .G = 2, .d = channels, .d_v = 48, .sink_logit = 0.5, .repeat = 70}));
    group.k.row(0) *= 3;
    const TokenOptions options{
        .window = 50, .per_query_head = true, .metrics = {M::oracle_importance, M::kvzip}};
    const TokenMetrics want = token_metrics_reference(to_double(group), options);
    for (const Products products : {Products::f32, Products::tensor}) {
      on_devices([&] {
        INFO(channels << " channels, products " << static_cast<int>(products));
        const TokenMetrics got =
            cuda::token_metrics_of(group, cuda::stored_numbers(group), options, products, workers);
        if (products == Products::f32) CHECK(mismatches("", want, got, kSingle) == "");
        for (const M m : {M::oracle_importance, M::kvzip})
          CHECK((got[m] - want[m]).norm() < 5e-3 * want[m].norm());
      });
    }
  }
}

TEST_CASE("a device refuses weights beyond float32", "[cuda]") {
  HeadGroup<float> group = to_float(random_group({.l = 70, .T = 75, .G = 2, .d = 8, .d_v = 8}));
  group.q[1].row(41).setConstant(1e20F);
  group.k.row(3).setConstant(1e20F);
  Workers workers(1);
  on_devices([&] {
    CHECK_THROWS_AS(token_metrics_cuda(group, {.window = 70, .metrics = {TokenMetric::attn}}, workers),
                    InputError);
    CHECK_NOTHROW(token_metrics_cuda(group, {.window = 1, .metrics = {TokenMetric::attn}}, workers));
  });
}

TEST_CASE("where one column holds all but 1e-13 the CUDA twin is as good as float64", "[cuda]") {
  for (const TokenCase& token_case : held_token_cases()) check(token_case, kDouble);
}

TEST_CASE("the CUDA twin refuses logits beyond float32", "[cuda]") {
  HeadGroup<float> group = to_float(random_group({.l = 70, .T = 75, .G = 2, .d = 8, .d_v = 8}));
  group.q[1].row(41).setConstant(1e20F);
  group.k.row(3).setConstant(1e20F);
  const MetricSet window{TokenMetric::attn, TokenMetric::exact_remove};
  Workers workers(1);
  for (const cuda::DeviceInfo& device : all_devices()) {
    cuda::use_device(device.index);
    INFO(device.name);
    CHECK_THROWS_AS(token_metrics_cuda(group, {.window = 70, .metrics = window}, workers), InputError);
    group.q[1].row(41).setConstant(1);
    CHECK_NOTHROW(token_metrics_cuda(group, {.window = 1, .metrics = window}, workers));
    group.q[1].row(41).setConstant(1e20F);
  }
}

TEST_CASE("kernels that know their operands agree with the reference", "[cuda]") {
  Workers workers(1);
  for (const Index channels : {64, 128}) {
    HeadGroup<float> group =
        to_float(random_group({.l = 260, .T = 300, .G = 2, .d = channels, .d_v = channels}));
    group.k.row(0) *= 3;                                              // a sink
    group.k.row(7).setZero();                                         // leaves nothing when its key is 0
    for (Index p = 40; p < 90; ++p) group.v.row(p) = group.v.row(1);  // distances that cancel
    for (Index p = 200; p < 202; ++p) group.v.row(p) *= 1e4F;
    const TokenOptions options{.window = 260, .metrics = of_tokens()};
    const auto check_on_devices = [&](const HeadGroup<float>& of, const cuda::StoredNumbers& numbers) {
      const TokenMetrics want = token_metrics_reference(to_double(of), options);
      for (const cuda::DeviceInfo& device : all_devices()) {
        cuda::use_device(device.index);
        INFO(channels << " channels, type " << static_cast<int>(numbers.type));
        CHECK(mismatches(device.name, want,
                         cuda::token_metrics_of(of, numbers, options, Products::f32, workers),
                         kSingle) == "");
      }
    };
    check_on_devices(group, cuda::stored_numbers(group));
    const GroupIn16Bits in_16(group, cuda::NumberType::f16);
    check_on_devices(in_16.group(), in_16.stored());
  }
}

TEST_CASE("the CUDA twin reads 16-bit numbers as they lie", "[cuda]") {
  Workers workers(1);
  for (const cuda::NumberType type : {cuda::NumberType::f16, cuda::NumberType::bf16}) {
    const GroupIn16Bits in(to_float(random_group({.l = 150,
                                                  .T = 160,
                                                  .G = 2,
                                                  .d = 80,
                                                  .d_v = 48,
                                                  .d_model = 100,
                                                  .rope = rope_of(Rope::Style::half, 64)})),
                           type);
    const TokenOptions options{.window = 100, .metrics = with_rope()};
    const TokenMetrics want = token_metrics_reference(to_double(in.group()), options);
    for (const cuda::DeviceInfo& device : all_devices()) {
      cuda::use_device(device.index);
      const TokenMetrics got =
          cuda::token_metrics_of(in.group(), in.stored(), options, Products::f32, workers);
      CHECK(mismatches(device.name, want, got, kSingle) == "");
      // The same numbers in float32 go the same way.
      const TokenMetrics from_float = token_metrics_cuda(in.group(), options, workers);
      for (TokenMetric metric : kTokenMetrics.all()) CHECK(same_bytes(got[metric], from_float[metric]));
    }
  }
}

TEST_CASE("tensor products give about three digits", "[cuda]") {
  const Index channels = GENERATE(64, 96, 128);  // known and not to the kernels
  const HeadGroup<float> group =
      to_float(random_group({.l = 200, .T = 210, .G = 2, .d = channels, .d_v = channels}));
  const TokenOptions options{.window = 200, .metrics = of_tokens()};
  const TokenMetrics want = token_metrics_reference(to_double(group), options);
  Workers workers(1);
  for (const cuda::DeviceInfo& device : all_devices()) {
    cuda::use_device(device.index);
    const TokenMetrics got = token_metrics_cuda(group, options, workers, Products::tensor);
    double most = 0;
    for (TokenMetric metric : kTokenMetrics.all()) {
      if (!options.metrics.contains(metric)) continue;
      const double off = (got[metric] - want[metric]).norm() / want[metric].norm();
      INFO(device.name << ": " << name_of(metric));
      CHECK(off < 5e-3);
      most = std::max(most, off);
    }
    CHECK(most > 1e-5);  // else it would be no mode of its own
  }
}

TEST_CASE("few rows of a long prompt are merged from its segments", "[cuda]") {
  using cuda::NumberType;
  struct Case {
    const char* name;
    NumberType type;
    GroupSpec spec;
  };
  for (const auto& [name, type, spec] : std::vector<Case>{
           {"plain", NumberType::f16, {.l = 800, .T = 801, .G = 3, .d = 64, .d_v = 64}},
           {"odd", NumberType::f32, {.l = 783, .T = 785, .G = 1, .d = 21, .d_v = 35}},
           {"sink logit", NumberType::bf16, {.l = 780, .T = 781, .G = 1, .d_v = 24, .sink_logit = 2.0}},
           {"softcap", NumberType::f32, {.l = 780, .T = 781, .G = 2, .logit_std = 9, .softcap = 10.0}},
           {"values far from 0", NumberType::f32, {.l = 780, .T = 781, .d_v = 16, .value_offset = 100}},
           // Whole blocks of tokens that no row sees, whole segments that some rows do not see.
           {"sliding window", NumberType::f16, {.l = 1200, .T = 1201, .G = 2, .sliding_window = 800}}}) {
    HeadGroup<float> group = to_float(random_group(spec));
    const Index at = spec.l / 2;
    group.k.row(at) = group.k.row(at + 300) *= 3;  // the same logit in two segments, for many rows
    const GroupIn16Bits in_16(group, type == NumberType::f32 ? NumberType::f16 : type);
    const HeadGroup<float>& of = type == NumberType::f32 ? group : in_16.group();
    const cuda::StoredNumbers numbers =
        type == NumberType::f32 ? cuda::stored_numbers(group) : in_16.stored();
    const TokenOptions options{.window = 20, .per_query_head = true, .metrics = of_tokens()};
    const TokenMetrics want = token_metrics_reference(to_double(of), options);
    Workers workers(1);
    for (const cuda::DeviceInfo& device : all_devices()) {
      cuda::use_device(device.index);
      CHECK(mismatches(fmt::format("{} on {}", name, device.name), want,
                       cuda::token_metrics_of(of, numbers, options, Products::f32, workers), kSingle) == "");
    }
  }
}

TEST_CASE("a block merges what segments a row has", "[cuda]") {
  const HeadGroup<float> group = to_float(random_group({.l = 4110, .T = 4111, .G = 1, .d_v = 35}));
  const TokenOptions options{.window = 3, .metrics = {TokenMetric::attn, TokenMetric::exact_remove}};
  const TokenMetrics want = token_metrics_reference(to_double(group), options);
  Workers workers(1);
  on_a_device(
      [&] { CHECK(mismatches("", want, token_metrics_cuda(group, options, workers), kSingle) == ""); });
}

TEST_CASE("a row may have a new largest column at every step", "[cuda]") {
  for (const Index d : {64, 24}) {
    HeadGroup<float> group =
        to_float(random_group({.l = 511, .T = 512, .G = 2, .d = d, .d_v = d + d % 16, .logit_std = 0.2}));
    // Logits rise by 1 a step of pass one: more columns lead in turn than are set aside, and all weigh.
    for (HeadMatrix<float>& q : group.q) q.col(0).setConstant(4);
    for (Index p = 0; p < group.k.rows(); ++p)
      group.k(p, 0) = static_cast<float>(static_cast<double>(p) / (64 * 4 * group.rule.scale));
    const TokenOptions options{.window = 20, .per_query_head = true, .metrics = of_tokens()};
    const TokenMetrics want = token_metrics_reference(to_double(group), options);
    Workers workers(1);
    on_devices([&] {
      CHECK(mismatches(fmt::format("d = {}", d), want, token_metrics_cuda(group, options, workers),
                       kSingle) == "");
    });
  }
}

TEST_CASE("keys and queries at float16's edges are taken as they lie", "[cuda]") {
  HeadGroup<float> group = to_float(random_group({.l = 300, .T = 301, .G = 2, .d = 64, .d_v = 64}));
  group.k.row(5).setConstant(0x1p-24F);  // subnormal
  group.k.row(6).setZero();
  group.k(7, 3) = 65504;
  group.k(7, 4) = 0x3p-24F;
  group.q[1].row(299).setConstant(0x5p-24F);
  group.q[1](298, 4) = 60000;  // meets the subnormal, and nothing at 3
  group.q[0](290, 0) = 0x1p-24F;
  for (HeadMatrix<float>& q : group.q) q.col(3).setZero();
  const GroupIn16Bits in(group, cuda::NumberType::f16);
  const TokenOptions options{.window = 30, .per_query_head = true, .metrics = of_tokens()};
  const TokenMetrics want = token_metrics_reference(to_double(in.group()), options);
  Workers workers(1);
  for (const cuda::DeviceInfo& device : all_devices()) {
    cuda::use_device(device.index);
    CHECK(mismatches(device.name, want,
                     cuda::token_metrics_of(in.group(), in.stored(), options, Products::f32, workers),
                     kSingle) == "");
  }
}
