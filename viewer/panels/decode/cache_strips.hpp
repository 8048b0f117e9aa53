#pragma once

#include "viewer/model/camera.hpp"
#include "viewer/work/cache_fates.hpp"

#include <imgui.h>
#include <optional>

namespace kvreplay::viewer {

/// Strips one below the other over all positions, each a cache after one step, zoomed together: the wheel
/// zooms at the cursor, drag pans, double click shows all.
class CacheStrips {
 public:
  struct Marks {
    std::optional<Index> selected, hovered;
    Index now = 0;  ///< the step's own position
  };
  /// Begins a frame. All strips lie between the pixels `left` and `right`.
  void begin(float left, float right, Index positions, const Marks& marks);
  /// One strip from the cursor's height on: what is held in `color`, what was evicted grey, what leaves in
  /// this step's cut in the colour of text.
  void draw(const char* id, float height, ImU32 color, const CacheFates& fates, Index step);
  /// Numbers below the last strip.
  void axis();
  static float axis_height();

  std::optional<Index> hovered() const { return hovered_; }  ///< position under the mouse
  bool clicked() const { return clicked_; }

 private:
  void take_mouse();

  bool fitted_ = true;
  int pixels_ = 0;
  Index positions_ = 0;
  Camera camera_;
  // of this frame
  float left_ = 0;
  Marks marks_;
  std::optional<Index> hovered_;
  bool clicked_ = false;
};

}  // namespace kvreplay::viewer
