// Menus of names with their field, and what the palette finds besides actions.

#include "tests/viewer_gl/dashboard.hpp"
#include "tests/viewer_gl/golden.hpp"

#include <algorithm>
#include <imgui_internal.h>
#include <string>

using namespace kvreplay;
using namespace kvreplay::viewer;
using test::kSample;

namespace {

struct Scatter : test::OnePanelDashboard {
  Scatter() : OnePanelDashboard(PanelKind::scatter, kSample, 900, 600, 3, 1) {}
  int popups() const {
    host.ui().make_current();
    return ImGui::GetCurrentContext()->OpenPopupStack.Size;
  }
  /// The first control of the panel.
  void open_scores() {
    const Area& area = app.area(kind);
    host.click(area.x + 40, area.y + 44);
    host.settle();
    settle();
    REQUIRE(popups() == 1);
  }
  void find(const char* typed) {
    tap(action(ActionId::open_palette).shortcut);
    host.type(typed);
    host.settle();
    tap({"Enter"});
  }
};

}  // namespace

TEST_CASE("a long menu's field takes the keyboard and leaves what matches", "[menu]") {
  Scatter panel;
  REQUIRE(panel.app.state().comparison.score == TokenMetric::attn);
  panel.open_scores();
  CHECK(ImGui::GetIO().WantTextInput);
  panel.host.type("unlike mean");  // in plain words
  panel.host.settle();
  panel.tap({"Enter"});
  CHECK(panel.popups() == 0);
  CHECK(panel.app.state().comparison.score == TokenMetric::keydiff);

  panel.open_scores();
  panel.host.type("caote");  // what was typed before is gone
  panel.host.settle();
  panel.tap({"Escape"});
  CHECK(panel.popups() == 0);
  CHECK(panel.app.state().comparison.score == TokenMetric::keydiff);
  CHECK(panel.selection().kv_head == 1);

  panel.open_scores();
  panel.host.type("kvzip");  // there, but not of this dump
  panel.host.settle();
  panel.tap({"Enter"});
  CHECK(panel.app.state().comparison.score == TokenMetric::keydiff);
}

TEST_CASE("figures of heads are found by a few letters too, or menu by menu", "[menu]") {
  test::OnePanelDashboard panel(PanelKind::heads, kSample, 900, 600, 3, 1);
  const auto open = [&] {
    const Area& area = panel.app.area(panel.kind);
    panel.host.click(area.x + 40, area.y + 44);
    panel.host.settle();
    panel.settle();
  };
  const std::string before = panel.csv();
  open();
  panel.host.type("removed alone largest");
  panel.host.settle();
  panel.tap({"Enter"});  // nothing has all these words
  panel.tap({"Escape"});
  CHECK(panel.csv() == before);
  open();
  panel.host.type("keydiff sum");
  panel.host.settle();
  panel.tap({"Enter"});
  CHECK(panel.csv() != before);
  CHECK(panel.csv().starts_with("layer,kv_head,keydiff"));
  open();  // nothing typed: menus
  test::check_golden("menu-of-figures-dark.png", panel.host.pixels(), 900, 600);
}

TEST_CASE("the palette goes to heads and tokens, metrics and policies", "[palette]") {
  Scatter panel;
  panel.find("L5 H0");
  CHECK(panel.selection().layer == 5);
  CHECK(panel.selection().kv_head == 0);
  panel.find("token 379");
  CHECK(panel.selection().token == 379);
  panel.find("oracle_next");
  CHECK(panel.app.state().comparison.reference == TokenMetric::oracle_next);
  panel.find("keydiff");
  CHECK(panel.app.state().comparison.score == TokenMetric::keydiff);
  panel.find("L77 H0");  // there is none: it stays as it was
  CHECK(panel.selection().layer == 5);
  panel.tap({"Escape"});
  panel.tap({"Escape"});
}

TEST_CASE("menus tick what is on", "[menu]") {
  Scatter panel;
  const auto on = [&](ActionId id) { return panel.app.is_on(action(id)); };
  for (const ActionId id : {ActionId::toggle_joint_zoom, ActionId::lock_ranges, ActionId::flip_settings,
                            ActionId::maximise, ActionId::pin_run}) {
    INFO(action(id).title);
    const bool before = on(id);
    panel.perform(id);
    CHECK(on(id) != before);
    panel.perform(id);
    CHECK(on(id) == before);
  }
  CHECK_FALSE(on(ActionId::undo));
}

TEST_CASE("menus and the palette look as they were looked at", "[golden]") {
  Scatter panel;
  panel.open_scores();
  test::check_golden("menu-dark.png", panel.host.pixels(), 900, 600);
  panel.tap({"Escape"});
  panel.tap(action(ActionId::open_palette).shortcut);
  panel.host.type("L3 H1");
  panel.settle();
  panel.host.settle();
  test::check_golden("palette-dark.png", test::cropped(panel.host.pixels(), 900, 150, 60, 600, 120), 600,
                     120);
}
