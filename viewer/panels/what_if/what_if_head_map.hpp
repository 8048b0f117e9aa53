#pragma once

#include "viewer/panels/head_grid.hpp"
#include "viewer/panels/what_if_heads.hpp"

#include <array>
#include <optional>
#include <string>

namespace kvreplay::viewer {

/// A figure of all heads under A and B, layers x KV heads: of either setting, or how they differ.
class WhatIfHeadMap {
 public:
  /// Whether all heads are looked at; unless chosen, where there are few.
  bool on(const Run& run) const;
  /// Takes up with a setting and asks for the next heads. A setting that cannot be followed is left out:
  /// heads keep the last one's figures.
  void follow(PanelContext& context, std::size_t setting, const WhatIfSettings& settings, bool can_follow);
  const std::array<WhatIfHeads, 2>& heads() const { return heads_; }
  /// The controls and the map, within `size` pixels.
  void draw(PanelContext& context, ImVec2 size);
  HeatmapView& heatmap() { return map_.heatmap(); }

  void save(nlohmann::json& json) const;
  void load(const nlohmann::json& json);

 private:
  static constexpr std::size_t kFutureError = 2;  // of what_if_figures()
  static constexpr std::size_t kDifference = 2;   // of A, B, B - A

  void draw_progress() const;
  void choose_figure(const Dump& dump, float beside);
  void draw_map(AppState& state, ImVec2 size);
  /// The names and the numbers of what the figure is over all heads, A / B, and what the names say.
  struct OverHeads {
    const char *name, *about;
    std::string numbers;
  };
  std::vector<OverHeads> over_heads() const;

  std::optional<bool> all_heads_;
  std::size_t figure_ = kFutureError, shown_ = kFutureError;  // shown_: where the dump has it
  std::size_t show_ = kDifference;
  HeadGrid map_;
  std::array<WhatIfHeads, 2> heads_;
};

}  // namespace kvreplay::viewer
