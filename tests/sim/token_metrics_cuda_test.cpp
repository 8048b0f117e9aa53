#include "data/error.hpp"
#include "sim/tokens/token_metrics.hpp"
#include "tests/support/cases.hpp"
#include "tests/support/catch.hpp"
#include "tests/support/compare.hpp"
#include "tests/support/cuda_devices.hpp"

#include <fmt/format.h>

#include <string>

using namespace kvreplay;
using namespace kvreplay::test;

namespace {

std::string mismatches(const std::string& name, const TokenMetrics& want, const TokenMetrics& got) {
  std::string lines;
  for (TokenMetric metric : all_token_metrics()) {
    const std::string line =
        mismatch(fmt::format("{}: {}", name, name_of(metric)), want[metric], got[metric], kSingle);
    if (!line.empty()) lines += "\n" + line;
  }
  return lines;
}

/// On every device.
void check(const TokenCase& token_case) {
  const HeadGroup<float> group = to_float(token_case.group());
  Workers workers(1);
  const TokenMetrics want = token_metrics_reference(to_double(group), token_case.options);
  for (const cuda::DeviceInfo& device : all_devices()) {
    cuda::use_device(device.index);
    CHECK(mismatches(fmt::format("{} on {}", token_case.name, device.name), want,
                     token_metrics_cuda(group, token_case.options, workers)) == "");
  }
}

}  // namespace

TEST_CASE("the CUDA twin agrees with the reference on small cases", "[cuda]") {
  for (const TokenCase& token_case : small_token_cases()) check(token_case);
}

TEST_CASE("the CUDA twin agrees with the reference across tile edges", "[cuda]") {
  for (const TokenCase& token_case : large_token_cases()) check(token_case);
}

TEST_CASE("the CUDA twin gives the same bits in every run", "[cuda]") {
  Workers workers(1);
  for (const TokenCase& token_case : large_token_cases()) {
    const HeadGroup<float> group = to_float(token_case.group());
    for (const cuda::DeviceInfo& device : all_devices()) {
      cuda::use_device(device.index);
      const TokenMetrics once = token_metrics_cuda(group, token_case.options, workers),
                         again = token_metrics_cuda(group, token_case.options, workers);
      for (TokenMetric metric : all_token_metrics()) {
        INFO(token_case.name << " on " << device.name << ": " << name_of(metric));
        CHECK(same_bytes(once[metric], again[metric]));
      }
    }
  }
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
