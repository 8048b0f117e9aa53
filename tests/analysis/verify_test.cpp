#include "analysis/verify/verify.hpp"

#include "analysis/verify/check.hpp"
#include "data/synth.hpp"
#include "sim/backend.hpp"
#include "sim/cache/cache_outputs.hpp"
#include "sim/channels/output_interaction.hpp"
#include "sim/tokens/token_metrics.hpp"
#include "tests/analysis/kvreplay_program.hpp"
#include "tests/support/catch.hpp"
#include "tests/support/compare.hpp"
#include "tests/support/random_group.hpp"

#include <algorithm>
#include <cmath>
#include <set>
#include <utility>

using namespace kvreplay;
using namespace kvreplay::test;

namespace {

/// One head of three tokens against 10, 1, 1e-8.
ValueDistance compared(const std::vector<double>& values, kvreplay::Tolerance tolerance) {
  ValueDistance comparison(tolerance);
  comparison.add(3, 1, TokenMetric::exact_key, {0, 7, 9}, values, {10, 1, 1e-8});
  return comparison;
}

/// The CPU, but for something of KV head 1 that it gets wrong.
class WrongBackend : public Backend {
 public:
  using Backend::token_metrics, Backend::output_changes, Backend::output_interaction;
  enum class Wrong { metric, output, interaction };
  explicit WrongBackend(Wrong wrong) : wrong_(wrong) {}

  TokenMetrics token_metrics(const HeadGroup<float>& group, const TokenOptions& options, Workers& workers,
                             const StoredGroup* stored) const override {
    TokenMetrics metrics = Backend::token_metrics(group, options, workers, stored);
    if (wrong_ == Wrong::metric && group.kv_head == 1) metrics[TokenMetric::exact_remove].row(0) *= 1.05;
    return metrics;
  }
  OutputChanges<float> output_changes(const HeadGroup<float>& group, RowRange rows,
                                      std::span<const Cache<float>> caches, bool with_vectors,
                                      Workers& workers) const override {
    OutputChanges<float> changes = Backend::output_changes(group, rows, caches, with_vectors, workers);
    if (wrong_ == Wrong::output && group.kv_head == 1 && rows.end > group.l)
      changes.change[3][1][panel_entry<float>(2, 1, group.d_v())] +=
          static_cast<float>(std::sqrt(changes.full_sq)) / 1000;
    return changes;
  }
  Matrix<double> output_interaction(const HeadGroup<float>& group, RowRange rows, const PrunableKeys& keys,
                                    Workers& workers) const override {
    Matrix<double> interaction = Backend::output_interaction(group, rows, keys, workers);
    if (wrong_ == Wrong::interaction && group.kv_head == 1) interaction *= 1.001;
    return interaction;
  }

 private:
  const Wrong wrong_;
};

}  // namespace

TEST_CASE("the sample holds the first, the last and the wanted tokens", "[verify]") {
  CHECK(sampled_tokens(5, 0, {}) == std::vector<Index>{0, 1, 2, 3, 4});
  CHECK(sampled_tokens(5, 9, {}) == std::vector<Index>{0, 1, 2, 3, 4});
  CHECK(sampled_tokens(100, 1, {50}) == std::vector<Index>{0});
  CHECK(sampled_tokens(100, 3, {50, 50}) == std::vector<Index>{0, 50, 99});
  for (const Index count : {2, 10, 64, 99}) {
    const auto tokens = sampled_tokens(100, count, {41, 42});
    CHECK(std::ssize(tokens) == count);
    CHECK(std::is_sorted(tokens.begin(), tokens.end()));
  }
}

TEST_CASE("every sampled token is some metric's, and every metric has its own largest", "[verify]") {
  const std::vector<Index> wanted{41, 42, 41, 0, 99, 7};
  CHECK(dealt_tokens(9, 0, {1, 2, 3}, 5) == std::vector(3, sampled_tokens(9, 0, {})));
  CHECK(dealt_tokens(9, 12, {1, 2, 3}, 5) == std::vector(3, sampled_tokens(9, 0, {})));
  CHECK(dealt_tokens(9, 4, {}, 5).empty());
  CHECK(dealt_tokens(100, 2, {50, 51}, 1) == std::vector(2, std::vector<Index>{0, 99}));
  std::vector<std::set<Index>> met(6);
  for (Index turn = 0; turn < 6; ++turn) {
    const auto dealt = dealt_tokens(100, 64, wanted, turn);
    REQUIRE(dealt.size() == 6);
    std::set<Index> all;
    for (std::size_t form = 0; form < 6; ++form) {
      CHECK(std::is_sorted(dealt[form].begin(), dealt[form].end()));
      CHECK(std::ssize(dealt[form]) >= 12);
      CHECK(std::ssize(dealt[form]) <= 14);
      for (const Index p : {Index{0}, Index{99}, wanted[form]})
        CHECK(std::count(dealt[form].begin(), dealt[form].end(), p) == 1);
      all.insert(dealt[form].begin(), dealt[form].end());
      met[form].insert(dealt[form].begin(), dealt[form].end());
    }
    CHECK((std::vector<Index>{all.begin(), all.end()} == sampled_tokens(100, 64, wanted)));
  }
  for (const std::set<Index>& form : met) CHECK(form.size() == 64);
}

TEST_CASE("brute force sums up rows and query heads, on any number of threads alike", "[verify]") {
  const HeadGroup<double> group = test::random_group({.l = 300, .T = 380, .T_q = 170, .sink_logit = 1.0});
  const DumpShape shape{.n_q = 2, .n_kv = 1, .T = 380, .T_q = 170, .l = 300};
  const std::vector<ClosedForm> forms = closed_forms(shape, available_metrics(group), 50);
  REQUIRE(forms.size() == 6);
  std::vector<std::vector<Index>> tokens(forms.size());
  for (std::size_t f = 0; f < forms.size(); ++f)
    tokens[f] = sampled_tokens(300, f == 3 ? 0 : 5 * static_cast<Index>(f) + 1, {});
  Workers one(1), three(3);
  const std::vector<std::vector<double>> sums = brute_force_sums(group, forms, tokens, three);
  CHECK(sums == brute_force_sums(group, forms, tokens, one));
  for (std::size_t f = 0; f < forms.size(); ++f) {
    Vector<double> want = Vector<double>::Zero(std::ssize(tokens[f]));
    for (Index g = 0; g < 2; ++g)
      for (Index i = forms[f].rows.begin; i < forms[f].rows.end; ++i)
        want += brute_force_errors(group, g, i, forms[f].change, tokens[f]);
    REQUIRE(std::ssize(sums[f]) == want.size());
    for (Index t = 0; t < want.size(); ++t) CHECK(sums[f][t] == Approx(want[t]).epsilon(1e-12));
  }
}

TEST_CASE("a wrong number of one head fails its check, and no other", "[verify]") {
  const TempDir temp;
  write_synthetic_dump(temp / "dump", {.layers = 1, .head_dim = 8, .prompt = 61, .decode = 9});
  const Dump dump = Dump::open(temp / "dump", {});
  VerifyOptions options;
  options.tokens = 8;
  options.layers = {0};
  Workers workers(2);
  using Wrong = WrongBackend::Wrong;
  for (const auto& [wrong, name] : {std::pair{Wrong::metric, "float32 backend"},
                                    {Wrong::output, "kept sets"},
                                    {Wrong::interaction, "channels, caches"}}) {
    const WrongBackend backend(wrong);
    const VerifyResult result = verify(dump, options, {workers, backend});
    CHECK_FALSE(result.ok());
    for (const Check& check : result.checks) {
      INFO(check.name);
      REQUIRE(check.failures.size() == (check.name == name ? 1 : 0));
      if (!check.ok()) CHECK(contains(check.failures[0], "layer 0 KV head 1"));
    }
  }
}

TEST_CASE("a comparison passes within both tolerances only", "[verify]") {
  const kvreplay::Tolerance t = {1e-3, 1e-2, 1e-6, 0};
  CHECK(compared({10, 1, 1e-8}, t).failures().empty());
  CHECK(compared({10.009, 1.009, 1e-4}, t).failures().empty());  // the last is below the floor
  CHECK(compared({10.02, 1, 1e-8}, t).failures().size() == 1);   // 2e-3 of the largest
  const ValueDistance relative = compared({10, 1.011, 1e-8}, {1, 1e-2, 1e-6, 0});
  REQUIRE(relative.failures().size() == 1);
  CHECK(relative.worst_relative() == Approx(0.011));
  CHECK(contains(relative.failures()[0], "layer 3 KV head 1 token 7 metric exact_key"));
  CHECK(compared({11, 2, 1e-8}, t).failures().size() ==
        1);  // a line for a head and metric, not for each token
}

TEST_CASE("nothing that is no number passes a comparison", "[verify]") {
  const ValueDistance comparison = compared({10, std::nan(""), 1e-8}, {1e300, 1e300, 0, 0});
  CHECK(comparison.failures().size() == 1);
  CHECK(std::isnan(comparison.worst_of_largest()));
  ValueDistance zeros({1e-3, 1e-3, 0, 0});
  zeros.add(0, 0, TokenMetric::attn, {0}, {0}, {0});
  CHECK(zeros.failures().empty());
  zeros.add(0, 0, TokenMetric::attn, {0}, {1e-300}, {0});
  CHECK(zeros.failures().size() == 1);
}
