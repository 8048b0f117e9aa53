#pragma once

#include "tests/support/catch.hpp"
#include "tests/support/places.hpp"
#include "tests/viewer_gl/scripted_host.hpp"
#include "viewer/app/app.hpp"

#include <chrono>
#include <filesystem>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

namespace kvreplay::test {

inline const std::filesystem::path kSample = test::source_dir() / "data" / "samples" / "pystdlib-lm";

/// The dashboard without a display, with a hand to move its mouse.
struct Dashboard {
  viewer::App app;
  viewer::ScriptedHost host;

  viewer::StatusLine::Clock::time_point now{};  ///< what the dashboard takes for the time

  explicit Dashboard(const std::filesystem::path& path, int width = 1280, int height = 800, float scale = 1)
      : app(options(path)), host(app, width, height, scale) {
    app.state().clock = [this] { return now; };
    settle();
  }

  static viewer::AppOptions options(const std::filesystem::path& path) {
    viewer::AppOptions options;
    if (!path.empty()) options.open = {path};
    options.threads = 2;
    return options;
  }

  /// Frames until everything in view is computed.
  void settle() {
    const auto until = std::chrono::steady_clock::now() + std::chrono::minutes(3);
    for (int quiet = 0; quiet < 3;) {
      host.frame();
      const bool done = app.settled();
      quiet = done ? quiet + 1 : 0;
      if (!done) app.queue().wait_idle(std::chrono::milliseconds(20));
      REQUIRE(std::chrono::steady_clock::now() < until);
    }
  }

  /// A point of a panel, as shares of its width and height.
  std::pair<float, float> at(viewer::PanelKind panel, float x, float y) {
    const viewer::Area& area = app.area(panel);
    REQUIRE(area.width > 0);
    return {area.x + area.width * x, area.y + area.height * y};
  }
  void click(viewer::PanelKind panel, float x, float y) {
    const auto [px, py] = at(panel, x, y);
    host.click(px, py);
    host.settle();
    settle();
  }
  void tap(const viewer::Shortcut& shortcut) {
    host.tap_key(shortcut);
    host.settle();
    settle();
  }
  /// Brings a panel to the front of its place.
  void show(viewer::PanelKind panel) {
    app.show(panel);
    settle();
  }
  void perform(viewer::ActionId id) {
    app.perform(id);
    settle();
  }
  const viewer::Selection& selection() { return app.state().selection(); }
  /// The first job that failed, as one line; empty where none did.
  std::string failed_job() {
    for (const viewer::JobQueue::Done& done : app.queue().log())
      if (!done.error.empty()) return done.title + ": " + done.error;
    return {};
  }
};

/// A panel's CSV in cells, its header first.
inline std::vector<std::vector<std::string>> cells_of(const std::string& csv) {
  std::vector<std::vector<std::string>> rows;
  std::istringstream lines(csv);
  for (std::string line; std::getline(lines, line);) {
    auto& row = rows.emplace_back();
    std::istringstream cells(line);
    for (std::string cell; std::getline(cells, cell, ',');) row.push_back(cell);
  }
  return rows;
}

/// One panel, filling the window, on a head of one's choice.
struct OnePanelDashboard : Dashboard {
  viewer::PanelKind kind;
  OnePanelDashboard(viewer::PanelKind which, const std::filesystem::path& path, int width, int height,
                    Index layer, Index kv_head)
      : Dashboard(path, width, height), kind(which) {
    app.state().select_head(layer, kv_head);
    app.layout().show(kind);
    app.layout().maximise(kind);
    app.focus(kind);
    settle();
  }
  std::string csv() {
    viewer::PanelContext context{app.state(), app.queue()};
    return app.panel(kind).csv(context);
  }
};

}  // namespace kvreplay::test
