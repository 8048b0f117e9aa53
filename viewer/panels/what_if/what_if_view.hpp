#pragma once

#include "analysis/results/figure_facts.hpp"
#include "viewer/model/heatmap_image.hpp"
#include "viewer/questions/what_if.hpp"
#include "viewer/widgets/position_axis.hpp"

#include <array>
#include <optional>
#include <span>

namespace kvreplay::viewer {

/// Two kept sets over the positions of a prompt, one above the other. Either may be null: not known yet.
struct KeptStripContent {
  const KeptSet *a = nullptr, *b = nullptr;  ///< [l]
  Index l = 0;
  std::optional<Index> selected, hovered;
  std::span<const Index> chosen;  ///< together, ascending
  Key link;                       ///< HeatmapContent::link of the tokens' axis
};

/// Draws them: what both keep is grey, what one keeps alone has its setting's colour.
class KeptStrip {
 public:
  void draw(const char* id, float width, const KeptStripContent& content, HeatmapLinks& links);
  const PositionAxis& axis() const { return axis_; }

 private:
  PositionAxis axis_;
};

/// What the colours mean and how many tokens have each, on the current line; shorter where `width` pixels are
/// few.
void kept_legend(const KeptDifference& difference, float width);

/// Whether either, which may be null, is of a cache that makes up for evicted tokens.
bool any_compensated(const std::array<const WhatIf*, 2>& answers);

/// How the errors of the settings A and B come about, as waterfalls on one scale, side by side where `width`
/// pixels have room: what the choice of the tokens costs, then with their weights, then with their values.
/// `rows` are those that the user picked; empty, or where nothing is known on them: the decoding steps, else
/// the window.
void error_waterfalls(const std::array<const WhatIf*, 2>& answers, std::optional<RowSet>& rows, float width);

}  // namespace kvreplay::viewer
