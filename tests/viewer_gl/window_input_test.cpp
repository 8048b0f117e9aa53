// Keys, mouse and files as they come from a real X server, through GLFW, to the state that they lead to.

#include "tests/data/small_dump.hpp"
#include "tests/support/temp_dir.hpp"
#include "tests/viewer_gl/dashboard.hpp"
#include "tests/viewer_gl/virtual_display.hpp"
#include "viewer/gl/window_host.hpp"

#ifdef KVREPLAY_XTEST
#include "tests/viewer_gl/x11_hand.hpp"
#endif

#include <chrono>
#include <string>
#include <thread>
#include <utility>

using namespace kvreplay;
using namespace kvreplay::viewer;

#ifndef KVREPLAY_XTEST

TEST_CASE("window input: keys, mouse and files of an X server", "[window]") {
  WARN("skipped: built without libXtst (libxtst-dev)");
}

#else

namespace {

using test::DriversMayLeak;
using test::VirtualDisplay;
using test::X11Hand;

/// The dashboard in its window on a virtual display.
struct Windowed {
  App app;
  WindowHost host;

  explicit Windowed(const std::filesystem::path& path) : app(options(path)), host(app, {1000, 700}) {
    settle();
  }

  static AppOptions options(const std::filesystem::path& path) {
    AppOptions options = test::Dashboard::options(path);
    options.wake = WindowHost::wake;
    return options;
  }
  void frame() {
    WindowHost::wake();  // it would sleep until something comes
    REQUIRE(host.step());
  }
  /// Events take their way through the server; and what they set off is computed.
  void settle() {
    const auto until = std::chrono::steady_clock::now() + std::chrono::minutes(3);
    for (int quiet = 0; quiet < 6;) {
      frame();
      const bool done = app.settled();
      quiet = done ? quiet + 1 : 0;
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
      REQUIRE(std::chrono::steady_clock::now() < until);
    }
  }
  std::pair<float, float> at(PanelKind panel, float x, float y) const {
    const Area& area = app.area(panel);
    REQUIRE(area.width > 0);
    return {area.x + area.width * x, area.y + area.height * y};
  }
  const Selection& selection() { return app.state().selection(); }
};

bool skipped() {
  if (VirtualDisplay::installed()) return false;
  WARN("skipped: Xvfb is not installed");
  return true;
}

}  // namespace

TEST_CASE("window input: keys step through heads, open the palette and carry out what is typed", "[window]") {
  if (skipped()) return;
  const VirtualDisplay display;
  const DriversMayLeak drivers;
  Windowed window(test::kSample);
  X11Hand hand("kvreplay");
  const auto order = window.app.state().worst_first;
  REQUIRE(order.size() == 12);
  window.app.state().select_head(order[0].first, order[0].second);
  window.settle();
  hand.tap("n");
  window.settle();
  CHECK(std::pair(window.selection().layer, window.selection().kv_head) == order[1]);
  hand.tap("p");
  window.settle();
  CHECK(std::pair(window.selection().layer, window.selection().kv_head) == order[0]);

  CHECK_FALSE(window.app.layout().maximised().has_value());
  hand.key("Control_L", true);
  hand.key("Shift_L", true);
  hand.tap("p");
  hand.key("Shift_L", false);
  hand.key("Control_L", false);
  window.settle();
  for (const char letter : std::string("maximise")) hand.tap(std::string(1, letter).c_str());
  window.settle();
  // What is typed goes to the field, not to the actions of its letters.
  CHECK(std::pair(window.selection().layer, window.selection().kv_head) == order[0]);
  hand.tap("Return");
  window.settle();
  CHECK(window.app.layout().maximised().has_value());
  hand.key("Control_L", true);
  hand.tap("z");
  hand.key("Control_L", false);
  window.settle();
  CHECK(window.app.state().history().now().selection == window.selection());
}

TEST_CASE("window input: a click selects, the wheel zooms at the cursor, a drag pans", "[window]") {
  if (skipped()) return;
  const VirtualDisplay display;
  const DriversMayLeak drivers;
  Windowed window(test::kSample);
  X11Hand hand("kvreplay");
  window.app.show(PanelKind::tokens);
  window.settle();
  HeatmapView& map = *window.app.panel(PanelKind::tokens).heatmap();
  const auto [x, y] = window.at(PanelKind::tokens, 0.3F, 0.75F);
  hand.move(x, y);
  window.settle();
  hand.button(1, true);
  hand.button(1, false);
  window.settle();
  REQUIRE(window.selection().row.has_value());
  REQUIRE(window.selection().token.has_value());
  CHECK(*window.selection().token < *window.selection().row);

  CHECK_FALSE(map.camera().has_value());
  for (int i = 0; i < 4; ++i) {
    hand.button(4, true);
    hand.button(4, false);
  }
  window.settle();
  REQUIRE(map.camera().has_value());
  const Camera zoomed = *map.camera();
  hand.button(1, true);
  for (int step = 1; step <= 6; ++step) {
    hand.move(x - 10.0F * static_cast<float>(step), y - 5.0F * static_cast<float>(step));
    window.settle();
  }
  hand.button(1, false);
  window.settle();
  REQUIRE(map.camera().has_value());
  CHECK(map.camera()->x.start > zoomed.x.start);
  CHECK(map.camera()->y.start > zoomed.y.start);
  CHECK(map.camera()->x.cells_per_pixel == zoomed.x.cells_per_pixel);
  for (int i = 0; i < 12; ++i) {
    hand.button(5, true);
    hand.button(5, false);
  }
  window.settle();
  if (map.camera()) CHECK(map.camera()->x.cells_per_pixel > zoomed.x.cells_per_pixel);
}

TEST_CASE("window input: a file manager drops a folder, and it opens", "[window]") {
  if (skipped()) return;
  const VirtualDisplay display;
  const DriversMayLeak drivers;
  const test::TempDir folder;
  const std::filesystem::path path = folder / "small dump, 100%";
  test::SmallDump{}.write(path);
  Windowed window("");
  X11Hand hand("kvreplay");
  CHECK(window.app.state().runs.empty());
  REQUIRE(hand.drop(path, [&] { window.frame(); }));
  window.settle();
  REQUIRE(window.app.state().runs.size() == 1);
  CHECK(window.app.state().run()->path() == path);
  REQUIRE(hand.drop(folder / "nothing", [&] { window.frame(); }));
  window.settle();
  CHECK(window.app.state().runs.size() == 1);
  CHECK(window.app.state().message_is_error());
}

#endif
