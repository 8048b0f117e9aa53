#include "data/error.hpp"
#include "sim/cuda/runtime.hpp"
#include "sim/tokens/token_metrics.hpp"
#include "tests/support/cases.hpp"
#include "tests/support/catch.hpp"
#include "tests/support/compare.hpp"

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
  for (const cuda::DeviceInfo& device : cuda::find_devices().found) {
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
