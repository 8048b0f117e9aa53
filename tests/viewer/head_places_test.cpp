#include "viewer/model/head_places.hpp"

#include "tests/support/catch.hpp"

#include <algorithm>
#include <utility>
#include <vector>

using namespace kvreplay;
using namespace kvreplay::viewer;

namespace {

HeadPlaceSizes sizes(float point = 1) {
  return {.around_x = 124 * point,
          .around_y = 46 * point,
          .table = {230 * point, 140 * point},
          .plot = {230 * point, 150 * point},
          .gap = 10 * point,
          .point = point};
}

bool overlap(const Area& a, const Area& b) {
  if (a.width == 0 || b.width == 0) return false;
  return a.x < b.x + b.width && b.x < a.x + a.width && a.y < b.y + b.height && b.y < a.y + a.height;
}

}  // namespace

TEST_CASE("map, table and plot of the heads stand beside each other within their room", "[head_places]") {
  const std::vector<std::pair<Index, Index>> models = {{1, 1}, {6, 2}, {30, 3}, {32, 8}, {80, 8}, {12, 64}};
  const std::vector<Extent> rooms = {{240, 160}, {300, 420}, {560, 600},
                                     {580, 240}, {900, 500}, {1800, 1900}};
  for (const auto& [layers, n_kv] : models)
    for (const Extent room : rooms)
      for (const float point : {1.0F, 2.0F})
        for (const bool plot_first : {false, true}) {
          INFO(layers << " x " << n_kv << " in " << room.width << " x " << room.height << ", " << point);
          const HeadPlaces places = head_places(layers, n_kv, room, sizes(point), plot_first);
          CHECK_FALSE(overlap(places.map, places.table));
          CHECK_FALSE(overlap(places.map, places.plot));
          CHECK_FALSE(overlap(places.table, places.plot));
          CHECK(places.height >= room.height * (places.map.height > 0 ? 0.3F : 1));
          const bool one = plot_first ? places.plot.width > 0 : places.table.width > 0;
          CHECK(one);
          for (const Area& area : {places.map, places.table, places.plot}) {
            CHECK(area.x >= 0);
            CHECK(area.y >= 0);
            CHECK(area.x + area.width <= room.width);
            CHECK(area.y + area.height <= std::max(room.height, places.height) + 1);
          }
        }
}

TEST_CASE("heads are large enough to click in the room that the first screen gives them", "[head_places]") {
  // 1280 x 800 at one pixel a point, and a small laptop's window.
  for (const Extent room : {Extent{560, 590}, Extent{440, 440}}) {
    INFO(room.width);
    CHECK(head_places(32, 8, room, sizes(), false).cell >= 9);
    const HeadPlaces tall = head_places(80, 8, room, sizes(), false);
    CHECK(tall.cell >= (room.width > 500 ? 5 : 3.5F));
    CHECK_FALSE(tall.square);
  }
  const HeadPlaces first = head_places(32, 8, {560, 590}, sizes(), false);
  CHECK(first.table.width > 0);
  CHECK(first.plot.width > 0);
}

TEST_CASE("a wide room has the layers from left to right, a high one from top to bottom", "[head_places]") {
  CHECK(head_places(32, 8, {900, 420}, sizes(), false).transposed);
  CHECK_FALSE(head_places(32, 8, {520, 900}, sizes(), false).transposed);
}
