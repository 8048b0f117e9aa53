#pragma once

#include "analysis/eviction/eviction_options.hpp"
#include "analysis/options/option.hpp"
#include "viewer/app/app.hpp"

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

namespace kvreplay::viewer {

struct ScreenshotOptions {
  int width = 1280, height = 800;  ///< points
  float scale = 1;                 ///< pixels a point
  std::optional<PanelKind> panel;  ///< fills the picture; none: all panels
  bool figure = false;             ///< the panel's figure alone, with a title and where it comes from
  std::optional<Index> layer, kv_head, query_head, row, token;
  std::string dump;  ///< fingerprint() that the first run's dump must have; empty: any
  std::optional<TokenMetric> score, reference;
  std::optional<Index> window;     ///< w
  std::vector<Policy> policies;    ///< of settings A and B, as far as they are named
  std::optional<Budget> keep;      ///< budget of a KV head, in all panels
  bool among_others = false;       ///< `panel` is brought to the front and no more
  std::optional<Session> session;  ///< state of the dashboard; its runs are shown if none is named
};

namespace start_option {
inline constexpr OptionFacts screenshot{"screenshot", "FILE",
                                        "writes a PNG once everything in it is computed, and ends"},
    policy{"policy", "A[,B]", "policies of settings A and B, named as in evict: snapkv,h2o+joint"},
    keep{"keep", "N", "what a KV head keeps of the prompt: 20%, or 410 tokens"},
    panel{"panel", "NAME", "only this panel, filling the picture"},
    figure{
        "figure", "",
        "the panel's figure alone, without controls, with a title and where it comes from, at scale 2; its "
        "plot as SVG where FILE ends in .svg"},
    layer{"layer", "N", "selects a layer, counted as in --layers of kvreplay: the dump's, from 0"},
    head{"head", "N", "selects a KV head"},
    query_head{"query-head", "N", "selects a query head of the group"},
    row{"row", "N", "selects a query's position"}, token{"token", "N", "selects a token's position"};
}  // namespace start_option

/// Throws OptionError where there is none of that name.
PanelKind panel_by_name(const std::string& name);

/// Takes up a link: what it names, where nothing else was asked for. Gives its run's path. Throws InputError.
std::filesystem::path follow(const ViewLink& link, ScreenshotOptions& options);

/// Settings A and B as --policy names them. Throws OptionError for one that is unknown, has options in
/// brackets, which What if has not, or is the third.
std::vector<Policy> policies_at_start(const std::vector<std::string>& names);

/// Draws without a display until everything in the picture is computed, then writes it.
/// Throws InputError where a path or a score cannot be opened, something in the picture cannot be computed, a
/// selection lies outside it, or the picture cannot be written.
void take_screenshot(AppOptions app, const ScreenshotOptions& options, const std::filesystem::path& path);

/// Applies the command line's selection once the first run is open; before that, nothing happens.
void select_at_start(App& app, const ScreenshotOptions& options);

}  // namespace kvreplay::viewer
