#include "viewer/questions/live_findings.hpp"

#include "analysis/results/result_reader.hpp"
#include "tests/analysis/kvreplay_program.hpp"
#include "tests/support/catch.hpp"
#include "tests/support/temp_dir.hpp"
#include "tests/viewer/on_queue.hpp"

#include <algorithm>
#include <string>
#include <vector>

namespace kvreplay::viewer {
namespace {

using test::TempDir;

struct Live {
  std::shared_ptr<const Run> run = Run::open(test::sample_dump(), 1);
  std::vector<std::shared_ptr<const HeadSummary>> heads;
  std::vector<std::shared_ptr<const LayerEvictions>> layers;

  explicit Live(Index window) {
    HeadSummaryOptions options;
    options.window = window;
    options.metrics = metrics_of(*run->dump());
    options.keep_tokens = false;
    const DumpShape& shape = run->shape();
    for (Index layer = 0; layer < shape.layers; ++layer) {
      for (Index head = 0; head < shape.n_kv; ++head)
        heads.push_back(std::make_shared<const HeadSummary>(test::on_queue([&](JobControl& job) {
          return summarise_head(*run->head(layer, head), options, job.compute());
        })));
      layers.push_back(std::make_shared<const LayerEvictions>(
          test::on_queue([&](JobControl& job) { return live_evictions(*run, layer, job); })));
    }
  }
  std::string text(bool with_evictions, Index window) const {
    const std::vector<std::shared_ptr<const LayerEvictions>> none;
    const auto all = with_evictions ? layers : none;
    return text_of(
        test::on_queue([&](JobControl& job) { return live_findings(run, heads, all, window, job); }).list);
  }
};

/// What the command says of the same dump.
std::string text_of_command(const std::vector<std::string>& options) {
  const TempDir dir;
  std::vector<std::string> arguments = {
      "analyze", test::sample_dump(), "--out", dir / "out", "--precision", "f32", "--quiet"};
  arguments.insert(arguments.end(), options.begin(), options.end());
  const test::ProcessResult run = test::run_kvreplay(arguments);
  INFO(run.err);
  REQUIRE(run.code == 0);
  return text_of(findings_of(ResultReader(dir / "out")));
}

}  // namespace

TEST_CASE("findings of a bare dump are those of the tables that tokens and evict write", "[findings]") {
  std::string policies;
  for (const PolicyChoice& policy : finding_evictions().policies)
    policies += (policies.empty() ? "" : ",") + policy->name;
  for (const Index window : {32, 5}) {
    INFO("window " << window);
    const Live live(window);
    const std::string all = live.text(true, window);
    INFO(all);
    CHECK(std::count(all.begin(), all.end(), '\n') ==
          5);  // future, head, layer and policy behind the heading
    CHECK(live.text(false, window) ==
          text_of_command({"--only", "tokens", "--window", std::to_string(window)}));
    // `evict` has windows of its own.
    if (window == 32)
      CHECK(all == text_of_command({"--only", "tokens,evict", "--policy", policies, "--sigma", "0.8"}));
  }
}

TEST_CASE("findings of a big dump are not begun unasked", "[findings]") {
  DumpShape shape = Run::open(test::sample_dump(), 1)->shape();
  CHECK(finding_work(shape, 32) < kUnaskedWork / 50);
  const double small = finding_work(shape, 32);
  shape.layers *= 2;
  CHECK(finding_work(shape, 32) == 2 * small);
  shape.layers = 32;
  shape.n_kv = 8;
  shape.n_q = 32;
  shape.l = 131072;
  shape.T = 131200;
  CHECK(finding_work(shape, 32) > 10 * kUnaskedWork);
  // Nothing there takes all rows of the prompt.
  for (const PolicyChoice& policy : finding_evictions().policies) CHECK(policy.has_value());
  CHECK(finding_evictions().quick->most_rows < shape.l);
}

TEST_CASE("a finding leads to its head, its token and the panel that shows it", "[findings]") {
  AppState state;
  state.runs = {Run::open(test::sample_dump(), 1)};
  Finding finding{FindingKind::head,
                  "",
                  2,
                  {Table::agreement,
                   {{"score", "key"}, {"reference", "exact_joint"}, {"metric", "spearman"}},
                   4,
                   1,
                   379}};
  CHECK(follow(finding, state) == PanelKind::scatter);
  CHECK(state.selection().layer == 4);
  CHECK(state.selection().kv_head == 1);
  CHECK(state.selection().token == 379);
  CHECK(state.comparison.score == TokenMetric::key);
  CHECK(state.comparison.reference == TokenMetric::exact_joint);

  finding = {FindingKind::policy,
             "",
             2,
             {Table::evictions, {{"policy", "h2o+value"}, {"semantics", "kvpress"}, {"budget", "0.9"}}}};
  state.show_b = true;
  CHECK(follow(finding, state) == PanelKind::what_if);
  CHECK(state.setting_a.policy() == "h2o+value");
  CHECK(state.setting_a.semantics == Semantics::kvpress);
  CHECK(state.budget.sigma == 0.9);
  CHECK_FALSE(state.show_b);
  CHECK(state.selection().layer == 4);  // it is of all heads

  finding.kind = FindingKind::compensation;
  finding.place.keys = {{"policy", "snapkv"}, {"budget", "200"}, {"method", "fit"}};
  CHECK(follow(finding, state) == PanelKind::what_if);
  CHECK(state.setting_a.compensation == Compensation::fit);
  CHECK(state.budget.budget == 200);
  CHECK_FALSE(state.budget.sigma_budget);

  const WhatIfSettings before = state.setting_a;
  finding.place.keys = {{"policy", "mine"}, {"budget", ""}};  // a kept set of the user's
  CHECK(follow(finding, state) == PanelKind::what_if);
  CHECK(state.setting_a == before);

  state.worst_first = {{2, 0}, {5, 1}, {5, 0}};
  finding = {FindingKind::layer, "", 2, {Table::evictions, {}, 5}};
  CHECK(follow(finding, state) == PanelKind::heads);
  CHECK(state.selection().layer == 5);
  CHECK(state.selection().kv_head == 1);  // its worst
  finding.place.layer = 99;               // of other results than the run
  follow(finding, state);
  CHECK(state.selection().layer == 5);
}

}  // namespace kvreplay::viewer
