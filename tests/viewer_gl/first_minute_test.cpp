// The start page, the prompts for a path, panels for a question, the tour.

#include "tests/support/temp_dir.hpp"
#include "tests/viewer_gl/dashboard.hpp"
#include "tests/viewer_gl/golden.hpp"

#include <filesystem>
#include <imgui_internal.h>
#include <string>

using namespace kvreplay;
using namespace kvreplay::viewer;
using test::kSample;

namespace {

AppOptions with_sample() {
  AppOptions options;
  options.sample = kSample;
  options.threads = 2;
  return options;
}

/// Nothing open.
struct Start {
  App app;
  ScriptedHost host;
  explicit Start(int width = 1000, int height = 700) : app(with_sample()), host(app, width, height) {
    host.settle();
  }
  void settle() {
    for (int quiet = 0; quiet < 3;) {
      host.frame();
      const bool done = app.settled();
      quiet = done ? quiet + 1 : 0;
      if (!done) app.queue().wait_idle(std::chrono::milliseconds(20));
    }
  }
  /// Clicks from the top of the page down, in steps, until `done`.
  template <class Done>
  bool click_down(float x, float from, float to, const Done& done) {
    for (float y = from; y < to; y += 6) {
      host.click(x, y);
      host.settle();
      settle();
      if (done()) return true;
    }
    return false;
  }
};

}  // namespace

TEST_CASE("the start page opens the sample, and then the tour begins, once", "[start]") {
  Session session;
  {
    Start start;
    REQUIRE_FALSE(start.app.state().run());
    REQUIRE(start.click_down(230, 40, 260, [&] { return start.app.state().run() != nullptr; }));
    CHECK(start.app.state().run()->path().filename() == "pystdlib-lm");
    REQUIRE(start.app.tour().running());
    CHECK(start.app.tour().number() == 0);
    start.host.tap_key({"Escape"});
    start.host.settle();
    CHECK_FALSE(start.app.tour().running());
    session = start.app.save();
    CHECK(session.tour_seen);
    REQUIRE(session.recent.size() == 1);
  }
  // Again, with what was kept: no tour, and the sample among what was opened before.
  Start start;
  session.runs.clear();
  session.recent.insert(session.recent.begin(), "/nowhere/gone");
  start.app.restore(session, false);
  start.settle();
  REQUIRE(start.click_down(400, 110, 330, [&] { return start.app.state().run() != nullptr; }));
  CHECK_FALSE(start.app.tour().running());
  CHECK(start.app.save().recent.front() == session.recent.back());
}

TEST_CASE("a path is typed with Tab and what lies there is listed", "[start]") {
  const test::TempDir dir;
  const std::string root = dir / "r";
  std::filesystem::create_directories(root + "/somewhere");
  std::filesystem::create_directory_symlink(kSample, root + "/somewhere/sample-dump");
  Start start;
  start.host.tap_key(action(ActionId::open_path).shortcut);
  start.host.settle();
  start.host.type(root + "/so");
  start.host.settle();
  start.settle();
  start.host.tap_key({"Tab"});  // the folder
  start.host.settle();
  start.settle();
  start.host.tap_key({"Tab"});  // and the dump in it
  start.host.settle();
  start.settle();
  start.host.tap_key({"Enter"});
  start.host.settle();
  start.settle();
  REQUIRE(start.app.state().run());
  CHECK(start.app.state().run()->shape().layers == 6);
}

TEST_CASE("a path that cannot be opened stands in the prompt again, with the reason", "[start]") {
  test::Dashboard dashboard(kSample, 900, 600);
  const std::string path = "/nowhere/at all";
  dashboard.host.tap_key(action(ActionId::open_path).shortcut);
  dashboard.host.settle();
  dashboard.host.type(path);
  dashboard.host.settle();
  dashboard.tap({"Enter"});
  CHECK(dashboard.app.open_prompt().typed() == path);
  CHECK(dashboard.app.open_prompt().reason().find("/nowhere") != std::string::npos);
  dashboard.host.ui().make_current();
  CHECK(ImGui::IsPopupOpen("", ImGuiPopupFlags_AnyPopupId | ImGuiPopupFlags_AnyPopupLevel));
  // Typing on takes the reason away.
  dashboard.host.type("x");
  dashboard.host.settle();
  dashboard.settle();
  CHECK(dashboard.app.open_prompt().typed() == path + "x");
  CHECK(dashboard.app.open_prompt().reason().empty());
}

TEST_CASE("the tour points at one panel after the other", "[tour]") {
  test::Dashboard dashboard(kSample);
  dashboard.app.layout().maximise(PanelKind::channels);
  dashboard.perform(ActionId::tour);
  REQUIRE(dashboard.app.tour().running());
  CHECK_FALSE(dashboard.app.layout().maximised());
  // Its last button, at the card's lower right corner.
  const auto next = [&] {
    dashboard.host.ui().make_current();
    const ImGuiWindow* card = ImGui::FindWindowByName("tour");
    REQUIRE(card != nullptr);
    CHECK(card->Pos.x >= 0);
    CHECK(card->Pos.y >= 0);
    CHECK(card->Pos.x + card->Size.x <= 1280);
    CHECK(card->Pos.y + card->Size.y <= 800);
    dashboard.host.click(card->Pos.x + card->Size.x - 28, card->Pos.y + card->Size.y - 26);
    dashboard.host.settle();
    dashboard.settle();
  };
  for (std::size_t step = 0; step < kTour.size(); ++step) {
    INFO("step " << step);
    REQUIRE(dashboard.app.tour().running());
    CHECK(dashboard.app.tour().number() == step);
    if (const auto panel = kTour[step].panel) {
      const Area& area = dashboard.app.area(*panel);
      CHECK(area.width > 0);
      // The card stands beside it.
      dashboard.host.ui().make_current();
      const ImGuiWindow* card = ImGui::FindWindowByName("tour");
      REQUIRE(card != nullptr);
      const bool beside = card->Pos.x >= area.x + area.width || card->Pos.x + card->Size.x <= area.x ||
                          card->Pos.y >= area.y + area.height || card->Pos.y + card->Size.y <= area.y;
      CHECK(beside);
    }
    next();
  }
  CHECK_FALSE(dashboard.app.tour().running());
}

TEST_CASE("panels and settings are arranged for a question", "[presets]") {
  test::Dashboard dashboard(kSample);
  for (const Action& one : actions()) {
    if (one.id != ActionId::arrange) continue;
    INFO(one.title);
    dashboard.app.perform(one);
    dashboard.settle();
    CHECK(dashboard.app.focused() == kPresets[*one.preset].panel);
    CHECK(dashboard.app.area(kPresets[*one.preset].panel).width > 0);
    CHECK(dashboard.failed_job().empty());
    if (*one.preset == Preset::policies) {
      CHECK(dashboard.app.state().setting_a.policy() == "snapkv");
      CHECK(dashboard.app.state().setting_b.policy() == "h2o");
    }
  }
}

TEST_CASE("start page, tour and findings look as they were looked at", "[golden]") {
  {
    const test::TempDir dir;
    std::filesystem::create_directories(dir / "empty/a-dump/layer_00");
    std::filesystem::create_directories(dir / "empty/folder");
    const std::filesystem::path before = std::filesystem::current_path();
    std::filesystem::current_path(dir / "empty");  // what the page lists
    Start start(800, 560);
    Session session;
    session.recent = {"/nowhere/gone", "/nowhere/results"};
    start.app.restore(session, false);
    start.settle();
    std::filesystem::current_path(before);
    test::check_golden("start-dark.png", start.host.pixels(), 800, 560);
  }
  test::Dashboard dashboard(kSample);
  const Area strip = dashboard.app.finding_area();
  const auto crop = [&](const Area& area) {
    return test::cropped(dashboard.host.pixels(), 1280, static_cast<int>(area.x), static_cast<int>(area.y),
                         static_cast<int>(area.width), static_cast<int>(area.height));
  };
  test::check_golden("findings-dark.png", crop(strip), static_cast<int>(strip.width),
                     static_cast<int>(strip.height));
  dashboard.perform(ActionId::tour);
  const Area card{300, 40, 700, 300};
  test::check_golden("tour-dark.png", crop(card), 700, 300);
}
