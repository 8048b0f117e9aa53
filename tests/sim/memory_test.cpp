#include "sim/tokens/token_metrics.hpp"
#include "tests/support/catch.hpp"

#include <cmath>
#include <fstream>
#include <string>

using namespace kvreplay;

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define KVREPLAY_SANITIZED
#else
namespace {

/// A line of /proc/self/status in bytes, 0 where there is none.
double status_bytes(const std::string& key) {
  std::ifstream status("/proc/self/status");
  std::string word;
  double kib = 0;
  while (status >> word)
    if (word == key + ":" && status >> kib) return kib * 1024;
  return 0;
}

/// Forgets the largest resident size so far; false where the kernel does not let us.
bool reset_peak() {
  std::ofstream refs("/proc/self/clear_refs");
  return refs && (refs << 5 << std::flush);
}

}  // namespace
#endif

// An l x l matrix of floats would be 1 GiB.
TEST_CASE("a whole prompt of 16384 tokens is scored within 400 MiB above its inputs", "[memory]") {
#if defined(KVREPLAY_SANITIZED)
  WARN("skipped: sanitizers have memory of their own");
  SUCCEED();
#else
  const Index l = 16384, d = 128;
  HeadGroup<float> group;
  group.l = l;
  group.rule.scale = 1 / std::sqrt(static_cast<double>(d));
  group.k = Matrix<float>::Random(l, d);
  group.v = Matrix<float>::Random(l, d);
  group.q.assign(2, Matrix<float>::Random(l, d));
  TokenOptions options;
  options.window = l;
  for (const TokenMetric m : kTokenMetrics.all())
    if (kTokenMetrics[m].kind == MetricKind::oracle || kTokenMetrics[m].rows == MetricRows::prompt)
      options.metrics.erase(m);
  Workers workers;

  const double before = status_bytes("VmRSS");
  REQUIRE(before > 0);
  if (!reset_peak()) WARN("the kernel does not reset the peak: the inputs' own peak counts too");
  const TokenMetrics metrics = token_metrics_cpu(group, options, workers);
  const double used = status_bytes("VmHWM") - before;
  INFO("used " << used / 1048576 << " MiB");
  CHECK(used > 0);
  CHECK(used <= 400.0 * 1048576);
  CHECK(metrics[TokenMetric::attn].sum() == Approx(2.0 * l).epsilon(1e-4));
#endif
}
