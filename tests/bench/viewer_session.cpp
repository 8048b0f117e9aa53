// A scripted session of the dashboard, without a display: how long the first picture takes, how frames keep
// up while everything is being computed, and how quickly a slider of What if answers. Prints a table in
// Markdown.
//
//   kvreplay_viewer_session [--first-picture | --text] DUMP [DUMP ...]
//
// With --first-picture it stops there: a large dump is not computed whole. With --text it is the prompt as
// text that is shown, scrolled and wrapped anew.

#include "tests/viewer_gl/scripted_host.hpp"
#include "viewer/app/app.hpp"
#include "viewer/questions/ask.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <exception>
#include <filesystem>
#include <string>
#include <sys/resource.h>
#include <vector>

namespace {

using namespace kvreplay;
using namespace kvreplay::viewer;
using Clock = std::chrono::steady_clock;

double ms_since(Clock::time_point start) {
  return std::chrono::duration<double, std::milli>(Clock::now() - start).count();
}

double at_share(std::vector<double> values, double share) {
  std::sort(values.begin(), values.end());
  return values[static_cast<std::size_t>(share * static_cast<double>(values.size() - 1))];
}

std::string peak_memory() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return fmt::format("{} MiB", usage.ru_maxrss / 1024);
}

struct Session {
  Clock::time_point start = Clock::now();
  App app;
  ScriptedHost host;

  explicit Session(const std::filesystem::path& dump) : app(options(dump)), host(app, 1280, 800) {}
  static AppOptions options(const std::filesystem::path& dump) {
    AppOptions made;
    made.open = {dump};
    return made;
  }

  double frame() {
    const auto begin = Clock::now();
    host.frame();
    host.paint();
    return ms_since(begin);
  }
  /// Until everything in view is there; the frames' times.
  std::vector<double> settle() {
    std::vector<double> times;
    for (int quiet = 0; quiet < 3;) {
      times.push_back(frame());
      if (!app.open_error().empty()) throw std::runtime_error(app.open_error());
      const bool done = app.settled();
      quiet = done ? quiet + 1 : 0;
      if (!done) app.queue().wait_idle(std::chrono::milliseconds(5));
    }
    return times;
  }
};

/// From the start of the program's work to the first frame that shows cells of the token map.
double first_picture(Session& session) {
  session.app.show(PanelKind::tokens);
  const HeatmapView& map = *session.app.panel(PanelKind::tokens).heatmap();
  for (;;) {
    session.frame();
    if (!session.app.open_error().empty()) throw std::runtime_error(session.app.open_error());
    if (!map.tiles().empty()) break;
    session.app.queue().wait_idle(std::chrono::milliseconds(2));
  }
  session.frame();
  return ms_since(session.start);
}

/// Frames while the token map is dragged about, zoomed in a little, and whatever else is computed goes on.
std::vector<double> pan(Session& session, int frames) {
  session.app.layout().maximise(PanelKind::tokens);
  session.app.focus(PanelKind::tokens);
  session.frame();
  session.frame();
  const Area area = session.app.area(PanelKind::tokens);
  const float x = area.x + area.width / 2, y = area.y + area.height / 2;
  session.app.panel(PanelKind::tokens).heatmap()->zoom(2);
  session.host.move_mouse(x, y);
  session.frame();
  session.host.press_button();
  std::vector<double> times;
  for (int i = 0; i < frames; ++i) {
    const auto phase = static_cast<float>(i % 120) / 120;
    const float offset = phase < 0.5F ? phase : 1 - phase;
    session.host.move_mouse(x - 600 * offset, y - 300 * offset);
    times.push_back(session.frame());
  }
  session.host.release_button();
  session.host.settle();
  session.app.layout().maximise({});
  return times;
}

/// From a change of the budget to the frame that has its exact error.
std::vector<double> what_if(Session& session, const std::string& base, int changes) {
  AppState& state = session.app.state();
  PanelContext context{state, session.app.queue()};
  session.app.layout().maximise(PanelKind::what_if);
  state.setting_a = {};
  state.setting_a.base = base;
  state.setting_a.linked = false;
  session.settle();
  std::vector<double> times;
  for (int i = 0; i < changes; ++i) {
    state.setting_a.sigma = 0.5 + 0.4 * (i + 1) / (changes + 1);
    const auto begin = Clock::now();
    for (;;) {
      session.frame();
      const Selection& s = state.selection();
      const Answer<WhatIf> answer =
          ask_what_if(context, state.setting_a, s.layer, s.kv_head, Urgency::now, "bench");
      if (!answer.error.empty()) throw std::runtime_error(answer.error);
      if (answer && !answer.stale && !answer.pending) break;
      session.app.queue().wait_idle(std::chrono::milliseconds(1));
    }
    times.push_back(ms_since(begin));
  }
  session.app.layout().maximise({});
  return times;
}

void run(const std::string& dump) {
  Session session(dump);
  const double first = first_picture(session);
  const DumpShape shape = session.app.state().run()->shape();
  const std::vector<double> frames = pan(session, 360);
  session.settle();
  const double all = ms_since(session.start);
  const std::vector<double> quiet = pan(session, 360);
  const std::vector<double> snapkv = what_if(session, "snapkv", 20), h2o = what_if(session, "h2o", 20);
  fmt::print(
      "| {} ({} layers x {} KV heads, T = {}) | {:.0f} | {:.1f} / {:.1f} | {:.1f} / {:.1f} | {:.0f} / {:.0f} "
      "| {:.0f} / {:.0f} | {:.1f} | {} |\n",
      std::filesystem::path(dump).filename().string(), shape.layers, shape.n_kv, shape.T, first,
      at_share(frames, 0.5), at_share(frames, 1), at_share(quiet, 0.5), at_share(quiet, 1),
      at_share(snapkv, 0.5), at_share(snapkv, 1), at_share(h2o, 0.5), at_share(h2o, 1), all / 1000,
      peak_memory());
  std::fflush(stdout);
}

void run_first_picture(const std::string& dump) {
  Session session(dump);
  const double first = first_picture(session);
  const DumpShape shape = session.app.state().run()->shape();
  fmt::print("| {} ({} layers x {} KV heads, T = {}) | {:.0f} | {} |\n",
             std::filesystem::path(dump).filename().string(), shape.layers, shape.n_kv, shape.T, first,
             peak_memory());
  std::fflush(stdout);
}

/// Frames while the text is scrolled from its beginning to its end, and how long its lines take when the
/// window changes its width.
void run_text(const std::string& dump) {
  Session session(dump);
  const std::vector<double> opening = session.settle();  // all panels of a first start
  session.app.layout().maximise(PanelKind::text);
  session.settle();
  const Area area = session.app.area(PanelKind::text);
  session.host.move_mouse(area.x + area.width / 2, area.y + area.height / 2);
  session.frame();
  std::vector<double> frames, lines;
  for (int i = 0; i < 360; ++i) {
    session.host.wheel(0, i < 180 ? -40 : 40);
    frames.push_back(session.frame());
  }
  session.settle();
  for (int width = 1200; width > 800; width -= 40) {
    session.host.resize(width, 800, 1);
    const auto begin = Clock::now();
    session.settle();
    lines.push_back(ms_since(begin));
  }
  const DumpShape shape = session.app.state().run()->shape();
  fmt::print("| {} (T = {}) | {:.1f} / {:.1f} | {:.1f} / {:.1f} | {:.0f} / {:.0f} | {} |\n",
             std::filesystem::path(dump).filename().string(), shape.T, at_share(opening, 0.5),
             at_share(opening, 1), at_share(frames, 0.5), at_share(frames, 1), at_share(lines, 0.5),
             at_share(lines, 1), peak_memory());
  std::fflush(stdout);
}

}  // namespace

int main(int argc, char** argv) {
  const std::vector<std::string> arguments(argv + 1, argv + argc);
  const bool only_first = !arguments.empty() && arguments[0] == "--first-picture";
  const bool text = !arguments.empty() && arguments[0] == "--text";
  if (text)
    fmt::print(
        "| dump | frames while computing, median / worst, ms | while scrolling | wrapped anew | peak memory "
        "|\n"
        "|---|---|---|---|---|\n");
  else if (only_first)
    fmt::print("| dump | first picture, ms | peak memory |\n|---|---|---|\n");
  else
    fmt::print(
        "| dump | first picture, ms | frames while computing, median / worst, ms | frames otherwise | What "
        "if, "
        "snapkv | "
        "What if, h2o | everything computed, s | peak memory |\n|---|---|---|---|---|---|---|---|\n");
  try {
    for (std::size_t i = only_first || text ? 1 : 0; i < arguments.size(); ++i)
      text ? run_text(arguments[i]) : only_first ? run_first_picture(arguments[i]) : run(arguments[i]);
  } catch (const std::exception& error) {
    fmt::print(stderr, "kvreplay_viewer_session: {}\n", error.what());
    return 1;
  }
  return 0;
}
