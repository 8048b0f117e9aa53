#include "tests/support/catch.hpp"
#include "viewer/model/value_scale.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <memory>
#include <optional>
#include <random>
#include <vector>

using namespace kvreplay;
using namespace kvreplay::viewer;

namespace {

constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();
constexpr float kInfinity = std::numeric_limits<float>::infinity();

float percentile_of(std::vector<float> values, double p) { return percentile(values, p); }

TileStats stats_of(const std::vector<float>& values) {
  TileStats stats;
  stats.add(values.data(), std::ssize(values));
  return stats;
}

/// Tiles of a matrix whose cell (r, c) is 1000 r + c, all of level 0.
TileMap counting_tiles(MatrixSize size) {
  TileMap tiles;
  for (Index row = 0; row * kTileSize < size.rows; ++row)
    for (Index column = 0; column * kTileSize < size.columns; ++column) {
      TileBuilder builder(size, {0, row, column});
      std::vector<float> cells;
      for (Index r = builder.first_row(); r < builder.end_row(); ++r) {
        cells.clear();
        for (Index c = builder.first_column(); c < builder.end_column(); ++c)
          cells.push_back(static_cast<float>(1000 * r + c));
        builder.add_row(r, cells.data());
      }
      tiles[{0, row, column}] = std::make_shared<const Tile>(builder.finish());
    }
  return tiles;
}

}  // namespace

TEST_CASE("percentiles are those of the sorted finite values", "[viewer][value_range]") {
  std::mt19937 random(6);
  for (int trial = 0; trial < 60; ++trial) {
    std::vector<float> values, finite;
    for (unsigned i = 0; i < 1 + random() % 200; ++i) {
      const float value = static_cast<float>(random() % 100) - 50;
      const auto kind = random() % 8;
      values.push_back(kind == 0 ? kNaN : kind == 1 ? kInfinity : kind == 2 ? -kInfinity : value);
      if (kind > 2) finite.push_back(value);
    }
    std::sort(finite.begin(), finite.end());
    for (const double p : {0.0, 1.0, 33.3, 50.0, 99.0, 100.0}) {
      const float found = percentile_of(values, p);
      if (finite.empty()) {
        CHECK(std::isnan(found));
        continue;
      }
      const double place = p / 100 * static_cast<double>(finite.size() - 1);
      const auto below = static_cast<std::size_t>(place);
      const double above = finite[std::min(below + 1, finite.size() - 1)];
      CHECK(found == Approx(finite[below] + (place - static_cast<double>(below)) * (above - finite[below]))
                         .margin(1e-4));
    }
  }
}

TEST_CASE("percentiles of little and of nothing", "[viewer][value_range]") {
  CHECK(std::isnan(percentile_of({}, 50)));
  CHECK(std::isnan(percentile_of({kNaN, kInfinity, -kInfinity}, 50)));
  CHECK(percentile_of({kNaN, 3, kInfinity}, 0) == 3);
  CHECK(percentile_of({kNaN, 3, kInfinity}, 100) == 3);
  CHECK(percentile_of({4, 1}, 25) == 1.75F);
  CHECK(percentile_of({5, 1, 3}, 50) == 3);
  CHECK(percentile_of({5, 1, 3}, -10) == 1);
  CHECK(percentile_of({5, 1, 3}, 1e9) == 5);
  CHECK(std::isnan(percentile_of({5, 1, 3}, std::nan(""))));
}

TEST_CASE("histograms count every value once", "[viewer][value_range]") {
  const std::vector<float> values = {0,     0.24F, 0.25F, 0.5F, 0.99F,     1,         1.01F,
                                     -0.5F, kNaN,  kNaN,  2,    kInfinity, -kInfinity};
  const Histogram counted = histogram(values, {ScaleKind::linear, 0, 1, 1}, 4);
  CHECK(counted.counts == std::vector<std::int64_t>{2, 1, 1, 2});
  CHECK(counted.under == 2);
  CHECK(counted.over == 3);
  CHECK(counted.missing == 2);
  const Histogram decades = histogram({0.001F, 0.005F, 0.5F, 1, 0, -1}, {ScaleKind::log, 1e-3F, 1, 1}, 3);
  CHECK(decades.counts == std::vector<std::int64_t>{2, 0, 2});
  CHECK(decades.under == 2);
  CHECK(histogram({}, {}, 0).counts == std::vector<std::int64_t>{0});
}

TEST_CASE("values in view are the texels in view", "[viewer][value_range]") {
  const MatrixSize size{600, 700};
  TileMap tiles = counting_tiles(size);
  const Camera camera{{250.5, 0.5}, {10, 1}};
  const std::vector<float> seen = visible_values(tiles, camera, size, 20, 5, 10000);
  // Columns 250 to 260 (at middles 250.75 to 260.25), rows 10 to 14.
  std::vector<float> expected;
  for (int r = 10; r < 15; ++r)
    for (int c = 250; c <= 260; ++c) expected.push_back(static_cast<float>(1000 * r + c));
  CHECK(seen == expected);

  const std::vector<float> some = visible_values(tiles, camera, size, 20, 5, 20);
  CHECK(some.size() <= 20);
  CHECK(some.size() >= 10);
  for (const float value : some) CHECK(std::count(expected.begin(), expected.end(), value) == 1);
  CHECK(visible_values(tiles, camera, size, 20, 5, 0).empty());

  tiles.erase({0, 0, 0});  // what is pending has no value yet
  const std::vector<float> right = visible_values(tiles, camera, size, 20, 5, 10000);
  CHECK(right.size() == 5 * 5);
  CHECK(right.front() == 10256);
  CHECK(visible_values({}, camera, size, 20, 5, 10000).empty());
  CHECK(visible_values({}, {}, {0, 0}, 20, 5, 10000).empty());
}

TEST_CASE("values of selected columns are those of all rows in view, of a selected row those of all columns",
          "[viewer][value_range]") {
  const MatrixSize size{600, 700};
  const TileMap tiles = counting_tiles(size);
  const Camera camera{{250, 0.5}, {10, 1}};  // columns 250 to 259, rows 10 to 14
  const auto selected = [&](const std::vector<Index>& columns, std::optional<Index> row,
                            std::size_t most = 1000) {
    return selected_values(tiles, camera, size, 20, 5, columns, row, most);
  };
  CHECK(selected({251, 256, 400}, 12) ==
        std::vector<float>{10251, 10256, 11251, 11256, 12251, 12256, 13251, 13256, 14251, 14256});
  CHECK(selected({}, 12) ==
        std::vector<float>{12250, 12251, 12252, 12253, 12254, 12255, 12256, 12257, 12258, 12259});
  CHECK(selected({}, {}).empty());
  CHECK(selected({400}, 12).empty());  // out of view
  CHECK(selected({}, 400).empty());
  CHECK(selected({-1, 5000}, {}).empty());
  CHECK(selected({251}, {}, 2).size() == 2);
  CHECK(selected({251}, {}, 0).empty());
  CHECK(selected_values({}, {}, {0, 0}, 20, 5, std::vector<Index>{0}, 0, 10).empty());

  // Zoomed out, a texel speaks for all of its columns: the largest of 2 x 2 cells.
  TileMap coarse;
  for (const Index row : {0, 1})
    for (const Index column : {0, 1}) {
      std::array<std::array<const Tile*, 2>, 2> children{};
      for (const Index r : {0, 1})
        for (const Index c : {0, 1}) {
          const auto found = tiles.find({0, 2 * row + r, 2 * column + c});
          children[r][c] = found == tiles.end() ? nullptr : found->second.get();
        }
      coarse[{1, row, column}] =
          std::make_shared<const Tile>(tile_of_children(size, {1, row, column}, children));
    }
  const Camera wide{{0, 2}, {0, 2}};
  REQUIRE(drawn_level(wide, size) == 1);
  CHECK(selected_values(coarse, wide, size, 350, 2, std::vector<Index>{6}, {}, 100) ==
        std::vector<float>{1007, 3007});
}

TEST_CASE("the range is taken from what was chosen", "[viewer][value_range]") {
  const TileStats full = stats_of({-100, 0, 50, 0.001F});
  std::vector<float> visible = {kNaN, kInfinity};
  for (int i = 0; i <= 100; ++i) visible.push_back(static_cast<float>(i) - 20);
  const std::vector<float> selected = {3, 4, kNaN};
  const auto ends = [&](RangeKind kind, ScaleKind scale = ScaleKind::linear, bool symmetric = false) {
    RangeChoice choice;
    choice.kind = kind;
    choice.symmetric = symmetric;
    choice.fixed_low = 7;
    choice.fixed_high = 9;
    const ValueScale found = scale_in_range(choice, scale, full, visible, selected);
    CHECK(found.kind == scale);
    return std::pair{found.low, found.high};
  };
  using Ends = std::pair<float, float>;
  CHECK(ends(RangeKind::full) == Ends{-100, 50});
  CHECK(ends(RangeKind::visible) == Ends{-20, 80});
  CHECK(ends(RangeKind::selection) == Ends{3, 4});
  CHECK(ends(RangeKind::percentiles) == Ends{-19, 79});
  CHECK(ends(RangeKind::fixed) == Ends{7, 9});
  CHECK(ends(RangeKind::full, ScaleKind::linear, true) == Ends{-100, 100});
  CHECK(ends(RangeKind::visible, ScaleKind::symlog, true) == Ends{-80, 80});
  CHECK(ends(RangeKind::full, ScaleKind::log) == Ends{0.001F, 50});
  CHECK(ends(RangeKind::visible, ScaleKind::log) == Ends{1, 80});
  CHECK(ends(RangeKind::selection, ScaleKind::log, true) == Ends{3, 4});
  // Of 1..80.
  CHECK(ends(RangeKind::percentiles, ScaleKind::log).first == Approx(1.79));
  CHECK(ends(RangeKind::percentiles, ScaleKind::log).second == Approx(79.21));
}

TEST_CASE("where nothing is chosen the next wider set counts", "[viewer][value_range]") {
  const TileStats full = stats_of({-100, 50});
  const std::vector<float> visible = {-2, -1}, none = {kNaN, kInfinity};
  RangeChoice choice;
  const auto low = [&](RangeKind kind, ScaleKind scale, const std::vector<float>& in_view) {
    choice.kind = kind;
    return scale_in_range(choice, scale, full, in_view, none).low;
  };
  CHECK(low(RangeKind::selection, ScaleKind::linear, visible) == -2);
  CHECK(low(RangeKind::selection, ScaleKind::linear, none) == -100);
  CHECK(low(RangeKind::percentiles, ScaleKind::linear, {}) == -100);
  CHECK(low(RangeKind::visible, ScaleKind::log, visible) == Approx(25));  // 50 alone is positive
  for (const RangeKind kind :
       {RangeKind::full, RangeKind::visible, RangeKind::selection, RangeKind::percentiles})
    for (const ScaleKind scale : {ScaleKind::linear, ScaleKind::log, ScaleKind::symlog}) {
      choice.kind = kind;
      const ValueScale found = scale_in_range(choice, scale, {}, {}, {});
      CHECK(usable(found) == found);
    }
}

TEST_CASE("symlog is linear over the last three decades", "[viewer][value_range]") {
  CHECK(symlog_threshold(8) == Approx(0.008F));
  CHECK(symlog_threshold(0) == 1);
  CHECK(symlog_threshold(kNaN) == 1);
  CHECK(symlog_threshold(kInfinity) == 1);
  const ValueScale scale = scale_in_range({}, ScaleKind::symlog, {}, {-3, 0, 5}, {});
  CHECK(scale.threshold == Approx(0.005F));
  CHECK(scale.low == -3);
}

TEST_CASE("ranges are found by their names", "[viewer][value_range]") {
  for (const RangeKind kind :
       {RangeKind::full, RangeKind::visible, RangeKind::selection, RangeKind::percentiles, RangeKind::fixed})
    CHECK(kRangeKinds.named(name_of(kind)) == kind);
  CHECK_FALSE(kRangeKinds.named("some").has_value());
  for (const ScaleKind kind : {ScaleKind::linear, ScaleKind::log, ScaleKind::symlog})
    CHECK(kScaleKinds.named(name_of(kind)) == kind);
  CHECK_FALSE(kScaleKinds.named("").has_value());
}

TEST_CASE("one value far beyond the others is an outlier", "[range]") {
  std::vector<float> values(100, 1.0F);
  CHECK_FALSE(has_outlier(values));
  values[40] = -29;
  CHECK_FALSE(has_outlier(values));
  values[40] = -31;
  CHECK(has_outlier(values));
  for (int i = 0; i < 10; ++i) values[static_cast<std::size_t>(i)] = 31;  // a tenth of all: no outliers
  CHECK_FALSE(has_outlier(values));
  CHECK(has_outlier({0.01F, -0.02F, 0.7F}));  // of few the largest alone counts
  CHECK_FALSE(has_outlier({0.01F, -0.02F, 0.05F}));
  CHECK_FALSE(has_outlier({5}));
  CHECK_FALSE(has_outlier({}));
  CHECK_FALSE(has_outlier({0, 0, 0}));
  CHECK_FALSE(has_outlier({kNaN, 1, kInfinity, 2}));
}

TEST_CASE("a symmetric range of nothing but 0 has it in the middle", "[range]") {
  RangeChoice choice;
  choice.symmetric = true;
  for (const ScaleKind kind : {ScaleKind::linear, ScaleKind::symlog}) {
    const ValueScale scale = scale_in_range(choice, kind, {}, {0, 0, 0}, {});
    CHECK(scale.place(0) == Approx(0.5));
  }
}
