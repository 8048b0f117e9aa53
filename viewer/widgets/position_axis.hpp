#pragma once

#include "viewer/model/camera.hpp"

#include <algorithm>
#include <cmath>
#include <imgui.h>
#include <optional>

namespace kvreplay::viewer {

/// Positions along the pixels of strips that lie one below the other: the wheel zooms at the cursor, drag
/// pans, double click shows all.
class PositionAxis {
 public:
  /// Begins a frame in which the strips are so many pixels wide from `left` on.
  void begin(float left, int pixels, Index positions);
  /// The part that is seen, and that of another view with so many pixels in its place.
  const AxisView& view() const { return camera_.x; }
  void join(const AxisView& other, int pixels);
  /// Takes the mouse over the last item.
  void take_mouse();
  std::optional<Index> hovered() const { return hovered_; }  ///< position under the mouse
  bool clicked() const { return clicked_; }

  float left() const { return left_; }
  float right() const { return left_ + static_cast<float>(pixels_); }
  int pixels() const { return pixels_; }
  /// The pixel of a position's middle.
  float x_of(Index position) const {
    return left_ + static_cast<float>(camera_.x.pixel_of(static_cast<double>(position) + 0.5));
  }
  /// A strip between two heights, each pixel in the colour color_of(first, end) of its positions; 0: none.
  template <class ColorOf>
  void draw(float top, float foot, const ColorOf& color_of) const;
  /// Numbers below `top`, and ticks above them that begin `gap` pixels below it; as high as height().
  void draw_numbers(float top, float gap) const;
  static float height();

 private:
  MatrixSize size() const { return {1, positions_}; }
  Index first_at(int pixel) const { return static_cast<Index>(std::floor(camera_.x.cell_at(pixel))); }

  bool fitted_ = true;
  int pixels_ = 0;
  Index positions_ = 0;
  Camera camera_;
  // of this frame
  float left_ = 0;
  std::optional<Index> hovered_;
  bool clicked_ = false;
};

template <class ColorOf>
void PositionAxis::draw(float top, float foot, const ColorOf& color_of) const {
  ImU32 now = 0;
  int from = 0;
  for (int p = 0; p <= pixels_; ++p) {
    ImU32 next = 0;
    if (p < pixels_) {
      const Index first = std::max<Index>(first_at(p), 0);
      next = color_of(first, std::min(std::max(first_at(p + 1), first + 1), positions_));
    }
    if (next == now && p < pixels_) continue;
    if (p > from && now != 0)
      ImGui::GetWindowDrawList()->AddRectFilled({left_ + static_cast<float>(from), top},
                                                {left_ + static_cast<float>(p), foot}, now);
    now = next;
    from = p;
  }
}

}  // namespace kvreplay::viewer
