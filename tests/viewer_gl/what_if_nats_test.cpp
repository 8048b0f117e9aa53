// Nats beside the output error, live: of a head, of all heads, by hand, and in the Head map.

#include "tests/analysis/kvreplay_program.hpp"
#include "tests/analysis/result_files.hpp"
#include "tests/support/temp_dir.hpp"
#include "tests/viewer_gl/dashboard.hpp"
#include "tests/viewer_gl/drawn_frame.hpp"
#include "tests/viewer_gl/golden.hpp"
#include "viewer/model/numbers.hpp"
#include "viewer/questions/ask.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <numeric>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

using namespace kvreplay;
using namespace kvreplay::viewer;
using test::kSample;

namespace {

/// 2 layers of 2 KV heads, l = 256, 16 decoding steps, with gradients.
std::filesystem::path dump_with_gradients(const test::TempDir& folder) {
  const test::ProcessResult made = test::run_kvreplay(
      {"synth", folder / "dump", "--prompt", "256", "--decode", "16", "--gradients", "4", "--quiet"});
  INFO(made.err);
  REQUIRE(made.code == 0);
  return folder / "dump";
}

struct WithNats : test::OnePanelDashboard {
  explicit WithNats(const std::filesystem::path& dump, PanelKind panel = PanelKind::what_if, int width = 1280,
                    int height = 800)
      : OnePanelDashboard(panel, dump, width, height, 1, 0) {}
  AppState& state() { return app.state(); }
  WhatIf answer(const WhatIfSettings& settings, Index layer, Index kv_head) {
    PanelContext context{state(), app.queue()};
    for (;;) {
      const auto found = ask_what_if(context, settings, layer, kv_head, Urgency::now, {});
      REQUIRE(found.error == "");
      if (found && !found.stale) return *found;
      settle();
    }
  }
  /// Spaces are no letters.
  bool shows(std::string part) const {
    std::erase(part, ' ');
    const std::vector<test::DrawnText> texts = test::drawn_texts();
    return std::any_of(texts.begin(), texts.end(),
                       [&](const test::DrawnText& one) { return one.text.find(part) != std::string::npos; });
  }
  void load(const nlohmann::json& json) {
    app.panel(kind).load(json);
    settle();
  }
};

}  // namespace

TEST_CASE("What if has the nats of evict, of the head and of all heads", "[nats]") {
  const test::TempDir folder;
  const std::filesystem::path dump = dump_with_gradients(folder);
  WithNats panel(dump);
  panel.state().setting_a.base = "streaming";
  panel.state().setting_b.base = "snapkv";
  panel.state().setting_b.score.clear();
  panel.load({{"figure", "loss_row_future"}, {"all_heads", true}});
  const std::string kept = fmt::format("{}", panel.state().budget.sigma);
  const test::ProcessResult done =
      test::run_kvreplay({"evict", dump.string(), "--out", folder / "r", "--policy", "streaming,snapkv",
                          "--sigma", kept, "--quiet"});
  INFO(done.err);
  REQUIRE(done.code == 0);
  const test::Evictions evictions(folder / "r");
  std::string budget;
  for (const test::CsvRow& row : evictions.rows()) budget = row.at("budget");
  const auto measured = [&](const std::string& scope, const std::string& policy, const std::string& metric) {
    return evictions.at(scope, fmt::format("{},paper,prefill,{}", policy, budget), "future", metric);
  };
  CHECK(panel.answer(panel.state().settings()[0], 1, 0).future.loss.row ==
        measured("1,0", "streaming", "loss_row"));
  CHECK(panel.answer(panel.state().settings()[1], 0, 1).future.loss.row ==
        measured("0,1", "snapkv", "loss_row"));
  panel.settle();
  CHECK(panel.shows("loss_row, window"));
  CHECK(panel.shows("loss_row, future"));
  CHECK(panel.shows("loss_layer, all heads"));
  const auto both = [&](const std::string& metric) {
    return fmt::format("{} / {}", number_text(measured(",", "streaming", metric)),
                       number_text(measured(",", "snapkv", metric)));
  };
  CHECK(panel.shows(both("loss_step")));
  CHECK(panel.shows(NumberColumn(std::array{measured(",", "streaming", "loss_layer"),
                                            measured(",", "snapkv", "loss_layer")})
                        .text(measured(",", "snapkv", "loss_layer"))));

  // The same of every head in the exported table.
  const std::string csv = panel.csv();
  CHECK(csv.find("loss_row_window,loss_row_future") != std::string::npos);
  CHECK(csv.find("loss_head_window,loss_head_future") != std::string::npos);
}

TEST_CASE("What if with nats looks as it was looked at", "[nats][golden]") {
  const test::TempDir folder;
  WithNats panel(dump_with_gradients(folder), PanelKind::what_if, 900, 500);
  panel.state().setting_a.base = "streaming";
  panel.load({{"figure", "loss_row_future"}, {"all_heads", true}, {"show", 0}});
  panel.state().select_head(0, 0);
  panel.settle();
  test::check_golden("what-if-nats-dark.png", panel.host.pixels(), 900, 500);
}

TEST_CASE("What if without gradients is as it was", "[nats]") {
  WithNats panel(kSample);
  panel.load({{"figure", "loss_row_future"}, {"all_heads", true}});
  CHECK_FALSE(panel.shows("loss_row"));
  CHECK_FALSE(panel.shows("loss_layer"));
  CHECK(panel.shows("Output error, future"));
  // The menu has them all the same, and does not take them.
  const auto click = [&](std::string part) {
    std::erase(part, ' ');
    std::optional<Area> last;
    for (const test::DrawnText& one : test::drawn_texts())
      if (one.text == part) last = one.area;
    REQUIRE(last);
    panel.host.click(last->x + 4, last->y + 4);
    panel.host.settle();
    panel.settle();
  };
  click("Output error, future");
  REQUIRE(panel.shows("loss_row, future"));
  click("loss_row, window");
  CHECK(panel.app.panel(PanelKind::what_if).save().at("figure") == "loss_row_future");
  panel.tap({"Escape"});
  // What was chosen is there again with the next dump that has it.
  CHECK(panel.app.panel(PanelKind::what_if).save().at("figure") == "loss_row_future");
}

TEST_CASE("nats follow tokens that are kept by hand", "[nats][by-hand]") {
  const test::TempDir folder;
  const std::filesystem::path dump = dump_with_gradients(folder);
  WithNats panel(dump);
  const PredictedLoss before = panel.answer(panel.state().setting(), 1, 0).future.loss;
  std::vector<Index> tokens(200);
  std::iota(tokens.begin(), tokens.end(), Index{0});
  panel.state().select_tokens(std::move(tokens));
  panel.tap({"K"});
  const PredictedLoss kept = panel.answer(panel.state().setting(), 1, 0).future.loss;
  CHECK(kept.row > 0);
  CHECK(kept.row < before.row);
  panel.tap({"E"});
  CHECK(panel.answer(panel.state().setting(), 1, 0).future.loss.row > before.row);
  panel.tap({"U"});
  CHECK(panel.answer(panel.state().setting(), 1, 0).future.loss.row == before.row);
}

TEST_CASE("the Head map and its sheet have the nats of a setting", "[nats][sheet]") {
  const test::TempDir folder;
  const std::filesystem::path dump = dump_with_gradients(folder);
  WithNats panel(dump, PanelKind::heads);
  panel.load({{"controls", {{"figure", "setting_a~loss_row_future"}}}});
  const auto check_ranking = [&] {
    REQUIRE(panel.state().all_ranked);
    const auto order = panel.state().worst_first;
    REQUIRE(order.size() == 4);
    std::vector<double> nats;
    for (const auto& [layer, head] : order)
      nats.push_back(panel.answer(panel.state().settings()[0], layer, head).future.loss.row);
    CHECK(std::is_sorted(nats.rbegin(), nats.rend()));
    CHECK(nats.front() > nats.back());
    return nats;
  };
  const std::vector<double> first = check_ranking();
  CHECK(panel.csv().rfind("layer,kv_head,setting_a~loss_row_future\n", 0) == 0);
  CHECK(panel.shows("loss_row, future"));
  // It follows the setting and the queue's budget.
  panel.state().setting_a.base = "keydiff";
  panel.state().budget.sigma = 0.95;
  panel.settle();
  const std::vector<double> second = check_ranking();
  CHECK(second != first);
  // The sheet is in this order, and says the nats.
  panel.load({{"controls", {{"figure", "setting_a~loss_row_future"}}},
              {"sheet_shown", true},
              {"sheet", {{"worst_first", true}, {"shown", "attn"}}}});
  CHECK(panel.shows(number_text(second.front())));
  CHECK(panel.shows(number_text(second.back())));
}

TEST_CASE("nats are neither cut off nor covered, at any size", "[nats][layout-defects]") {
  const test::TempDir folder;
  WithNats panel(dump_with_gradients(folder));
  App& app = panel.app;
  panel.load({{"figure", "loss_row_future"}, {"all_heads", true}});
  std::set<std::string> told;
  for (const float text : {13.0F, 20.0F}) {
    while (app.text_points() != text) app.perform(ActionId::larger_text);
    for (const auto& [width, height] : {std::pair{600, 400}, {900, 600}, {1280, 800}, {1920, 1080}})
      for (const bool alone : {false, true}) {
        panel.host.resize(width, height, 1);
        app.layout().show(PanelKind::what_if);
        app.layout().maximise(alone ? std::optional(PanelKind::what_if) : std::nullopt);
        panel.settle();
        for (const std::string& defect : test::layout_defects())
          if (told.insert(defect).second)
            FAIL_CHECK(fmt::format("{}x{}, text {}: {}", width, height, text, defect));
      }
  }
}
