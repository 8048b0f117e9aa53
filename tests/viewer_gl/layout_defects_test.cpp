// What a person would see at once: text that its box cuts off, widgets over each other. Over all panels.

#include "tests/viewer_gl/dashboard.hpp"
#include "tests/viewer_gl/drawn_frame.hpp"
#include "tests/viewer_gl/halved_keys.hpp"
#include "viewer/widgets/controls.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <functional>
#include <imgui.h>
#include <set>
#include <string>
#include <utility>
#include <vector>

using namespace kvreplay;
using namespace kvreplay::viewer;
using test::Dashboard;
using test::kSample;
using test::layout_defects;

namespace {

/// Draws what it is given, in a window of 200 x 100 pixels.
struct Scene final : Client {
  std::function<void()> draw;
  ImGuiWindowFlags flags = ImGuiWindowFlags_NoDecoration;
  void frame() override {
    ImGui::SetNextWindowPos({0, 0});
    ImGui::SetNextWindowSize({200, 100});
    ImGui::Begin("scene", nullptr, flags);
    draw();
    ImGui::End();
  }
};

std::vector<std::string> defects_of(const std::function<void()>& draw,
                                    ImGuiWindowFlags flags = ImGuiWindowFlags_NoDecoration) {
  Scene scene;
  scene.draw = draw;
  scene.flags = flags;
  ScriptedHost host(scene, 400, 300);
  host.settle();
  return layout_defects();
}

bool any(const std::vector<std::string>& defects, const std::string& part) {
  return std::any_of(defects.begin(), defects.end(),
                     [&](const std::string& one) { return one.find(part) != std::string::npos; });
}

}  // namespace

TEST_CASE("defects of a layout are found in what was drawn", "[layout-defects]") {
  CHECK(defects_of([] {
          ImGui::Button("whole");
          ImGui::SameLine();
          ImGui::TextUnformatted("beside");
        }).empty());
  CHECK(any(defects_of([] { ImGui::Button("WWWWWWWWWWWW", {41, 0}); }), "is cut off at"));
  CHECK(any(defects_of([] { ImGui::TextUnformatted("a text that is longer than the window is wide"); }),
            "too narrow"));
  CHECK(any(defects_of([] {
              ImGui::TextUnformatted("one");
              ImGui::SetCursorPos({12, 10});
              ImGui::TextUnformatted("two");
            }),
            "'two' lies over 'one'"));
  CHECK(any(defects_of([] {
              ImGui::TextUnformatted("hidden");
              ImGui::SetCursorPos({0, 0});
              ImGui::PushStyleColor(ImGuiCol_ChildBg, IM_COL32(90, 90, 90, 255));
              ImGui::BeginChild("cover", {100, 50});
              ImGui::EndChild();
              ImGui::PopStyleColor();
            }),
            "'hidden' lies under a rectangle"));
  const auto ten_lines = [] {
    for (int i = 0; i < 10; ++i) ImGui::TextUnformatted("line");
  };
  CHECK(any(defects_of(ten_lines), "too low"));
  CHECK(defects_of(ten_lines, ImGuiWindowFlags_NoTitleBar).empty());
  CHECK(any(defects_of([] {
              if (!ImGui::BeginTable("table", 2)) return;
              ImGui::TableSetupColumn("narrow", ImGuiTableColumnFlags_WidthFixed, 30);
              ImGui::TableSetupColumn("wide");
              ImGui::TableNextColumn();
              ImGui::TextUnformatted("does not fit");
              ImGui::TableNextColumn();
              ImGui::TextUnformatted("fits");
              ImGui::EndTable();
            }),
            "column 0 of a table"));
}

TEST_CASE("nothing out of sight is drawn, also where it goes on with the line before",
          "[layout-defects][figure]") {
  Scene scene;
  scene.draw = [] {
    ImGui::TextUnformatted("before");
    for (int i = 0; i < 2; ++i) {
      const HiddenDraw out(true);
      if (i > 0) ImGui::SameLine();
      ImGui::Button("control");
    }
    ImGui::TextUnformatted("after");
  };
  ScriptedHost host(scene, 400, 300);
  host.settle();
  std::vector<std::string> drawn;
  for (const test::DrawnText& text : test::drawn_texts()) drawn.push_back(text.text);
  CHECK(drawn == std::vector<std::string>{"before", "after"});
}

TEST_CASE("no panel cuts off or covers what it shows, at any size", "[layout-defects]") {
  constexpr std::array<std::pair<int, int>, 5> kSizes = {
      {{600, 400}, {900, 600}, {1280, 800}, {1920, 1080}, {2560, 1440}}};
  Dashboard dashboard(kSample);
  App& app = dashboard.app;
  app.state().select_cell(1000, 300);
  std::set<std::string> told;
  const auto look = [&](const std::string& what) {
    for (const std::string& defect : layout_defects())
      if (told.insert(defect).second) FAIL_CHECK(what << ": " << defect);
  };
  for (const float text : {13.0F, 20.0F}) {
    while (app.text_points() != text)
      app.perform(app.text_points() < text ? ActionId::larger_text : ActionId::smaller_text);
    for (const auto& [width, height] : kSizes) {
      dashboard.host.resize(width, height, 1);
      for (const PanelFacts& panel : kPanels) {
        for (const bool alone : {false, true}) {
          app.layout().show(panel.id);
          app.layout().maximise(alone ? std::optional(panel.id) : std::nullopt);
          dashboard.settle();
          look(fmt::format("{}x{}, text {}, {}{}", width, height, text, panel.name, alone ? " alone" : ""));
        }
      }
    }
  }
}

TEST_CASE("presets cut off and cover nothing, and all of them can be read, at any size and in both themes",
          "[layout-defects][presets]") {
  constexpr std::array<std::pair<int, int>, 6> kSizes = {
      {{480, 320}, {600, 400}, {900, 600}, {1280, 800}, {1920, 1080}, {3840, 2160}}};
  Dashboard dashboard(kSample);
  App& app = dashboard.app;
  std::set<std::string> told;
  const auto look = [&](const std::string& what, const std::vector<std::string>& defects) {
    for (const std::string& defect : defects)
      if (told.insert(defect).second) FAIL_CHECK(what << ": " << defect);
  };
  for (const bool light : {false, true}) {
    if (light) app.perform(ActionId::toggle_theme);
    for (const auto& [width, height] : kSizes) {
      dashboard.host.resize(width, height, 1);
      for (const Action& action : actions()) {
        if (!action.preset) continue;
        app.perform(action);
        dashboard.settle();
        const std::string what =
            fmt::format("{}x{}, {}, {}", width, height, light ? "light" : "dark", action.title);
        look(what, layout_defects());
        look(what, test::contrast_defects(dashboard.host.pixels(), width, 4.5));
      }
    }
  }
}

TEST_CASE("no panel cuts off or covers what it shows of chosen tokens", "[layout-defects]") {
  Dashboard dashboard(kSample);
  App& app = dashboard.app;
  app.state().select_cell(1000, 300);
  app.state().select_tokens({3, 30, 300, 301, 302});
  std::set<std::string> told;
  for (const float text : {13.0F, 20.0F}) {
    while (app.text_points() != text) app.perform(ActionId::larger_text);
    for (const auto& [width, height] : {std::pair(600, 400), std::pair(900, 600), std::pair(1280, 800)}) {
      dashboard.host.resize(width, height, 1);
      for (const PanelKind panel :
           {PanelKind::inspector, PanelKind::text, PanelKind::what_if, PanelKind::scatter}) {
        app.layout().show(panel);
        dashboard.settle();
        for (const std::string& defect : layout_defects())
          if (told.insert(defect).second)
            FAIL_CHECK(fmt::format("{}x{}, text {}, {}: {}", width, height, text, name_of(panel), defect));
      }
    }
  }
}

TEST_CASE("no panel that holds two runs against each other cuts off or covers what it shows",
          "[layout-defects][pinned]") {
  const test::TempDir folder;
  Dashboard dashboard(kSample);
  App& app = dashboard.app;
  dashboard.perform(ActionId::pin_run);
  app.open(test::halved_keys(folder));
  dashboard.settle();
  Selection second;
  second.run = 1;
  second.layer = 3;
  second.row = 1000;
  second.token = 300;
  app.state().select(second);
  for (const float text : {13.0F, 20.0F}) {
    while (app.text_points() != text) app.perform(ActionId::larger_text);
    for (const auto& [width, height] : {std::pair(600, 400), std::pair(900, 600), std::pair(1280, 800)}) {
      dashboard.host.resize(width, height, 1);
      for (const PanelKind panel : {PanelKind::curves, PanelKind::scatter, PanelKind::text, PanelKind::decode,
                                    PanelKind::channels, PanelKind::what_if}) {
        for (const bool alone : {false, true}) {
          app.layout().show(panel);
          app.layout().maximise(alone ? std::optional(panel) : std::nullopt);
          dashboard.settle();
          for (const std::string& defect : layout_defects())
            FAIL_CHECK(fmt::format("{}x{}, text {}, {}{}: {}", width, height, text, name_of(panel),
                                   alone ? " alone" : "", defect));
        }
      }
    }
  }
}

TEST_CASE("every text of every panel can be read, in both themes", "[layout-defects]") {
  Dashboard dashboard(kSample, 1280, 800);
  App& app = dashboard.app;
  app.state().select_cell(1000, 300);
  std::set<std::string> told;
  for (const bool light : {false, true}) {
    if (light) app.perform(ActionId::toggle_theme);
    for (const PanelFacts& panel : kPanels) {
      app.layout().maximise(panel.id);
      dashboard.settle();
      for (const std::string& defect :
           test::contrast_defects(dashboard.host.pixels(), dashboard.host.width(), 4.5))
        if (told.insert(defect).second)
          FAIL_CHECK((light ? "light, " : "dark, ") << panel.name << ": " << defect);
    }
  }
}
