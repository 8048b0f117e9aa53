#include "viewer/panels/curve_lines.hpp"

#include "viewer/widgets/theme.hpp"

#include <algorithm>
#include <cmath>

namespace kvreplay::viewer {
namespace {

/// Draws and skips in turn along the path, so that the pattern runs on through its corners.
class Pen {
 public:
  Pen(ImDrawList* list, ImU32 color, float thickness, Stroke stroke)
      : list_(list),
        color_(color),
        thickness_(thickness),
        on_(stroke == Stroke::dashed ? theme().px(6) : theme().px(2)),
        off_(stroke == Stroke::dashed ? theme().px(3.5F) : theme().px(2.5F)) {}

  void segment(ImVec2 a, ImVec2 b) {
    const float length = std::hypot(b.x - a.x, b.y - a.y);
    const auto at = [&](float along) {
      const float share = along / length;
      return ImVec2{a.x + (b.x - a.x) * share, a.y + (b.y - a.y) * share};
    };
    for (float along = 0; along < length;) {
      const bool draws = phase_ < on_;
      const float step = std::min(length - along, (draws ? on_ : on_ + off_) - phase_);
      if (draws) list_->AddLine(at(along), at(along + step), color_, thickness_);
      along += std::max(step, 0.25F);
      phase_ += std::max(step, 0.25F);
      if (phase_ >= on_ + off_) phase_ = 0;
    }
  }

 private:
  ImDrawList* list_;
  ImU32 color_;
  float thickness_, on_, off_, phase_ = 0;
};

/// A curve's height in pixels wherever a label may lie; NaN where it has none.
class PixelCurve {
 public:
  PixelCurve(const Plot& plot, std::span<const double> x, std::span<const double> y) {
    for (std::size_t i = 0; i < std::min(x.size(), y.size()); ++i) points_.push_back(plot.at(x[i], y[i]));
  }
  float at(float px) const {
    const auto right = std::lower_bound(points_.begin(), points_.end(), px,
                                        [](ImVec2 point, float wanted) { return point.x < wanted; });
    if (right == points_.begin() || right == points_.end()) return std::nanf("");
    const ImVec2 a = right[-1], b = *right;
    return a.y + (b.y - a.y) * (px - a.x) / (b.x - a.x);
  }

  /// True if the line enters the band of heights low..high anywhere between two places.
  bool crosses(float from, float to, float low, float high) const {
    for (std::size_t i = 1; i < points_.size(); ++i) {
      if (points_[i].x < from || points_[i - 1].x > to) continue;
      const float a = at_or(std::max(from, points_[i - 1].x), points_[i - 1].y),
                  b = at_or(std::min(to, points_[i].x), points_[i].y);
      if (std::min(a, b) < high && std::max(a, b) > low) return true;  // never for NaN
    }
    return false;
  }

 private:
  float at_or(float px, float otherwise) const {
    const float y = at(px);
    return std::isnan(y) ? otherwise : y;
  }

  std::vector<ImVec2> points_;
};

struct Box {
  ImVec2 low, high;
  bool meets(const Box& other, float gap) const {
    return low.x < other.high.x + gap && other.low.x < high.x + gap && low.y < other.high.y + gap &&
           other.low.y < high.y + gap;
  }
  bool meets(const PixelCurve& curve, float gap) const {
    return curve.crosses(low.x - gap, high.x + gap, low.y - gap, high.y + gap);
  }
};

}  // namespace

void draw_curve(Plot& plot, std::span<const double> x, std::span<const double> y, ImU32 color, Stroke stroke,
                float thickness) {
  if (stroke == Stroke::solid) return plot.line(x, y, color, thickness);
  Pen pen(plot.list(), color, theme().px(thickness), stroke);
  for (std::size_t i = 1; i < std::min(x.size(), y.size()); ++i)
    if (!std::isnan(y[i - 1]) && !std::isnan(y[i]))
      pen.segment(plot.at(x[i - 1], y[i - 1]), plot.at(x[i], y[i]));
}

void draw_key(ImDrawList* list, ImVec2 from, float length, ImU32 color, Stroke stroke, float thickness) {
  const ImVec2 to{from.x + length, from.y};
  if (stroke == Stroke::solid)
    list->AddLine(from, to, color, theme().px(thickness));
  else
    Pen(list, color, theme().px(thickness), stroke).segment(from, to);
}

void label_curves(Plot& plot, std::span<const double> x, std::span<const NamedCurve> curves, double avoid) {
  const Theme& t = theme();
  const ImVec2 low = plot.low_corner(), high = plot.high_corner();
  const float avoid_x = plot.at(avoid, 1).x, near = t.px(1), far = t.px(5);
  std::vector<PixelCurve> lines;
  for (const NamedCurve& curve : curves) lines.emplace_back(plot, x, curve.y);
  std::vector<Box> placed{{{avoid_x, low.y}, {avoid_x, high.y}}};
  const auto is_free = [&](const Box& box, std::size_t own) {
    if (box.low.x < low.x + far || box.high.x > high.x - far || box.low.y < low.y || box.high.y > high.y)
      return false;
    for (const Box& other : placed)
      if (box.meets(other, far)) return false;
    for (std::size_t i = 0; i < lines.size(); ++i)
      if (box.meets(lines[i], i == own ? near : far)) return false;
    return true;
  };
  const auto alone = [&](std::size_t own, float px) {
    for (std::size_t i = 0; i < lines.size(); ++i)
      if (i != own && std::abs(lines[i].at(px) - lines[own].at(px)) < far) return false;
    return true;
  };
  constexpr int kPlaces = 32;
  for (std::size_t c = 0; c < curves.size(); ++c) {
    const ImVec2 extent = ImGui::CalcTextSize(curves[c].name.c_str());
    bool done = false;
    for (int i = kPlaces; i > 0 && !done; --i) {
      const float middle = low.x + (high.x - low.x) * static_cast<float>(i) / kPlaces,
                  y = lines[c].at(middle);
      if (std::isnan(y) || !alone(c, middle)) continue;
      for (const float lift : {-extent.y - t.px(5), t.px(5)}) {
        // Beside a line that climbs the name moves away from it sideways instead.
        for (const float shift : {0.0F, -extent.x / 2 - t.px(6), extent.x / 2 + t.px(6)}) {
          const ImVec2 corner{middle - extent.x / 2 + shift, y + (shift == 0 ? lift : -extent.y / 2)};
          const Box box{corner, {corner.x + extent.x, corner.y + extent.y}};
          if (done || !is_free(box, c)) continue;
          plot.list()->AddText(corner, readable(curves[c].color, theme().plot), curves[c].name.c_str());
          placed.push_back(box);
          done = true;
        }
      }
    }
  }
}

}  // namespace kvreplay::viewer
