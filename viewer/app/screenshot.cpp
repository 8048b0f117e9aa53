#include "viewer/app/screenshot.hpp"

#include "data/error.hpp"
#include "viewer/gl/frame_buffer.hpp"
#include "viewer/gl/headless_host.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <string_view>

namespace kvreplay::viewer {
namespace {

using namespace std::chrono_literals;

Index within_range(const OptionFacts& option, Index value, Index first, Index end) {
  if (value < first || value >= end)
    throw OptionError(option, fmt::format("{} to {}", first, end - 1), std::to_string(value));
  return value;
}

/// The dump's own number, and where the model has another one that, too.
Index layer_in_range(const Run& run, Index layer) {
  const LayerNumbers& layers = run.layers();
  if (layer >= layers.count() && layers.largest() >= layers.count())
    throw OptionError(
        start_option::layer,
        fmt::format("0 to {}, the dump's count of the model's layers {}", layers.count() - 1, layers.text()),
        std::to_string(layer));
  return within_range(start_option::layer, layer, 0, layers.count());
}

}  // namespace

PanelKind panel_by_name(const std::string& name) {
  if (const auto kind = kPanels.named(name)) return *kind;
  throw OptionError(start_option::panel, "one of " + panel_names(), "'" + name + "'");
}

std::filesystem::path follow(const ViewLink& link, ScreenshotOptions& options) {
  const auto metric = [](const std::string& name) {
    const auto found = kTokenMetrics.named(name);
    if (!found) throw InputError("the link", "a token metric", fmt::format("'{}'", name));
    return found;
  };
  if (!link.panel.empty() && !options.panel) {
    options.panel = kPanels.named(link.panel);
    if (!options.panel)
      throw InputError("the link", "panel=NAME, one of " + panel_names(), fmt::format("'{}'", link.panel));
    options.among_others = true;
  }
  const auto take = [](std::optional<Index>& into, std::optional<Index> given) {
    if (!into) into = given;
  };
  options.dump = link.dump;
  take(options.layer, link.layer);
  take(options.kv_head, link.kv_head);
  take(options.query_head, link.query_head);
  take(options.row, link.row);
  take(options.token, link.token);
  take(options.window, link.window);
  if (!link.score.empty()) options.score = metric(link.score);
  if (!link.reference.empty()) options.reference = metric(link.reference);
  return link.run;
}

std::vector<Policy> policies_at_start(const std::vector<std::string>& names) {
  if (names.size() > 2)
    throw OptionError(start_option::policy, "two policies at most, for A and B",
                      counted(static_cast<Index>(names.size()), "name"));
  std::vector<Policy> policies;
  for (const std::string& name : names) {
    policies.push_back(parse_policy(name, {}, start_option::policy));
    if (policies.back().own != PolicyOverrides{})
      throw OptionError(start_option::policy, "a name without options in brackets",
                        fmt::format("'{}'", name));
  }
  return policies;
}

void select_at_start(App& app, const ScreenshotOptions& options) {
  if (options.panel) {
    app.show(*options.panel);
    // A session has the panel's size, and that of the figure with it.
    if (!options.among_others && (!options.figure || !options.session)) app.layout().maximise(*options.panel);
  }
  if (options.layer || options.kv_head || options.query_head) app.keep_head();
  app.when_open([options](AppState& state) {
    const DumpShape& shape = state.run()->shape();
    if (!options.dump.empty() && state.run()->fingerprint() != options.dump)
      throw InputError("the link", "the dump " + options.dump,
                       fmt::format("{} in {}", state.run()->fingerprint(), state.run()->path().string()));
    Selection next = state.selection();
    if (options.layer) next.layer = layer_in_range(*state.run(), *options.layer);
    if (options.kv_head) next.kv_head = within_range(start_option::head, *options.kv_head, 0, shape.n_kv);
    if (options.query_head)
      next.query_head = within_range(start_option::query_head, *options.query_head, 0, shape.group());
    if (options.row) next.row = within_range(start_option::row, *options.row, shape.first_query(), shape.T);
    if (options.token) next.token = within_range(start_option::token, *options.token, 0, shape.T);
    const std::array<WhatIfSettings*, 2> settings = {&state.setting_a, &state.setting_b};
    for (std::size_t s = 0; s < options.policies.size(); ++s) {
      const Policy& policy = options.policies[s];
      settings[s]->base = name_of(policy.base);
      settings[s]->score = policy.metric  ? name_of(*policy.metric)
                           : policy.start ? name_of(*policy.start)
                                          : std::string_view();
    }
    if (options.keep) {
      state.budget.sigma_budget = !options.keep->tokens;
      if (options.keep->tokens)
        state.budget.budget = *options.keep->tokens;
      else
        state.budget.sigma = options.keep->sigma;
    }
    if (options.score) state.comparison.score = *options.score;
    if (options.reference) state.comparison.reference = *options.reference;
    if (options.window)
      state.comparison.window = std::clamp<Index>(*options.window, 1, std::max<Index>(shape.l, 1));
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
  const float scale = options.figure ? 1 : options.scale;
  const auto pixels = [&](int points) {
    return static_cast<int>(std::lround(static_cast<float>(points) * scale));
  };
  HeadlessHost host(app, pixels(options.width), pixels(options.height), scale);
  select_at_start(app, options);
  const auto draw_until = [&](const auto& done) {
    while (!done()) {
      host.frame();
      if (!app.open_error().empty()) throw InputError(app.open_error());
      if (app.state().message_is_error()) throw InputError(app.state().message());
      if (app.queue().open_jobs() > 0) app.queue().wait_idle(50ms);
    }
  };
  int quiet = -1;
  draw_until([&] { return (quiet = app.settled() && quiet >= 0 ? quiet + 1 : 0) >= Figure::kQuietFrames; });
  if (options.figure) {
    app.export_figure(*options.panel, path, options.scale);
    return draw_until([&] { return !app.exporting(); });
  }
  write_picture(path, host.pixels(), host.width(), host.height());
}

}  // namespace kvreplay::viewer
