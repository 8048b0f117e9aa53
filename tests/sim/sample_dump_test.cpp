#include "sim/attention.hpp"
#include "sim/tokens/token_metrics.hpp"
#include "tests/support/catch.hpp"
#include "tests/support/compare.hpp"
#include "tests/support/places.hpp"

#include <fmt/format.h>

#include <cmath>
#include <fstream>
#include <map>
#include <sstream>
#include <string>
#include <tuple>
#include <vector>

// The sample dump: reference and CPU twins against tests/golden, which was computed without this code.

using namespace kvreplay;
using namespace kvreplay::test;

namespace {

/// What tests/golden/*.tokens.csv holds of one metric of one head group.
struct Golden {
  double sum = 0.0;
  double moment = 0.0;           ///< of positions times values: no two of all the tokens may change places
  std::vector<Index> positions;  ///< sampled ones, and that of the largest value
  std::vector<double> values;

  Matrix<double> want() const {
    return Eigen::Map<const Matrix<double>>(values.data(), 1, std::ssize(values));
  }
  Matrix<double> at_positions(const Matrix<double>& row) const {
    Matrix<double> out(1, std::ssize(positions));
    for (Index n = 0; n < out.cols(); ++n) out(0, n) = row(0, positions[n]);
    return out;
  }
};
using GoldenFile = std::map<std::tuple<Index, Index, TokenMetric>, Golden>;

GoldenFile read_golden(Index window) {
  const std::string path =
      fmt::format("{}/tests/golden/pystdlib-lm.w{}.tokens.csv", test::source_dir().string(), window);
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  REQUIRE(line == "layer,kv_head,metric,what,position,value");
  GoldenFile golden;
  while (std::getline(file, line)) {
    std::istringstream fields(line);
    std::string layer, kv_head, metric, what, position, value;
    for (std::string* field : {&layer, &kv_head, &metric, &what, &position, &value}) {
      std::getline(fields, *field, ',');
    }
    Golden& entry = golden[{std::stol(layer), std::stol(kv_head), kTokenMetrics.named(metric).value()}];
    if (what == "sum") {
      entry.sum = std::stod(value);
    } else if (what == "moment") {
      entry.moment = std::stod(value);
    } else {
      entry.positions.push_back(std::stol(position));
      entry.values.push_back(std::stod(value));
    }
  }
  return golden;
}

void check_all_tokens(const Golden& want, const Matrix<double>& got, double allowed) {
  CHECK(got.sum() == Approx(want.sum).epsilon(allowed));
  const double moment =
      got.row(0).dot(Vector<double>::LinSpaced(got.cols(), 0, static_cast<double>(got.cols() - 1)));
  CHECK(std::abs(moment - want.moment) <= allowed * static_cast<double>(got.cols()) * got.cwiseAbs().sum());
}

Dump sample() { return Dump::open(test::source_dir() / "data/samples/pystdlib-lm"); }

/// All that the sample has.
MetricSet of_the_sample() {
  MetricSet metrics = MetricSet::standard();
  for (const TokenMetricFacts& facts : kTokenMetrics)
    if (facts.of_gradients || facts.rows == MetricRows::repeat) metrics.erase(facts.id);
  return metrics;
}

struct ExactMetric {
  TokenMetric metric;
  TokenChange change;
  RowRange rows;
};

/// The reference's exact errors at some positions only: all of them would take minutes.
Matrix<double> exact_errors(const HeadGroup<double>& group, const ExactMetric& exact,
                            const std::vector<Index>& positions) {
  Matrix<double> sums = Matrix<double>::Zero(1, std::ssize(positions));
  for (Index g = 0; g < group.G(); ++g) {
    for (Index i = exact.rows.begin; i < exact.rows.end; ++i) {
      sums += brute_force_errors(group, g, i, exact.change, positions).transpose();
    }
  }
  return sums;
}

void check_reference(const Dump& dump, Index window, const GoldenFile& golden, Index layer, Index kv_head) {
  const HeadGroup<double> group = load_head_group<double>(dump, layer, kv_head);
  const RowRange rows = window_rows(group.l, group.first_query(), window);
  const RowRange future = future_rows(group.l, group.T_all(), group.first_query());
  const ExactMetric exact_metrics[] = {
      {TokenMetric::exact_value, TokenChange::zero_value, rows},
      {TokenMetric::exact_key, TokenChange::zero_key, rows},
      {TokenMetric::exact_joint, TokenChange::zero_key_and_value, rows},
      {TokenMetric::exact_remove, TokenChange::remove, rows},
      {TokenMetric::oracle_next, TokenChange::remove, {future.begin, future.begin + 1}},
      {TokenMetric::oracle_future, TokenChange::remove, future}};
  TokenOptions options{window, false, of_the_sample()};
  for (const ExactMetric& exact : exact_metrics) {
    options.metrics.erase(exact.metric);
    const Golden& want = golden.at({layer, kv_head, exact.metric});
    const std::string label =
        fmt::format("w {}, layer {}, KV head {}, {}", window, layer, kv_head, name_of(exact.metric));
    CHECK(mismatch(label, want.want(), exact_errors(group, exact, want.positions), kDouble) == "");
  }
  const TokenMetrics metrics = token_metrics_reference(group, options);
  for (TokenMetric metric : kTokenMetrics.all()) {
    if (!options.metrics.contains(metric)) continue;
    const Golden& want = golden.at({layer, kv_head, metric});
    const std::string label =
        fmt::format("w {}, layer {}, KV head {}, {}", window, layer, kv_head, name_of(metric));
    CHECK(mismatch(label, want.want(), want.at_positions(metrics[metric]), kDouble) == "");
    INFO(label);
    check_all_tokens(want, metrics[metric], 1e-9);
  }
}

template <class T>
void check_twin(const Dump& dump, Index window, const GoldenFile& golden, const Tolerance& tolerance) {
  Workers workers;
  for (const auto& [key, want] : golden) {
    const auto [layer, kv_head, first_metric] = key;
    if (first_metric != TokenMetric::attn) continue;
    const TokenMetrics got = token_metrics_cpu(load_head_group<T>(dump, layer, kv_head), {window}, workers);
    for (TokenMetric metric : kTokenMetrics.all()) {
      if (!of_the_sample().contains(metric)) continue;
      const Golden& entry = golden.at({layer, kv_head, metric});
      const std::string label =
          fmt::format("w {}, layer {}, KV head {}, {}", window, layer, kv_head, name_of(metric));
      CHECK(mismatch(label, entry.want(), entry.at_positions(got[metric]), tolerance) == "");
      INFO(label);
      check_all_tokens(entry, got[metric], tolerance.of_largest);
    }
  }
}

}  // namespace

TEST_CASE("the reference gives the golden values of the sample dump, window 32", "[sample]") {
  const Dump dump = sample();
  const GoldenFile golden = read_golden(32);
  REQUIRE(std::ssize(golden) == Index{6 * 2} * std::ranges::count_if(kTokenMetrics.all(), [](TokenMetric m) {
                                  return of_the_sample().contains(m);
                                }));
  for (Index layer = 0; layer < 6; ++layer) {
    for (Index kv_head = 0; kv_head < 2; ++kv_head) check_reference(dump, 32, golden, layer, kv_head);
  }
}

TEST_CASE("the reference gives the golden values of the sample dump, whole prompt", "[sample]") {
  check_reference(sample(), 896, read_golden(896), 5, 1);
}

TEST_CASE("the CPU twins give the golden values of the sample dump, window 32", "[sample]") {
  const Dump dump = sample();
  const GoldenFile golden = read_golden(32);
  check_twin<double>(dump, 32, golden, kDouble);
  check_twin<float>(dump, 32, golden, kSingle);
}

TEST_CASE("the CPU twins give the golden values of the sample dump, whole prompt", "[sample]") {
  const Dump dump = sample();
  const GoldenFile golden = read_golden(896);
  check_twin<double>(dump, 896, golden, kDouble);
  check_twin<float>(dump, 896, golden, kSingle);
}
