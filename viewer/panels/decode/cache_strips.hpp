#pragma once

#include "viewer/widgets/position_axis.hpp"
#include "viewer/work/decode_view.hpp"

#include <imgui.h>
#include <optional>

namespace kvreplay::viewer {

/// Strips one below the other over all positions, each a cache after one step.
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
  void draw_numbers() const;
  const PositionAxis& axis() const { return axis_; }

 private:
  PositionAxis axis_;
  Marks marks_;  // of this frame
};

}  // namespace kvreplay::viewer
