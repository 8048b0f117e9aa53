// A scripted session: what a hand does to the dashboard, and what it finds there.

#include "tests/analysis/kvreplay_program.hpp"
#include "tests/data/small_dump.hpp"
#include "tests/support/temp_dir.hpp"
#include "tests/viewer_gl/dashboard.hpp"
#include "viewer/app/screenshot.hpp"
#include "viewer/questions/what_if_figures.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <future>
#include <imgui.h>
#include <imgui_internal.h>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

using namespace kvreplay;
using namespace kvreplay::viewer;
using test::Dashboard;
using test::kSample;

namespace {

namespace fs = std::filesystem;

std::size_t colors_in(const Dashboard& dashboard) {
  std::set<std::uint32_t> colors;
  for (const Rgb& c : dashboard.host.pixels())
    colors.insert(static_cast<std::uint32_t>(c.r) << 16 | static_cast<std::uint32_t>(c.g) << 8 | c.b);
  return colors.size();
}

}  // namespace

TEST_CASE("the dashboard opens the sample and draws its heads", "[app]") {
  Dashboard dashboard(kSample);
  REQUIRE(dashboard.app.state().runs.size() == 1);
  CHECK(dashboard.app.open_error().empty());
  CHECK(dashboard.failed_job().empty());
  CHECK(dashboard.app.title().find("pystdlib-lm") != std::string::npos);
  CHECK(colors_in(dashboard) > 300);  // a map, not an empty window
}

TEST_CASE("a click in the token map selects a cell everywhere, and undo takes it back", "[app]") {
  Dashboard dashboard(kSample);
  CHECK_FALSE(dashboard.selection().token.has_value());
  dashboard.show(PanelKind::tokens);
  dashboard.click(PanelKind::tokens, 0.3F, 0.75F);
  REQUIRE(dashboard.selection().row.has_value());
  REQUIRE(dashboard.selection().token.has_value());
  CHECK(*dashboard.selection().token < *dashboard.selection().row);
  const Selection first = dashboard.selection();
  const Selection second = next_head(first, dashboard.app.state().run()->shape(), 1);
  dashboard.perform(ActionId::next_head);
  CHECK(dashboard.selection() == second);
  dashboard.perform(ActionId::undo);
  CHECK(dashboard.selection() == first);
  dashboard.perform(ActionId::redo);
  CHECK(dashboard.selection() == second);
  dashboard.perform(ActionId::clear_selection);
  CHECK_FALSE(dashboard.selection().token.has_value());
  CHECK(dashboard.failed_job().empty());
}

TEST_CASE("the dashboard opens on the heads' losses, and on the head at which most is at stake", "[app]") {
  Dashboard dashboard(kSample);
  const AppState& state = dashboard.app.state();
  REQUIRE(state.worst_first.size() == 12);
  CHECK(state.worst_first.front() == std::pair<Index, Index>(0, 0));  // output error 0.279, the most of all
  CHECK(state.selection().layer == 5);  // where the exact order would save most of it
  CHECK(state.selection().kv_head == 0);
  CHECK(state.message().find("layer 5 head 0") != std::string::npos);
  CHECK_FALSE(state.history().can_undo());  // that is where it begins
}

TEST_CASE("lists stay at their top until a hand moves them, and then where it left them", "[app]") {
  // In some order the first head of all stands far down.
  const SettingView view = GENERATE(SettingView::a, SettingView::b, SettingView::difference);
  App app(Dashboard::options(kSample));
  app.panel(PanelKind::heads).load({{"controls", {{"figure", ""}, {"view", name_of(view)}}}});
  ScriptedHost host(app, 900, 420);
  std::string moved;
  const auto look = [&] {
    host.ui().make_current();
    for (const ImGuiWindow* window : ImGui::GetCurrentContext()->Windows)
      if (window->Active && window->Scroll.y != 0)
        moved += fmt::format("{} at {}\n", window->Name, window->Scroll.y);
  };
  const auto settle = [&](const auto& each) {
    for (int quiet = 0; quiet < 3; quiet = app.settled() ? quiet + 1 : 0) {
      host.frame();
      each();
      if (!app.settled()) app.queue().wait_idle(std::chrono::milliseconds(5));
    }
  };
  settle(look);
  CHECK(moved.empty());
  app.state().budget.sigma_budget = 0.1;
  settle(look);
  CHECK(moved.empty());

  const auto table = [&] {
    host.ui().make_current();
    for (const ImGuiWindow* window : ImGui::GetCurrentContext()->Windows)
      if (window->Active && std::string(window->Name).find("heads") != std::string::npos &&
          window->ScrollMax.y > 0)
        return window;
    return static_cast<const ImGuiWindow*>(nullptr);
  };
  REQUIRE(table() != nullptr);
  const ImVec2 middle = table()->InnerRect.GetCenter();
  host.move_mouse(middle.x, middle.y);
  host.frame();
  host.wheel(0, -2);
  settle([] {});
  const float scrolled = table()->Scroll.y;
  CHECK(scrolled > 0);
  app.state().budget.sigma_budget = 0.3;
  settle([&] { CHECK(table()->Scroll.y == scrolled); });
}

TEST_CASE("a head that was asked for or selected meanwhile is not left for the worst one", "[app]") {
  SECTION("by option") {
    Dashboard dashboard("");
    ScreenshotOptions start;
    start.layer = 2;
    select_at_start(dashboard.app, start);
    dashboard.app.open(kSample);
    dashboard.settle();
    CHECK(dashboard.selection().layer == 2);
    CHECK(dashboard.selection().kv_head == 0);
  }
  SECTION("by hand, before all are ranked") {
    Dashboard dashboard("");
    dashboard.app.open(kSample);
    while (!dashboard.app.state().run()) dashboard.host.frame();
    dashboard.app.state().select_head(3, 0);
    dashboard.settle();
    CHECK(dashboard.selection().layer == 3);
    CHECK(dashboard.selection().kv_head == 0);
  }
  SECTION("a cell that was asked for is kept, and the head is the worst") {
    Dashboard dashboard("");
    ScreenshotOptions start;
    start.row = 1000;
    start.token = 300;
    select_at_start(dashboard.app, start);
    dashboard.app.open(kSample);
    dashboard.settle();
    CHECK(dashboard.selection().layer == 5);
    CHECK(dashboard.selection().row == 1000);
    CHECK(dashboard.selection().token == 300);
  }
}

TEST_CASE("n and p step through the worst heads", "[app]") {
  Dashboard dashboard(kSample);
  const auto order = dashboard.app.state().worst_first;
  REQUIRE(order.size() == 12);
  dashboard.app.state().select_head(order[0].first, order[0].second);
  dashboard.tap(action(ActionId::next_worst_head).shortcut);
  CHECK(std::pair(dashboard.selection().layer, dashboard.selection().kv_head) == order[1]);
  dashboard.tap(action(ActionId::previous_worst_head).shortcut);
  CHECK(std::pair(dashboard.selection().layer, dashboard.selection().kv_head) == order[0]);
}

TEST_CASE("the wheel zooms the token map, fit shows all again, undo goes back", "[app]") {
  Dashboard dashboard(kSample);
  dashboard.show(PanelKind::tokens);
  HeatmapView& map = *dashboard.app.panel(PanelKind::tokens).heatmap();
  CHECK_FALSE(map.camera().has_value());
  const auto [x, y] = dashboard.at(PanelKind::tokens, 0.4F, 0.6F);
  dashboard.host.move_mouse(x, y);
  dashboard.host.settle();
  dashboard.host.wheel(0, 3);
  dashboard.host.settle();
  dashboard.settle();
  REQUIRE(map.camera().has_value());
  const Camera zoomed_in = *map.camera();
  CHECK(zoomed_in.x.cells_per_pixel < 2);
  dashboard.host.drag(x, y, x - 60, y - 30);
  dashboard.settle();
  REQUIRE(map.camera().has_value());
  CHECK(map.camera()->x.start > zoomed_in.x.start);
  dashboard.tap(action(ActionId::fit_view).shortcut);
  CHECK_FALSE(map.camera().has_value());
  dashboard.perform(ActionId::undo);
  CHECK(map.camera().has_value());
}

TEST_CASE("every panel draws in both themes, at two scales, without a failed job", "[app]") {
  for (const float scale : {1.0F, 2.0F}) {
    Dashboard dashboard(kSample, static_cast<int>(760 * scale), static_cast<int>(520 * scale), scale);
    dashboard.app.state().select_cell(1000, 300);
    dashboard.app.state().select_tokens({3, 4, 5, 700});
    for (const PanelFacts& facts : kPanels) {
      const PanelKind panel = facts.id;
      INFO(facts.name);
      dashboard.app.layout().maximise(panel);
      dashboard.app.focus(panel);
      dashboard.settle();
      CHECK(dashboard.app.area(panel).width > 700 * scale);
      CHECK(colors_in(dashboard) > 20);
      const std::string failed = dashboard.failed_job();
      CHECK(failed == "");
      dashboard.perform(ActionId::toggle_theme);
      dashboard.perform(ActionId::copy_csv);
    }
  }
}

TEST_CASE("the palette finds an action by what is typed", "[app]") {
  Dashboard dashboard(kSample);
  const Layout before = dashboard.app.layout();
  dashboard.tap(action(ActionId::open_palette).shortcut);
  dashboard.host.type("maximise");
  dashboard.host.settle();
  dashboard.tap({"Enter"});
  CHECK(dashboard.app.layout().maximised().has_value());
  dashboard.perform(ActionId::maximise);
  CHECK(dashboard.app.layout() == before);
}

TEST_CASE("a path that is nothing is one line in the window, and the rest stays open", "[app]") {
  Dashboard dashboard(kSample);
  dashboard.host.drop({"/nowhere/at/all"});
  dashboard.settle();
  CHECK(dashboard.app.state().runs.size() == 1);
  CHECK(dashboard.app.state().message().find("/nowhere/at/all") != std::string::npos);
  CHECK(dashboard.app.state().message_is_error());

  // The line goes with the next path that is something.
  dashboard.now += std::chrono::seconds(2);
  const test::TempDir folder;
  test::SmallDump{}.write(folder / "small");
  dashboard.host.drop({folder / "small"});
  dashboard.settle();
  CHECK(dashboard.app.state().runs.size() == 2);
  CHECK(dashboard.app.state().message() == "");
  CHECK_FALSE(dashboard.app.state().message_is_error());
  dashboard.app.state().say("Saved");
  CHECK(dashboard.app.changes_in() == 6);
  dashboard.now += std::chrono::seconds(6);
  CHECK(dashboard.app.state().message() == "");

  Dashboard empty("");
  empty.host.drop({"/nowhere/at/all"});
  empty.settle();
  CHECK(empty.app.state().runs.empty());
}

TEST_CASE("two runs stand side by side, and closing one leaves the other", "[app]") {
  const test::TempDir folder;
  test::SmallDump{}.write(folder / "small");
  Dashboard dashboard(kSample);
  dashboard.app.state().select_cell(1000, 900);
  dashboard.host.drop({folder / "small"});
  dashboard.settle();
  REQUIRE(dashboard.app.state().runs.size() == 2);
  CHECK(dashboard.selection().run == 1);
  CHECK_FALSE(dashboard.selection().token.has_value());  // beyond the small dump
  dashboard.perform(ActionId::next_run);
  CHECK(dashboard.selection().run == 0);
  dashboard.perform(ActionId::close_run);
  REQUIRE(dashboard.app.state().runs.size() == 1);
  CHECK(dashboard.app.state().run()->name() == "small");
  dashboard.perform(ActionId::close_run);
  CHECK(dashboard.app.state().runs.empty());
}

TEST_CASE("results over several dumps open every one of them", "[app]") {
  const test::TempDir folder;
  for (const char* seed : {"1", "2", "3"})
    REQUIRE(test::run_kvreplay({"synth", folder / ("p" + std::string(seed)), "--layers", "1", "--prompt",
                                "40", "--decode", "4", "--seed", seed})
                .code == 0);
  REQUIRE(test::run_kvreplay({"evict", folder / "p1", folder / "p2", folder / "p3", "--out", folder / "r",
                              "--policy", "tova,h2o", "--quiet"})
              .code == 0);
  Dashboard dashboard(folder / "r");
  std::vector<std::string> names;
  for (const auto& run : dashboard.app.state().runs) names.push_back(run->name());
  CHECK(names == std::vector<std::string>{"p1", "p2", "p3"});
  CHECK(dashboard.failed_job() == "");
}

TEST_CASE("results whose dump was moved away ask where it lies, and take none but theirs", "[app]") {
  const test::TempDir folder;
  for (const char* name : {"mine", "other"})
    REQUIRE(test::run_kvreplay({"synth", folder / name, "--layers", "1", "--prompt", "40", "--decode", "4",
                                "--seed", name == std::string("mine") ? "1" : "2"})
                .code == 0);
  REQUIRE(test::run_kvreplay({"tokens", folder / "mine", "--out", folder / "r", "--quiet"}).code == 0);
  fs::create_directory(folder / "away");
  fs::rename(folder / "mine", folder / "away/mine");
  Dashboard dashboard(folder / "r");
  AppState& state = dashboard.app.state();
  REQUIRE(state.run() != nullptr);
  REQUIRE(state.run()->dump() == nullptr);
  const auto locate = [&](const fs::path& path) {
    dashboard.tap({"A", true});  // what failed still stands there
    dashboard.host.type(path.string());
    dashboard.host.settle();
    dashboard.tap({"Enter"});
  };
  dashboard.tap(action(ActionId::open_palette).shortcut);
  dashboard.host.type("locate dump");
  dashboard.host.settle();
  dashboard.tap({"Enter"});
  locate(folder / "other");
  CHECK(state.message_is_error());
  CHECK(state.message().find("holds another dump than the results") != std::string::npos);
  CHECK(state.run()->dump() == nullptr);

  // The message in a panel has a button for it.
  dashboard.app.layout().maximise(PanelKind::tokens);
  dashboard.settle();
  for (float y = 0.35F; y < 0.6F && !ImGui::GetIO().WantTextInput; y += 0.01F)
    dashboard.click(PanelKind::tokens, 0.5F, y);
  REQUIRE(ImGui::GetIO().WantTextInput);
  locate(folder / "away/mine");
  REQUIRE(state.run()->dump() != nullptr);
  CHECK(state.runs.size() == 1);
  dashboard.perform(ActionId::reload);
  CHECK(state.run()->dump() != nullptr);
}

TEST_CASE("a dump that is bad in one layer says so there and works elsewhere", "[app]") {
  const test::TempDir folder;
  const test::SmallDump small;
  small.write(folder / "dump");
  std::string bytes = small.npy(Tensor::k, 1);
  const float bad = std::numeric_limits<float>::quiet_NaN();
  std::copy_n(reinterpret_cast<const char*>(&bad), sizeof bad, bytes.end() - 8);
  std::ofstream(folder / "dump" / "layer_01" / "k.npy", std::ios::binary) << bytes;
  Dashboard dashboard(folder / "dump");
  REQUIRE(dashboard.app.state().runs.size() == 1);
  dashboard.app.state().select_head(0, 0);
  dashboard.settle();
  dashboard.app.state().select_head(1, 1);
  dashboard.settle();
  CHECK(dashboard.failed_job().find("finite values") != std::string::npos);
  dashboard.app.state().select_head(0, 1);
  dashboard.settle();
  CHECK(dashboard.app.state().runs.size() == 1);
}

TEST_CASE("files that vanish or change under an open run are read again or told of", "[app]") {
  const test::TempDir folder;
  test::SmallDump{}.write(folder / "dump");
  Dashboard dashboard(folder / "dump");
  dashboard.app.state().select_head(1, 1);
  fs::remove_all(folder / "dump");
  dashboard.perform(ActionId::reload);
  CHECK(dashboard.app.state().message_is_error());
  CHECK(dashboard.app.state().runs.size() == 1);
  test::SmallDump other;
  other.T = other.T_q = 7;
  other.write(folder / "dump");
  dashboard.perform(ActionId::reload);
  REQUIRE(dashboard.app.state().run() != nullptr);
  CHECK(dashboard.app.state().run()->shape().T == 7);
  CHECK(dashboard.selection().layer == 1);
  CHECK(dashboard.selection().kv_head == 1);
}

TEST_CASE("a session restores runs, selection, views, layout and settings", "[app]") {
  Session saved;
  {
    Dashboard dashboard(kSample);
    dashboard.app.state().select_cell(900, 12);
    dashboard.app.state().comparison.window = 7;
    dashboard.perform(ActionId::toggle_theme);
    dashboard.app.panel(PanelKind::tokens).heatmap()->zoom(4);
    dashboard.app.layout().show(PanelKind::scatter);
    dashboard.settle();
    saved = dashboard.app.save();
  }
  Dashboard again("");
  again.app.restore(session_of_text(text_of(saved)).session, true);
  again.settle();
  CHECK(again.app.state().runs.size() == 1);
  CHECK(again.selection() == saved.selection);
  CHECK(again.app.state().comparison.window == 7);
  CHECK(again.app.layout() == saved.layout);
  CHECK(text_of(again.app.save()) == text_of(saved));
}

TEST_CASE("a GPU that failed is told", "[app]") {
  class FailedGpu final : public Backend {
   public:
    std::vector<ComputeDevice> devices() const override { return {{.name = "a card"}}; }
    std::string failure() const override { return "CUDA: it was lost"; }
  };
  std::promise<std::shared_ptr<const Backend>> start;
  AppOptions options = Dashboard::options({});
  options.backend = start.get_future().share();
  App app(std::move(options));
  ScriptedHost host(app, 1280, 800, 1);
  host.frame();
  CHECK(app.state().message().empty());
  start.set_value(std::make_shared<const FailedGpu>());
  host.frame();
  CHECK(app.state().message() == "The GPU failed, and the CPU goes on: CUDA: it was lost");
  CHECK(app.state().message_is_error());
}
