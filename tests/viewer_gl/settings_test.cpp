// What is set for all panels together: undo, the key that flips, sessions.

#include "tests/viewer_gl/dashboard.hpp"

#include <chrono>
#include <thread>

using namespace kvreplay;
using namespace kvreplay::viewer;
using test::kSample;

namespace {

SharedSettings settings_of(App& app) { return app.state(); }

/// The curves alone, the mouse on their budget line.
struct CurvesWithLine : test::OnePanelDashboard {
  float x = 0, y = 0;
  CurvesWithLine() : OnePanelDashboard(PanelKind::curves, kSample, 800, 560, 3, 1) {
    app.state().budget = {.sigma_budget = false, .budget = 60};
    settle();
    const Area area = app.area(kind);
    y = area.y + area.height * 0.6F;
    for (x = area.x + 200; x < area.x + area.width; x += 8) {
      host.move_mouse(x, y);
      host.settle(2);
      if (ImGui::GetMouseCursor() == ImGuiMouseCursor_ResizeEW) return;
    }
    FAIL("no budget line");
  }
  void move(float dx) {
    host.move_mouse(x += dx, y);
    host.settle();
  }
};

}  // namespace

TEST_CASE("a drag of the budget line is one step of undo, however long the hand rests", "[settings]") {
  CurvesWithLine curves;
  const KeptBudget& a = curves.app.state().budget;
  curves.host.press_button();
  curves.move(-30);
  const Index midway = a.budget;
  CHECK(midway < 60);
  std::this_thread::sleep_for(std::chrono::milliseconds(800));  // longer than what History joins by itself
  curves.move(-30);
  curves.host.release_button();
  curves.host.settle();
  const Index first = a.budget;
  CHECK(first < midway);

  curves.host.press_button();  // at once again
  curves.move(-30);
  curves.host.release_button();
  curves.host.settle();
  const Index second = a.budget;
  CHECK(second < first);

  curves.perform(ActionId::undo);
  CHECK(a.budget == first);
  curves.perform(ActionId::undo);
  CHECK(a.budget == 60);
  curves.perform(ActionId::redo);
  CHECK(a.budget == first);
  curves.perform(ActionId::redo);
  CHECK(a.budget == second);
  curves.perform(ActionId::redo);
  CHECK(a.budget == second);
}

TEST_CASE("undo takes back every setting, selection and view by themselves", "[settings]") {
  test::OnePanelDashboard panel(PanelKind::what_if, kSample, 800, 560, 3, 1);
  AppState& state = panel.app.state();
  std::vector<SharedSettings> steps{settings_of(panel.app)};
  const auto step = [&](const auto& change) {
    change();
    std::this_thread::sleep_for(std::chrono::milliseconds(750));
    panel.settle();
    steps.push_back(settings_of(panel.app));
  };
  step([&] { state.setting_a.window = 16; });
  step([&] { state.setting_b.base = "tova"; });
  step([&] { state.comparison.reference = TokenMetric::exact_value; });
  step([&] { state.comparison.window = 5; });
  step([&] { state.budget.sigma = 0.3; });
  step([&] { panel.app.perform(ActionId::flip_settings); });
  state.select_cell(1000, 300);
  panel.settle();
  panel.perform(ActionId::undo);
  CHECK_FALSE(panel.selection().token.has_value());
  CHECK(settings_of(panel.app) == steps.back());
  for (std::size_t i = steps.size() - 1; i-- > 0;) {
    panel.perform(ActionId::undo);
    INFO(i);
    CHECK(settings_of(panel.app) == steps[i]);
  }
  CHECK(panel.selection().layer == 3);
  for (std::size_t i = 1; i < steps.size(); ++i) {
    panel.perform(ActionId::redo);
    CHECK(settings_of(panel.app) == steps[i]);
  }
}

TEST_CASE("one budget and one window serve all panels, but what has its own", "[settings]") {
  test::Dashboard panel(kSample);
  AppState& state = panel.app.state();
  const auto both = [&](const auto& of) {
    return std::pair(of(state.settings()[0]), of(state.settings()[1]));
  };
  const auto tokens = [&](const WhatIfSettings& s) { return s.tokens(state.run()->shape().l, s.semantics); };
  const auto window = [](const WhatIfSettings& s) { return s.window; };

  state.budget = {.sigma_budget = false, .budget = 60};
  CHECK(both(tokens) == std::pair<Index, Index>(60, 60));
  state.setting_b.linked = false;
  state.setting_b.sigma = 0.5;
  CHECK(both(tokens) == std::pair<Index, Index>(60, 448));
  state.setting_b.linked = true;
  CHECK(both(tokens) == std::pair<Index, Index>(60, 60));

  // The window: of policies that take the usual one by themselves, and were not given one.
  using Windows = std::pair<std::optional<Index>, std::optional<Index>>;
  CHECK(both(window) == Windows());
  state.comparison.window = 16;
  CHECK(both(window) == Windows(16, 16));
  state.setting_a.window = 8;
  state.setting_b.linked = false;
  CHECK(both(window) == Windows(8, std::nullopt));
  state.setting_b.linked = true;
  for (const char* base : {"h2o", "tova"}) {  // all rows, and the last
    state.setting_b.base = base;
    state.setting_b.score.clear();
    CHECK(both(window) == Windows(8, std::nullopt));
  }
  state.setting_b.base = "snapkv";
  state.setting_b.semantics = Semantics::kvpress;  // whose window has 64 rows
  CHECK(both(window) == Windows(8, std::nullopt));
}

TEST_CASE("policies that decode go with the queue's window, one by one, unless they have their own",
          "[settings]") {
  test::OnePanelDashboard panel(PanelKind::decode, kSample, 800, 560, 3, 1);
  AppState& state = panel.app.state();
  const auto load = [&](const nlohmann::json& settings) {
    panel.app.panel(panel.kind).load({{"settings", settings}});
    panel.settle();
    return panel.csv();
  };
  const nlohmann::json policies = {"snapkv", "h2o", "tova", "streaming"};
  const std::string usual = load({{"policies", policies}});
  state.comparison.window = 5;
  panel.settle();
  const std::string linked = panel.csv();
  CHECK(linked.find("snapkv[window=5],") != std::string::npos);
  for (const char* whole : {",h2o,", ",tova,", ",streaming,"})  // all rows, the last, and none
    CHECK(linked.find(whole) != std::string::npos);
  CHECK(linked != usual);
  // The same as if it were said.
  CHECK(load({{"policies", {"snapkv[window=5]", "h2o", "tova", "streaming"}}}) == linked);
  CHECK(load({{"policies", policies}, {"linked", false}, {"sigma", 0.8}}) == usual);
  // One of their own, or one of all, comes before the queue's.
  const std::string own = load({{"policies", policies}, {"window", 9}});
  CHECK(own.find("[window") == std::string::npos);
  state.comparison.window = 7;
  panel.settle();
  CHECK(panel.csv() == own);
  // What is kept of a session is what was set, not what it is linked to.
  load({{"policies", policies}});
  CHECK(panel.app.panel(panel.kind).save()["settings"]["policies"] == policies);
  CHECK(panel.failed_job().empty());
}

TEST_CASE("what a panel's slider moves is the queue's budget, unless it has its own", "[settings]") {
  for (const bool linked : {true, false}) {
    test::OnePanelDashboard panel(PanelKind::decode, kSample, 800, 560, 3, 1);
    AppState& state = panel.app.state();
    state.setting_b.linked = linked;
    panel.settle();
    CHECK(panel.csv().find(",179,") != std::string::npos);  // of 896, where the queue keeps 20 %
    const KeptBudget before = state.setting_b;
    state.budget.sigma = 0.5;
    panel.settle();
    CHECK(panel.csv().find(",448,") != std::string::npos);
    panel.app.layout().maximise(PanelKind::what_if);
    panel.app.focus(PanelKind::what_if);
    panel.settle();
    CHECK(state.setting_a.sigma == 0.5);
    CHECK((static_cast<const KeptBudget&>(state.setting_b) == before) == !linked);
    // The slider of setting A, by hand.
    panel.host.hold({.control = true});  // ImGui's way to type into a slider
    const Area area = panel.app.area(PanelKind::what_if);
    bool typed = false;
    for (float y = area.y + 62; y < area.y + 300 && !typed; y += 6) {
      panel.host.click(area.x + 130, y);
      panel.host.settle();
      if (ImGui::IsPopupOpen("", ImGuiPopupFlags_AnyPopupId | ImGuiPopupFlags_AnyPopupLevel)) {
        panel.host.hold({});  // a menu with a field of its own
        panel.host.tap_key({"Escape"});
        panel.host.settle();
        panel.host.hold({.control = true});
        continue;
      }
      if (!ImGui::GetIO().WantTextInput) continue;
      panel.host.hold({});
      panel.host.type("30");
      panel.host.tap_key({"Enter"});
      panel.host.settle();
      typed = true;
    }
    panel.host.hold({});
    panel.settle();
    CHECK(typed);
    CHECK(state.budget.sigma == Approx(0.7));
    CHECK(state.settings()[1].sigma == Approx(linked ? 0.7 : before.sigma));
  }
}

TEST_CASE("the key that flips shows the other setting while it is held, and is no step", "[settings]") {
  test::OnePanelDashboard panel(PanelKind::what_if, kSample, 800, 560, 3, 1);
  AppState& state = panel.app.state();
  for (const bool b : {false, true}) {
    state.show_b = b;
    panel.settle();
    const WhatIfSettings shown = state.setting();
    const SharedSettings before = settings_of(panel.app);
    const Shortcut key = action(ActionId::flip_settings).shortcut;
    panel.host.press_key(key);
    panel.host.settle();
    CHECK_FALSE(state.setting() == shown);
    panel.host.release_key(key);
    panel.host.settle();
    CHECK(state.setting() == shown);
    CHECK(settings_of(panel.app) == before);
  }
}

TEST_CASE("a session restores what is set for all panels, and that is no step of undo", "[settings]") {
  Session saved;
  SharedSettings set;
  {
    test::Dashboard dashboard(kSample);
    AppState& state = dashboard.app.state();
    state.setting_a.base = "h2o";
    state.setting_b.score = "value";
    state.setting_b.pool = Pooling{Pooling::Kind::max, 5};
    state.comparison.score = TokenMetric::caote;
    state.budget.sigma_budget = false;
    state.budget.budget = 12;
    state.setting_b.linked = false;
    state.show_kept = state.show_b = true;
    dashboard.settle();
    set = settings_of(dashboard.app);
    saved = dashboard.app.save();
  }
  test::Dashboard again("");
  again.app.restore(session_of_text(text_of(saved)).session, false);
  again.settle();
  CHECK(settings_of(again.app) == set);
  CHECK_FALSE(again.app.state().history().can_undo());
}

TEST_CASE("settings of a session that cannot be read leave the others alone", "[settings]") {
  SharedSettings settings;
  for (const auto& json : {nlohmann::json(), nlohmann::json(3), nlohmann::json::array({1})}) {
    read_settings(json, settings);
    CHECK(settings == SharedSettings());
  }
  read_settings({{"a", {{"sigma", "much"}}},
                 {"b", {{"base", "tova"}}},
                 {"show_b", 7},
                 {"show_kept", true},
                 {"kept", {{"sigma_budget", false}, {"budget", -4}, {"sigma", 7}}},
                 {"comparison", {{"score", "no such"}, {"window", 0}}}},
                settings);
  CHECK(settings.setting_a == WhatIfSettings());
  CHECK(settings.setting_b.base == "tova");
  CHECK_FALSE(settings.show_b);
  CHECK(settings.show_kept);
  CHECK(settings.budget == KeptBudget());
  read_settings({{"kept", {{"sigma", 7}}}}, settings);
  CHECK(settings.budget.sigma < 1);
  CHECK(settings.comparison.score == TokenMetric::attn);
  CHECK(settings.comparison.window == SharedSettings().comparison.window);
}
