// What Escape is for: what stands above the panels goes first, the selection last.

#include "tests/viewer_gl/dashboard.hpp"
#include "tests/viewer_gl/drawn_frame.hpp"
#include "viewer/widgets/heatmap_view.hpp"

#include <algorithm>
#include <imgui_internal.h>

using namespace kvreplay;
using namespace kvreplay::viewer;
using test::kSample;

namespace {

struct Escaping : test::OnePanelDashboard {
  Escaping() : OnePanelDashboard(PanelKind::tokens, kSample, 1100, 560, 3, 1) {
    app.state().select_cell(1000, 300);
    settle();
  }
  int popups() const {
    host.ui().make_current();
    return ImGui::GetCurrentContext()->OpenPopupStack.Size;
  }
  bool selected() { return selection().token == 300; }
  void click_at(float x, float y) {
    host.click(x, y);
    host.settle();
    settle();
  }
  /// The field at the end of the menu bar, found by the cursor that it asks for.
  float window_field() {
    for (float x = 1090; x > 400; x -= 10) {
      host.move_mouse(x, 10);
      host.settle();
      if (ImGui::GetMouseCursor() == ImGuiMouseCursor_TextInput) return x;
    }
    FAIL("no text field in the menu bar");
    return 0;
  }
  void escape() { tap({"Escape"}); }
  /// At the right of the map and its strip.
  void open_colours() {
    const HeatmapView& map = *app.panel(kind).heatmap();
    const Area& area = app.area(kind);
    click_at(area.x + area.width - 40, (map.map_low().y + map.map_high().y) / 2);
  }
};

}  // namespace

TEST_CASE("Escape closes a combo, then clears the selection", "[escape]") {
  Escaping panel;
  panel.click(panel.kind, 0.06F, 0.085F);  // what is shown
  REQUIRE(panel.popups() == 1);
  panel.escape();
  CHECK(panel.popups() == 0);
  CHECK(panel.selected());
  panel.escape();
  CHECK_FALSE(panel.selected());
}

TEST_CASE("Escape closes the colours, of a combo within them the combo first", "[escape]") {
  Escaping panel;
  panel.open_colours();
  REQUIRE(panel.popups() == 1);
  panel.escape();
  CHECK(panel.popups() == 0);
  CHECK(panel.selected());
  panel.open_colours();
  REQUIRE(panel.popups() == 1);
  // Its first control is a combo.
  const ImVec2 at = ImGui::GetCurrentContext()->OpenPopupStack[0].Window->Pos;
  for (float below = 16; below < 80 && panel.popups() == 1; below += 8)
    panel.click_at(at.x + 60, at.y + below);
  REQUIRE(panel.popups() == 2);
  panel.escape();
  CHECK(panel.popups() == 1);
  panel.escape();
  CHECK(panel.popups() == 0);
  CHECK(panel.selected());
}

TEST_CASE("Escape leaves a text field and the menus, and keeps the selection", "[escape]") {
  Escaping panel;
  panel.click_at(20, 10);  // File
  REQUIRE(panel.popups() == 1);
  panel.escape();
  CHECK(panel.popups() == 0);
  CHECK(panel.selected());
  panel.perform(ActionId::help);
  REQUIRE(panel.popups() == 1);
  panel.escape();
  CHECK(panel.popups() == 0);
  CHECK(panel.selected());
  panel.perform(ActionId::open_palette);
  REQUIRE(panel.popups() == 1);
  panel.escape();
  CHECK(panel.popups() == 0);
  CHECK(panel.selected());
  const Index window = panel.app.state().comparison.window;
  panel.host.click(panel.window_field(), 10);
  panel.host.settle();
  REQUIRE(ImGui::GetIO().WantTextInput);
  panel.host.type("7");
  panel.host.settle();
  panel.escape();
  CHECK_FALSE(ImGui::GetIO().WantTextInput);
  CHECK(panel.app.state().comparison.window == window);
  CHECK(panel.selected());
}

TEST_CASE("the status line and Ctrl+0 open the jobs, with the failed ones, and Escape closes them",
          "[escape]") {
  Escaping panel;
  panel.host.drop({"/nonexistent, dump"});
  panel.settle();
  panel.click_at(1075, 548);
  REQUIRE(panel.popups() == 1);
  CHECK(std::ranges::any_of(test::drawn_texts(), [](const test::DrawnText& one) {
    return one.text.starts_with("Opening/nonexistent,dump:");
  }));
  panel.escape();
  CHECK(panel.popups() == 0);
  CHECK(panel.selected());
  panel.tap({.key = "0", .control = true});
  CHECK(panel.popups() == 1);
}
