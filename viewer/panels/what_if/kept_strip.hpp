#pragma once

#include "sim/eviction/kept_set.hpp"
#include "viewer/model/heatmap_links.hpp"
#include "viewer/widgets/position_axis.hpp"
#include "viewer/work/what_if.hpp"

#include <imgui.h>
#include <optional>
#include <span>
#include <string>

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

}  // namespace kvreplay::viewer
