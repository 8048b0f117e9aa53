#include "viewer/questions/token_tint.hpp"

#include "analysis/results/result_reader.hpp"
#include "tests/analysis/kvreplay_program.hpp"
#include "tests/support/temp_dir.hpp"
#include "tests/viewer/on_queue.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>

using namespace kvreplay;
using namespace kvreplay::viewer;

TEST_CASE("a layer's sums are those of its heads one by one", "[token_tint]") {
  const auto run = Run::open(test::sample_dump(), 1);
  const DumpShape& shape = run->shape();
  for (const TokenMetric metric : {TokenMetric::exact_remove, TokenMetric::oracle_importance}) {
    const TokenSums sums =
        test::on_queue([&](JobControl& job) { return layer_token_sums(*run, 3, metric, 20, job); });
    REQUIRE(std::ssize(sums.values) == shape.l);
    // The judge: float64, by recomputing the attention.
    TokenOptions options;
    options.window = 20;
    options.metrics = {metric};
    std::vector<double> expected(shape.l, 0.0);
    for (Index g = 0; g < shape.n_kv; ++g) {
      const TokenMetrics found =
          token_metrics_reference(load_head_group<double>(*run->dump(), 3, g), options);
      for (Index p = 0; p < shape.l; ++p) expected[p] += found[metric](0, p);
    }
    const double largest = *std::max_element(expected.begin(), expected.end());
    double off = 0;
    for (Index p = 0; p < shape.l; ++p) off = std::max(off, std::abs(sums.values[p] - expected[p]));
    CHECK(off <= 2e-4 * largest);
  }
}

TEST_CASE("results give the same sums without their dump, and say what they lack", "[token_tint]") {
  const test::TempDir dir;
  const std::string dump = (dir / "dump").string(), out = (dir / "out").string();
  std::filesystem::copy(test::sample_dump(), dump, std::filesystem::copy_options::recursive);
  REQUIRE(test::run_kvreplay({"tokens", dump, "--out", out, "--precision", "f32", "--window", "20",
                              "--metrics", "attn,exact_remove", "--layers", "2", "--quiet"})
              .code == 0);
  const auto sums_of = [&](const std::filesystem::path& path, TokenMetric metric) {
    const auto run = Run::open(path, 1);
    return test::on_queue([&](JobControl& job) { return layer_token_sums(*run, 2, metric, 20, job); });
  };
  const TokenSums live = sums_of(dump, TokenMetric::attn);
  std::filesystem::remove_all(dump);
  const TokenSums read = sums_of(out, TokenMetric::attn);
  REQUIRE(read.values.size() == live.values.size());
  for (std::size_t p = 0; p < read.values.size(); ++p)
    CHECK(read.values[p] == Approx(live.values[p]).epsilon(1e-6));
  const auto run = Run::open(out, 1);
  JobQueue queue({2, std::size_t{1} << 28, {}, {}});
  const auto ask = [&](Index layer, TokenMetric metric) {
    const JobRequest request{.key = {"sums", layer, metric}, .title = "sums"};
    const auto compute = [&](JobControl& job) { return layer_token_sums(*run, layer, metric, 20, job); };
    queue.ask<TokenSums>(request, compute);
    REQUIRE(queue.wait_idle(std::chrono::minutes(1)));
    return queue.ask<TokenSums>(request, compute).error;
  };
  CHECK(ask(2, TokenMetric::joint).find("no joint of layer 2") != std::string::npos);
  CHECK_FALSE(ask(1, TokenMetric::attn).empty());
}

TEST_CASE("a tint orders tokens as their values do", "[token_tint]") {
  std::mt19937 random(5);
  std::vector<double> values;
  for (int i = 0; i < 1000; ++i) values.push_back(std::exp(-static_cast<double>(random() % 400) / 20));
  const TokenTint tint = token_tint(values);
  CHECK(tint.scale.kind == ScaleKind::log);
  CHECK(tint.scale.high == static_cast<float>(*std::max_element(values.begin(), values.end())));
  std::vector<double> sorted = values;
  std::sort(sorted.begin(), sorted.end());
  CHECK(static_cast<double>(tint.scale.low) == Approx((sorted[499] + sorted[500]) / 2).epsilon(1e-5));
  for (Index p = 0; p < 1000; ++p) {
    const auto before = std::count_if(values.begin(), values.end(), [&](double v) { return v > values[p]; }) +
                        std::count(values.begin(), values.begin() + p, values[p]);
    CHECK(tint.place[p] == before);
    const Index other = static_cast<Index>(random() % 1000);
    if (values[p] < values[other]) {
      CHECK(tint.level[p] <= tint.level[other]);
      CHECK(tint.rank_level(p) <= tint.rank_level(other));
    }
  }
}

TEST_CASE("tints of unkind values", "[token_tint]") {
  CHECK(token_tint({}).level.empty());
  const double nan = std::numeric_limits<double>::quiet_NaN(), inf = std::numeric_limits<double>::infinity();
  const TokenTint mixed = token_tint({nan, -1, 0, 1, inf, -inf});
  CHECK(mixed.scale.kind == ScaleKind::linear);
  CHECK(mixed.scale.low == -1);
  CHECK(mixed.scale.high == 1);
  CHECK(mixed.level == std::vector<std::int16_t>{0, 0, 128, 255, 255, 0});
  const TokenTint zeros = token_tint({0, 0, 0});
  CHECK(zeros.level == std::vector<std::int16_t>{0, 0, 0});
  const TokenTint one = token_tint({3});
  CHECK(one.place == std::vector<std::int32_t>{0});
  CHECK(one.rank_level(0) == 255);
  CHECK(token_tint({nan, nan}).level == std::vector<std::int16_t>{0, 0});
  const TokenTint sparse = token_tint({0, 0, 1e-300, 5});
  CHECK(sparse.level[3] == 255);
  CHECK(sparse.level[0] == 0);
}

TEST_CASE("counts are those of the last kept set of every head", "[token_tint]") {
  std::mt19937 random(9);
  const Index heads = 7, l = 40;
  KeptCounts counts;
  counts.reset(heads, l);
  std::vector<KeptSet> last(heads);
  for (int step = 0; step < 60; ++step) {
    const auto head = static_cast<Index>(random() % heads);
    KeptSet kept(l);
    for (auto& each : kept) each = random() % 3 == 0;
    counts.take(head, kept);
    last[head] = kept;
    for (Index p = 0; p < l; ++p) {
      Index expected = 0;
      for (const KeptSet& set : last) expected += !set.empty() && set[p] != 0 ? 1 : 0;
      CHECK(counts.count(p) == expected);
    }
    CHECK(counts.heads() ==
          std::count_if(last.begin(), last.end(), [](const KeptSet& s) { return !s.empty(); }));
  }
  counts.reset(2, 3);
  CHECK(counts.heads() == 0);
  CHECK(counts.count(2) == 0);
}

TEST_CASE("a text is tinted by what is other in another run, either way", "[token_tint]") {
  const std::vector<double> own = {1, 5, 2, 8, 8, 1}, pinned = {1, 2, 4, 0, 7.5, 6};
  const TokenTint tint = difference_tint(own, pinned, false);
  CHECK(tint.is_difference);
  CHECK(tint.values == std::vector<double>{0, 3, -2, 8, 0.5, -5});
  CHECK(tint.place == std::vector<std::int32_t>{5, 2, 3, 0, 4, 1});  // by magnitude
  CHECK(tint.level[0] == 0);
  CHECK(tint.level[3] == 255);
  CHECK(tint.level[5] < 0);
  CHECK(tint.level[5] > -255);
  CHECK(tint.level[1] == 0);  // where the scale begins: the median magnitude above 0
  for (const bool by_rank : {false, true}) CHECK(tint.shown_level(5, by_rank) == tint.level[5]);
  // The other way round every sign turns.
  const TokenTint turned = difference_tint(pinned, own, false);
  for (std::size_t p = 0; p < own.size(); ++p) {
    CHECK(turned.level[p] == -tint.level[p]);
    CHECK(turned.values[p] == -tint.values[p]);
  }
  // Places: 4, 2, 3, 0, 1, 5 here and 4, 3, 2, 5, 0, 1 there.
  CHECK(difference_tint(own, pinned, true).values == std::vector<double>{0, 1, -1, 5, -1, -4});
  // A run less itself, and rounding alone, are nothing.
  std::vector<double> rounded = own;
  for (double& v : rounded) v *= 1 + 1e-13;
  for (const bool by_rank : {false, true}) {
    const TokenTint none = difference_tint(own, rounded, by_rank);
    CHECK(std::all_of(none.level.begin(), none.level.end(), [](int level) { return level == 0; }));
  }
  const double nan = std::numeric_limits<double>::quiet_NaN();
  const TokenTint unkind = difference_tint({nan, 1, 2}, {1, 3}, false);
  CHECK(std::isnan(unkind.values[0]));
  CHECK(unkind.values[1] == -2);
  CHECK(std::isnan(unkind.values[2]));
  CHECK(unkind.level[2] == 0);
  CHECK(difference_tint({}, {}, true).values.empty());
}
