#include "viewer/panels/scatter/scatter_points.hpp"

#include "viewer/widgets/theme.hpp"

#include <algorithm>
#include <cmath>

namespace kvreplay::viewer {
namespace {

constexpr std::size_t kMostDiscs = 1500;
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
  const float base = spots.size() < 200 ? 2.8F : 2.2F;
  for (std::size_t s = 0; s < styles.size(); ++s) {
    const float radius = theme().px(s + 1 < styles.size() ? base : base + 0.6F);
    for (const Spot& spot : spots)
      if (spot.style == s)
        plot.list()->AddCircleFilled(spot.at, radius, faded(styles[s].color, styles[s].opacity));
  }
}

/// Counts of points in square cells over a plot's area.
class Cells {
 public:
  Cells(const Plot& plot, float size, std::size_t styles)
      : styles_(styles),
        low_(plot.low_corner()),
        size_(size),
        columns_(static_cast<std::size_t>((plot.high_corner().x - low_.x) / size) + 1),
        rows_(static_cast<std::size_t>((plot.high_corner().y - low_.y) / size) + 1),
        counts_(columns_ * rows_ * styles, 0) {}

  void add(ImVec2 at, std::uint8_t style) {
    const auto column = std::min(static_cast<std::size_t>((at.x - low_.x) / size_), columns_ - 1);
    const auto row = std::min(static_cast<std::size_t>((at.y - low_.y) / size_), rows_ - 1);
    ++counts_[(row * columns_ + column) * styles_ + style];
  }

  void draw(ImDrawList* list, std::span<const PointStyle> styles) const {
    std::vector<Filled> filled;
    std::uint32_t most = 1;
    for (std::size_t cell = 0; cell < columns_ * rows_; ++cell) {
      const Filled found = look(cell);
      if (found.count > 0) filled.push_back(found);
      most = std::max(most, found.count);
    }
    for (std::size_t from = 0; from < filled.size(); from += kQuadsAtOnce) {
      const std::size_t quads = std::min(kQuadsAtOnce, filled.size() - from);
      list->PrimReserve(static_cast<int>(6 * quads), static_cast<int>(4 * quads));
      for (std::size_t i = from; i < from + quads; ++i) {
        const std::size_t row = filled[i].cell / columns_, column = filled[i].cell % columns_;
        const ImVec2 corner{low_.x + size_ * static_cast<float>(column),
                            low_.y + size_ * static_cast<float>(row)};
        const PointStyle& style = styles[filled[i].style];
        list->PrimRect(corner, {corner.x + size_, corner.y + size_},
                       faded(style.color, shade(filled[i].count, most, style.opacity)));
      }
    }
  }

 private:
  struct Filled {
    std::size_t cell = 0, style = 0;
    std::uint32_t count = 0;
  };
  /// The last style shows wherever it is, of the others the most frequent.
  Filled look(std::size_t cell) const {
    Filled found{cell, 0, 0};
    std::uint32_t frequent = 0;
    for (std::size_t s = 0; s < styles_; ++s) {
      const std::uint32_t count = counts_[cell * styles_ + s];
      found.count += count;
      if (count == 0 || (count <= frequent && s + 1 < styles_)) continue;
      frequent = count;
      found.style = s;
    }
    return found;
  }
  static float shade(std::uint32_t count, std::uint32_t most, float alone) {
    if (most < 2) return alone;
    return alone + (1 - alone) * std::log(static_cast<float>(count)) / std::log(static_cast<float>(most));
  }

  std::size_t styles_;
  ImVec2 low_;
  float size_;
  std::size_t columns_, rows_;
  std::vector<std::uint32_t> counts_;  // [rows, columns, styles]
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
  Cells cells(plot, std::max(1.0F, std::round(theme().px(2))), styles.size());
  for (const Spot& spot : spots) cells.add(spot.at, spot.style);
  cells.draw(plot.list(), styles);
}

}  // namespace kvreplay::viewer
