#pragma once

#include "sim/eviction/kept_set.hpp"
#include "viewer/model/camera.hpp"
#include "viewer/widgets/heatmap_view.hpp"
#include "viewer/work/what_if.hpp"

#include <imgui.h>
#include <optional>
#include <string>

namespace kvreplay::viewer {

/// Two kept sets over the positions of a prompt, one above the other. Either may be null: not known yet.
struct KeptStripContent {
  const KeptSet *a = nullptr, *b = nullptr;  ///< [l]
  Index l = 0;
  std::optional<Index> selected, hovered;
  Key link;  ///< HeatmapContent::link of the tokens' axis
};

struct KeptStripHit {
  std::optional<Index> hovered;  ///< token under the mouse
  bool clicked = false;
};

/// Draws them: what both keep is grey, what one keeps alone has its setting's colour. The wheel zooms at the
/// cursor, drag pans, double click shows all.
class KeptStrip {
 public:
  /// Height in pixels that it takes.
  static float height();
  KeptStripHit draw(const char* id, float width, const KeptStripContent& content, HeatmapLinks& links);

 private:
  void take_mouse(const KeptStripContent& content, HeatmapLinks& links, int pixels, float left,
                  KeptStripHit& hit);

  bool fitted_ = true;
  int pixels_ = 0;
  Index l_ = 0;
  Camera camera_;
};

/// What the colours mean and how many tokens have each, on the current line; shorter where `width` pixels are
/// few.
void kept_legend(const KeptDifference& difference, float width);

}  // namespace kvreplay::viewer
