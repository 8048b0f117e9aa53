#include "viewer/panels/scatter_points.hpp"

#include "viewer/widgets/theme.hpp"

#include <algorithm>
#include <cmath>

namespace kvreplay::viewer {
namespace {

constexpr std::size_t kMostDiscs = 2500;
/// Quads that one reservation may hold: ImGui's indices have 16 bits, four vertices a quad.
constexpr std::size_t kQuadsAtOnce = 8192;

struct Spot {
  ImVec2 at;
  std::uint8_t style = 0;
};

std::uint8_t style_of(std::span<const std::uint8_t> classes, Index token, std::size_t styles) {
  const auto at = static_cast<std::size_t>(token);
  return at < classes.size() && classes[at] < styles ? classes[at] : std::uint8_t{0};
}

void draw_discs(const Plot& plot, std::span<const Spot> spots, std::span<const PointStyle> styles) {
  const float radius = theme().px(2.3F);
  for (std::size_t s = 0; s < styles.size(); ++s)
    for (const Spot& spot : spots)
      if (spot.style == s)
        plot.list()->AddCircleFilled(spot.at, radius, faded(styles[s].color, styles[s].opacity));
}

/// Counts of points in square cells over a plot's area.
class Cells {
 public:
  Cells(const Plot& plot, float size)
      : low_(plot.low_corner()),
        size_(size),
        columns_(static_cast<std::size_t>((plot.high_corner().x - low_.x) / size) + 1),
        rows_(static_cast<std::size_t>((plot.high_corner().y - low_.y) / size) + 1),
        counts_(columns_ * rows_, 0),
        styles_(columns_ * rows_, 0) {}

  void add(ImVec2 at, std::uint8_t style) {
    const auto column = std::min(static_cast<std::size_t>((at.x - low_.x) / size_), columns_ - 1);
    const auto row = std::min(static_cast<std::size_t>((at.y - low_.y) / size_), rows_ - 1);
    const std::size_t cell = row * columns_ + column;
    most_ = std::max(most_, ++counts_[cell]);
    styles_[cell] = std::max(styles_[cell], style);
  }

  void draw(ImDrawList* list, std::span<const PointStyle> styles) const {
    std::vector<std::size_t> filled;
    for (std::size_t cell = 0; cell < counts_.size(); ++cell)
      if (counts_[cell] > 0) filled.push_back(cell);
    for (std::size_t from = 0; from < filled.size(); from += kQuadsAtOnce) {
      const std::size_t quads = std::min(kQuadsAtOnce, filled.size() - from);
      list->PrimReserve(static_cast<int>(6 * quads), static_cast<int>(4 * quads));
      for (std::size_t i = from; i < from + quads; ++i) {
        const std::size_t cell = filled[i];
        const std::size_t row = cell / columns_, column = cell % columns_;
        const ImVec2 corner{low_.x + size_ * static_cast<float>(column),
                            low_.y + size_ * static_cast<float>(row)};
        const PointStyle& style = styles[styles_[cell]];
        list->PrimRect(corner, {corner.x + size_, corner.y + size_},
                       faded(style.color, shade(counts_[cell], style.opacity)));
      }
    }
  }

 private:
  float shade(std::uint32_t count, float alone) const {
    if (most_ < 2) return alone;
    const float share = std::log(static_cast<float>(count)) / std::log(static_cast<float>(most_));
    return alone + (1 - alone) * share;
  }

  ImVec2 low_;
  float size_;
  std::size_t columns_, rows_;
  std::vector<std::uint32_t> counts_;
  std::vector<std::uint8_t> styles_;
  std::uint32_t most_ = 0;
};

}  // namespace

ScatterPixels::ScatterPixels(const Scatter& scatter, const Plot& plot)
    : corner_{plot.low_corner().x, plot.high_corner().y} {
  const ImVec2 a = plot.low_corner(), b = plot.high_corner();
  low_ = {scatter.x.coordinate(plot.x_of(a.x)), scatter.y.coordinate(plot.y_of(b.y))};
  high_ = {scatter.x.coordinate(plot.x_of(b.x)), scatter.y.coordinate(plot.y_of(a.y))};
  unit_ = {(high_.x - low_.x) / (b.x - a.x), (high_.y - low_.y) / (b.y - a.y)};
}

ImVec2 ScatterPixels::at(AxisPoint point) const {
  return {static_cast<float>(corner_.x + (point.x - low_.x) / unit_.x),
          static_cast<float>(corner_.y - (point.y - low_.y) / unit_.y)};
}

AxisPoint ScatterPixels::of(ImVec2 pixel) const {
  return {low_.x + unit_.x * (pixel.x - corner_.x), low_.y + unit_.y * (corner_.y - pixel.y)};
}

void draw_points(const Plot& plot, const Scatter& scatter, std::span<const std::uint8_t> classes,
                 std::span<const PointStyle> styles) {
  const ScatterPixels pixels(scatter, plot);
  const ImVec2 low = plot.low_corner(), high = plot.high_corner();
  const auto inside = [&](ImVec2 at) {
    return at.x >= low.x && at.x <= high.x && at.y >= low.y && at.y <= high.y;
  };
  std::vector<Spot> spots;
  for (const ScatterPoint& point : scatter.points) {
    const ImVec2 at = pixels.at(point.at);
    if (inside(at)) spots.push_back({at, style_of(classes, point.token, styles.size())});
  }
  if (spots.size() <= kMostDiscs) return draw_discs(plot, spots, styles);
  Cells cells(plot, std::max(1.0F, std::round(theme().px(2))));
  for (const Spot& spot : spots) cells.add(spot.at, spot.style);
  cells.draw(plot.list(), styles);
}

}  // namespace kvreplay::viewer
