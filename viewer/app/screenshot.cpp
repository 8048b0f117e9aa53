#include "viewer/app/screenshot.hpp"

#include "data/error.hpp"
#include "viewer/gl/headless_host.hpp"
#include "viewer/gl/picture.hpp"

#include <fmt/format.h>

#include <chrono>
#include <cmath>

namespace kvreplay::viewer {
namespace {

using namespace std::chrono_literals;

/// Frames without anything new, after which the picture is taken.
constexpr int kQuietFrames = 3;

Index within_range(const OptionFacts& option, Index value, Index first, Index end) {
  if (value < first || value >= end)
    throw OptionError(option, fmt::format("{} to {}", first, end - 1), std::to_string(value));
  return value;
}

}  // namespace

PanelKind panel_by_name(const std::string& name) {
  if (const auto kind = kPanels.named(name)) return *kind;
  throw OptionError(start_option::panel, "one of " + panel_names(), "'" + name + "'");
}

void select_at_start(App& app, const ScreenshotOptions& options) {
  if (options.panel) {
    app.show(*options.panel);
    app.layout().maximise(*options.panel);
  }
  if (options.layer || options.kv_head || options.query_head) app.keep_head();
  app.when_open([options](AppState& state) {
    const DumpShape& shape = state.run()->shape();
    Selection next = state.selection();
    if (options.layer) next.layer = within_range(start_option::layer, *options.layer, 0, shape.layers);
    if (options.kv_head) next.kv_head = within_range(start_option::head, *options.kv_head, 0, shape.n_kv);
    if (options.query_head)
      next.query_head = within_range(start_option::query_head, *options.query_head, 0, shape.group());
    if (options.row) next.row = within_range(start_option::row, *options.row, shape.first_query(), shape.T);
    if (options.token) next.token = within_range(start_option::token, *options.token, 0, shape.T);
    state.select(next);
  });
}

void take_screenshot(AppOptions app_options, const ScreenshotOptions& options,
                     const std::filesystem::path& path) {
  const bool opens_anew = !app_options.open.empty();
  if (!opens_anew && (!options.session || options.session->runs.empty()))
    throw OptionError(start_option::screenshot, "a dump or a result folder to show", "none");
  App app(std::move(app_options));
  if (options.session) app.restore(*options.session, !opens_anew);
  const auto pixels = [&](int points) {
    return static_cast<int>(std::lround(static_cast<float>(points) * options.scale));
  };
  HeadlessHost host(app, pixels(options.width), pixels(options.height), options.scale);
  select_at_start(app, options);
  for (int quiet = 0; quiet < kQuietFrames;) {
    host.frame();
    if (!app.open_error().empty()) throw InputError(app.open_error());
    if (app.state().message_is_error()) throw InputError(app.state().message());
    const bool settled = app.settled();
    quiet = settled ? quiet + 1 : 0;
    if (!settled) app.desk().wait_idle(50ms);
  }
  write_picture(path, host.pixels(), host.width(), host.height());
}

}  // namespace kvreplay::viewer
