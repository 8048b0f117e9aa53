#include "viewer/model/head_places.hpp"

#include <algorithm>
#include <cmath>
#include <initializer_list>
#include <optional>

namespace kvreplay::viewer {
namespace {

/// Points: flatter than the first, a cell is drawn as long as the second at least, to be pointed at.
constexpr float kFlat = 7, kLong = 14;
/// The largest cells, as a share of the room's shorter side, and in points.
constexpr float kMostShare = 0.16F, kMostLeast = 44;
constexpr float kLeastMap = 90;  // points

/// A map of so many rows and columns in a room of its own.
struct Map {
  bool square = true;
  float width = 0, height = 0;  ///< of a cell
  Extent size;                  ///< with what stands around
};

Map map_in(Extent room, float rows, float columns, float most, const HeadPlaceSizes& sizes) {
  const float wide = std::max((room.width - sizes.around_x) / columns, 1.0F),
              high = std::max((room.height - sizes.around_y) / rows, 1.0F);
  const float side = std::min({wide, high, most});
  Map map;
  map.square = side >= kFlat * sizes.point;
  const float longest = std::max(side, kLong * sizes.point);
  map.width = map.square ? side : std::min(wide, longest);
  map.height = map.square ? side : std::min(high, longest);
  map.size = {std::min(room.width, map.width * columns + sizes.around_x),
              std::min(room.height, map.height * rows + sizes.around_y)};
  return map;
}

Area area(float x, float y, float width, float height) {
  return {std::round(x), std::round(y), std::floor(width), std::floor(height)};
}

/// The map above what else there is, or left of it.
std::optional<HeadPlaces> placed(bool above, bool transposed, bool both, Index layers, Index kv_heads,
                                 Extent room, const HeadPlaceSizes& s, bool plot_first) {
  const float most = std::max(kMostLeast * s.point, kMostShare * std::min(room.width, room.height));
  const auto rows = static_cast<float>(transposed ? kv_heads : layers),
             columns = static_cast<float>(transposed ? layers : kv_heads);
  const Extent first = plot_first ? s.plot : s.table;
  // Side by side below the map, else one above the other at its right.
  const Extent rest =
      !both   ? first
      : above ? Extent{s.table.width + s.gap + s.plot.width, std::max(s.table.height, s.plot.height)}
              : Extent{std::max(s.table.width, s.plot.width), s.table.height + s.gap + s.plot.height};
  const Extent left = above ? Extent{room.width, room.height - s.gap - rest.height}
                            : Extent{room.width - s.gap - rest.width, room.height};
  if (both && (above ? rest.width > room.width : rest.height > room.height)) return std::nullopt;
  if (left.width < s.around_x + kFlat * s.point * columns / 2 || left.height < kLeastMap * s.point)
    return std::nullopt;
  const Map map = map_in(left, rows, columns, most, s);
  HeadPlaces places;
  places.transposed = transposed;
  places.square = map.square;
  places.cell = std::min(map.width, map.height);
  places.height = room.height;
  places.map = area(0, 0, map.size.width, map.size.height);
  const float x = above ? 0 : places.map.width + s.gap, y = above ? places.map.height + s.gap : 0;
  const float width = room.width - x, height = room.height - y;
  if (!both) {
    (plot_first ? places.plot : places.table) = area(x, y, width, height);
  } else if (above) {
    const float table = std::clamp(width * 0.45F, s.table.width, width - s.gap - s.plot.width);
    places.table = area(x, y, table, height);
    places.plot = area(x + table + s.gap, y, width - table - s.gap, height);
  } else {
    const float table = std::clamp(height * 0.5F, s.table.height, height - s.gap - s.plot.height);
    places.table = area(x, y, width, table);
    places.plot = area(x, y + table + s.gap, width, height - table - s.gap);
  }
  return places;
}

}  // namespace

HeadPlaces head_places(Index layers, Index kv_heads, Extent room, const HeadPlaceSizes& sizes,
                       bool plot_first) {
  std::optional<HeadPlaces> best;
  for (const bool both : {true, false})
    for (const bool above : {true, false})
      for (const bool transposed : {false, true}) {
        const auto one = placed(above, transposed, both, layers, kv_heads, room, sizes, plot_first);
        // A little more is not worth a part.
        if (one && (!best || one->cell > best->cell * (both ? 1.0F : 1.6F))) best = one;
      }
  if (best) return *best;
  // Too low for a map and anything else: what is of use stands below it, and all of it scrolls.
  const float least = kLeastMap * sizes.point + sizes.around_y;
  HeadPlaces places;
  places.transposed = layers > kv_heads;
  const Map map = map_in({room.width, least}, static_cast<float>(std::min(layers, kv_heads)),
                         static_cast<float>(std::max(layers, kv_heads)), kMostLeast * sizes.point, sizes);
  places.square = map.square;
  places.cell = std::min(map.width, map.height);
  places.map = area(0, 0, map.size.width, map.size.height);
  const Extent first = plot_first ? sizes.plot : sizes.table;
  (plot_first ? places.plot : places.table) =
      area(0, places.map.height + sizes.gap, room.width, first.height);
  places.height = places.map.height + sizes.gap + first.height;
  return places;
}

}  // namespace kvreplay::viewer
