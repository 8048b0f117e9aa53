#include "sim/tokens/token_metrics.hpp"
#include "tests/support/cases.hpp"
#include "tests/support/catch.hpp"
#include "tests/support/compare.hpp"

#include <fmt/format.h>

#include <string>

using namespace kvreplay;
using namespace kvreplay::test;

namespace {

/// One line for every metric that misses; empty where the twins agree.
std::string mismatches(const std::string& name, const TokenMetrics& want, const TokenMetrics& got,
                       const Tolerance& tolerance) {
  std::string lines;
  for (TokenMetric metric : all_token_metrics()) {
    const std::string line =
        mismatch(fmt::format("{}: {}", name, name_of(metric)), want[metric], got[metric], tolerance);
    if (!line.empty()) lines += "\n" + line;
  }
  return lines;
}

void check_double(const TokenCase& token_case) {
  const HeadGroup<double> group = token_case.group();
  Workers workers(1);
  CHECK(mismatches(token_case.name + ", float64", token_metrics_reference(group, token_case.options),
                   token_metrics_cpu(group, token_case.options, workers), kDouble) == "");
}

void check_single(const TokenCase& token_case) {
  const HeadGroup<float> group = to_float(token_case.group());
  Workers workers(1);
  CHECK(mismatches(token_case.name + ", float32",
                   token_metrics_reference(to_double(group), token_case.options),
                   token_metrics_cpu(group, token_case.options, workers), kSingle) == "");
}

template <class T>
void check_threads(const TokenCase& token_case, const HeadGroup<T>& group) {
  Workers alone(1);
  const TokenMetrics want = token_metrics_cpu(group, token_case.options, alone);
  for (const int threads : {2, 3, 8}) {
    Workers workers(threads);
    const TokenMetrics got = token_metrics_cpu(group, token_case.options, workers);
    for (TokenMetric metric : all_token_metrics()) {
      INFO(token_case.name << ": " << name_of(metric) << ", " << threads << " threads");
      CHECK(same_bytes(want[metric], got[metric]));
    }
  }
}

}  // namespace

TEST_CASE("the float64 CPU twin agrees with the reference on small cases", "[token_metrics]") {
  for (const TokenCase& token_case : small_token_cases()) check_double(token_case);
}

TEST_CASE("the float32 CPU twin agrees with the reference on small cases", "[token_metrics]") {
  for (const TokenCase& token_case : small_token_cases()) check_single(token_case);
}

TEST_CASE("the float64 CPU twin agrees with the reference across tile edges", "[token_metrics]") {
  for (const TokenCase& token_case : large_token_cases()) check_double(token_case);
}

TEST_CASE("the float32 CPU twin agrees with the reference across tile edges", "[token_metrics]") {
  for (const TokenCase& token_case : large_token_cases()) check_single(token_case);
}

TEST_CASE("the CPU twin gives the same bytes with any number of threads", "[token_metrics]") {
  for (const TokenCase& token_case : small_token_cases()) {
    check_threads(token_case, token_case.group());
    check_threads(token_case, to_float(token_case.group()));
  }
  for (const TokenCase& token_case : large_token_cases()) {
    check_threads(token_case, to_float(token_case.group()));
  }
}

TEST_CASE("the CPU twin computes what it is asked for and nothing else", "[token_metrics]") {
  const HeadGroup<double> group = random_group({.rope = rope_of(Rope::Style::half, 8)});
  Workers workers(1);
  const TokenMetrics all = token_metrics_cpu(group, {.window = 8}, workers);
  for (TokenMetric asked : all_token_metrics()) {
    const TokenMetrics only = token_metrics_cpu(group, {.window = 8, .metrics = {asked}}, workers);
    for (TokenMetric metric : all_token_metrics()) {
      INFO("asked for " << name_of(asked) << ", got " << name_of(metric));
      if (metric == asked) {
        CHECK(mismatch("alone", all[metric], only[metric], kDouble) == "");
      } else {
        CHECK(only[metric].size() == 0);
      }
    }
  }
}
