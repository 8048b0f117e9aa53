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
    app.state().setting_a.sigma_budget = false;
    app.state().setting_a.budget = 60;
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
  const WhatIfSettings& a = curves.app.state().setting_a;
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
  step([&] { state.budget_line = 77; });
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
    state.budget_line = 12;
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
                 {"budget_line", -4},
                 {"comparison", {{"score", "no such"}, {"window", 0}}}},
                settings);
  CHECK(settings.setting_a == WhatIfSettings());
  CHECK(settings.setting_b.base == "tova");
  CHECK_FALSE(settings.show_b);
  CHECK(settings.show_kept);
  CHECK_FALSE(settings.budget_line.has_value());
  CHECK(settings.comparison.score == TokenMetric::attn);
  CHECK(settings.comparison.window == SharedSettings().comparison.window);
}
