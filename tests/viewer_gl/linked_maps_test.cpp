// The token map's strips and range, and what maps have in common: zoom of the token axis, locked ranges.

#include "tests/viewer_gl/dashboard.hpp"
#include "viewer/widgets/heatmap_view.hpp"
#include "viewer/widgets/theme.hpp"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <cmath>
#include <optional>
#include <string>
#include <vector>

using namespace kvreplay;
using namespace kvreplay::viewer;
using test::Dashboard;
using test::kSample;

namespace {

struct TokenMap : test::OnePanelDashboard {
  TokenMap(int width = 800, int height = 560)
      : OnePanelDashboard(PanelKind::tokens, kSample, width, height, 3, 1) {}
  HeatmapView& map() { return *app.panel(kind).heatmap(); }
  /// The middle of the row's strip, at the right of the map.
  void move_to_row_strip(Index row) {
    host.move_mouse(map().map_high().x + 12, map().pixel_of(static_cast<double>(row) + 0.5, 0).y);
    host.settle();
    settle();
  }
  void click_row_strip(Index row) {
    host.click(map().map_high().x + 12, map().pixel_of(static_cast<double>(row) + 0.5, 0).y);
    host.settle();
    settle();
  }
  void range_of(const char* name) {
    map().load({{"range", {{"kind", name}, {"symmetric", false}}}});
    settle();
  }
  /// Cell (row, column) of the map, which shows single cells.
  float cell(Index row, Index column) {
    const Tile& tile = *map().tiles().at({0, row >> kTileBits, column >> kTileBits});
    return tile.values.at(
        static_cast<std::size_t>((row & (kTileSize - 1)) * tile.columns + (column & (kTileSize - 1))));
  }
  /// So close that a cell takes many pixels, with a cell and those around it in view.
  void look_closely(Index row, Index column) {
    map().zoom(60);
    for (const Index off : {-4, 4}) map().show(row + off, column + off);
    settle();
  }
};

/// The kept strip in What if: found once, by the token that the mouse hovers.
class WhatIfStrip {
 public:
  explicit WhatIfStrip(Dashboard& dashboard) : dashboard_(dashboard) {}

  /// The token at a share of the panel's width.
  std::optional<Index> token(float x) {
    const Area& area = dashboard_.app.area(PanelKind::what_if);
    if (below_top_)
      if (const auto there = token_at(x, area.y + *below_top_)) return there;
    for (float y = 40; y < area.height; y += 6)
      if (const auto there = token_at(x, area.y + y)) {
        below_top_ = y;
        return there;
      }
    return std::nullopt;
  }

 private:
  std::optional<Index> token_at(float x, float y) {
    const Area& area = dashboard_.app.area(PanelKind::what_if);
    dashboard_.host.move_mouse(area.x + area.width * x, y);
    dashboard_.host.settle(2);
    const Hover& hover = dashboard_.app.state().hover;
    return hover.row ? std::nullopt : hover.token;
  }

  Dashboard& dashboard_;
  std::optional<float> below_top_;
};

HeatmapView& map_of(Dashboard& dashboard, PanelKind kind) { return *dashboard.app.panel(kind).heatmap(); }

}  // namespace

TEST_CASE("the strip of rows selects and hovers the row that it stands beside, under zoom and pan",
          "[strips]") {
  TokenMap tokens;
  tokens.click_row_strip(500);
  // Some rows share a pixel.
  CHECK(std::abs(tokens.selection().row.value_or(0) - 500) <= 3);
  CHECK_FALSE(tokens.selection().token.has_value());
  tokens.app.state().select_cell(500, 77);
  tokens.settle();
  tokens.look_closely(640, 300);
  tokens.move_to_row_strip(640);
  CHECK(tokens.app.state().hover.row == 640);
  CHECK_FALSE(tokens.app.state().hover.token.has_value());
  tokens.click_row_strip(641);
  CHECK(tokens.selection().row == 641);
  CHECK(tokens.selection().token == 77);  // another row of the same token
  CHECK(tokens.failed_job().empty());
}

TEST_CASE("a wheel over the strip of rows zooms rows alone", "[strips]") {
  TokenMap tokens;
  tokens.move_to_row_strip(400);
  const Camera before = {
      {0, 1024.0 / static_cast<double>(tokens.map().map_high().x - tokens.map().map_low().x)},
      {0, 1024.0 / static_cast<double>(tokens.map().map_high().y - tokens.map().map_low().y)}};
  tokens.host.wheel(0, 3);
  tokens.host.settle();
  tokens.settle();
  REQUIRE(tokens.map().camera());
  CHECK(tokens.map().camera()->x.cells_per_pixel == Approx(before.x.cells_per_pixel));
  CHECK(tokens.map().camera()->y.cells_per_pixel == Approx(before.y.cells_per_pixel / std::pow(1.25, 3)));
}

TEST_CASE("strips give their room to the map when switched off, and where there is little", "[strips]") {
  TokenMap tokens;
  const float with = tokens.map().map_high().x - tokens.map().map_low().x;
  nlohmann::json settings = tokens.app.panel(PanelKind::tokens).save();
  CHECK(settings["strips"] == true);
  settings["strips"] = false;
  tokens.app.panel(PanelKind::tokens).load(settings);
  tokens.settle();
  CHECK(tokens.map().map_high().x - tokens.map().map_low().x == with + 30);
  const Selection before = tokens.selection();
  tokens.click_row_strip(500);
  CHECK(tokens.selection() == before);  // the colour bar is there now

  TokenMap narrow(260, 400);
  const float wide = narrow.map().map_high().x - narrow.map().map_low().x;
  settings["strips"] = true;
  narrow.app.panel(PanelKind::tokens).load({{"strips", false}});
  narrow.settle();
  CHECK(narrow.map().map_high().x - narrow.map().map_low().x == wide);
}

TEST_CASE("the range of what is selected is that of the tokens, or of the row where there are none",
          "[ranges]") {
  TokenMap tokens;
  tokens.look_closely(640, 300);
  const Index rows[] = {638, 639, 640, 641}, columns[] = {298, 299, 300};
  // What is in view, a few rows more than these.
  const ImVec2 low = tokens.map().map_low(), high = tokens.map().map_high();
  REQUIRE(tokens.map().pixel_of(639, 299).x > low.x);
  REQUIRE(tokens.map().pixel_of(642, 302).y < high.y);
  tokens.range_of("visible");
  const ValueScale visible = tokens.map().scale();
  tokens.range_of("selection");
  CHECK(tokens.map().scale() == visible);  // nothing is selected

  tokens.app.state().select_tokens({299});
  tokens.settle();
  const ValueScale of_token = tokens.map().scale();
  tokens.app.state().select_tokens({298, 299, 300});
  tokens.settle();
  const ValueScale of_tokens = tokens.map().scale();
  CHECK(of_tokens.low <= of_token.low);
  CHECK(of_tokens.high >= of_token.high);
  CHECK(of_token.high < visible.high);
  for (const Index row : rows) {
    CHECK(tokens.cell(row, 299) <= of_token.high);
    CHECK(tokens.cell(row, 299) >= of_token.low);
    for (const Index column : columns) CHECK(tokens.cell(row, column) <= of_tokens.high);
  }

  tokens.app.state().select_tokens({});
  tokens.app.state().select_cell(640, {});
  tokens.settle();
  const ValueScale of_row = tokens.map().scale();
  CHECK(of_row != of_tokens);
  for (const Index column : columns) {
    CHECK(tokens.cell(640, column) <= of_row.high);
    CHECK(tokens.cell(640, column) >= of_row.low);
  }
  CHECK(of_row.high <= visible.high);
}

TEST_CASE("zooming the token map moves the tokens of What if where axes are joined, and only there",
          "[linked]") {
  Dashboard dashboard(kSample);
  dashboard.app.state().select_head(3, 1);
  dashboard.settle();
  dashboard.show(PanelKind::tokens);
  HeatmapView& map = map_of(dashboard, PanelKind::tokens);
  WhatIfStrip strip(dashboard);
  const std::optional<Index> left = strip.token(0.57F), right = strip.token(0.91F);
  REQUIRE(left);
  REQUIRE(right);
  CHECK(*right - *left > 400);

  map.zoom(4);
  dashboard.settle();
  CHECK(strip.token(0.57F) == left);  // not joined

  dashboard.perform(ActionId::toggle_joint_zoom);
  for (const bool by_wheel : {true, false}) {
    const ImVec2 low = map.map_low(), high = map.map_high();
    if (by_wheel) {
      dashboard.host.move_mouse((low.x + high.x) / 2, (low.y + high.y) / 2);
      dashboard.host.settle();
      dashboard.host.wheel(0, 2);
      dashboard.host.settle();
    } else {
      map.zoom(0.7);  // as the keyboard does
    }
    dashboard.settle();
    REQUIRE(map.camera());
    const AxisView seen = map.camera()->x;
    const double width = static_cast<double>(high.x - low.x) * seen.cells_per_pixel;
    CHECK(width < 500);
    const std::optional<Index> a = strip.token(0.57F), b = strip.token(0.91F);
    REQUIRE(a);
    REQUIRE(b);
    INFO("from " << seen.start << ", " << width << " tokens; " << *a << ", " << *b);
    CHECK(static_cast<double>(*a) >= seen.start);
    CHECK(static_cast<double>(*b) <= seen.start + width);
    CHECK(static_cast<double>(*b - *a) == Approx(0.6 * width).epsilon(0.25));
  }

  // And the other way round: the wheel over What if zooms the map.
  REQUIRE(strip.token(0.74F));
  const double before = map.camera()->x.cells_per_pixel;
  dashboard.host.wheel(0, 2);
  dashboard.host.settle();
  dashboard.settle();
  CHECK(map.camera()->x.cells_per_pixel < 0.8 * before);

  // All of the map is all of the other one.
  dashboard.app.focus(PanelKind::tokens);
  dashboard.perform(ActionId::fit_view);
  CHECK(*strip.token(0.91F) - *strip.token(0.57F) > 400);

  dashboard.perform(ActionId::toggle_joint_zoom);
  const std::optional<Index> own = strip.token(0.91F);
  map.zoom(4);
  dashboard.settle();
  CHECK(strip.token(0.91F) == own);
}

TEST_CASE("a range that is locked holds in every panel of its unit, and is free again afterwards",
          "[linked]") {
  Dashboard dashboard(kSample);
  dashboard.app.state().select_head(3, 1);
  dashboard.app.panel(PanelKind::heads).load({{"controls", {{"figure", "exact_remove"}}}});
  dashboard.show(PanelKind::tokens);
  HeatmapView &heads = map_of(dashboard, PanelKind::heads), &tokens = map_of(dashboard, PanelKind::tokens);
  const auto ends = [](const HeatmapView& view) { return std::pair{view.scale().low, view.scale().high}; };
  const auto own_heads = ends(heads), own_tokens = ends(tokens);
  REQUIRE(own_heads != own_tokens);

  dashboard.perform(ActionId::lock_ranges);
  CHECK(ends(heads) == ends(tokens));
  CHECK((ends(heads) == own_heads || ends(heads) == own_tokens));
  const auto locked = ends(heads);
  tokens.zoom(20);
  dashboard.perform(ActionId::next_layer);
  CHECK(ends(tokens) == locked);
  CHECK(ends(heads) == locked);
  dashboard.perform(ActionId::previous_layer);
  tokens.fit();

  // Another unit has its own range.
  dashboard.app.panel(PanelKind::tokens).load({{"shown", "logit"}});
  dashboard.settle();
  CHECK(ends(tokens) != locked);
  CHECK(ends(heads) == locked);
  dashboard.app.panel(PanelKind::tokens).load({{"shown", "exact_remove"}});

  dashboard.perform(ActionId::lock_ranges);
  CHECK(ends(heads) == own_heads);
  CHECK(ends(tokens) == own_tokens);
}

TEST_CASE("tokens that are chosen together are marked in the kept strip", "[strips]") {
  test::OnePanelDashboard panel(PanelKind::what_if, kSample, 900, 620, 3, 1);
  const auto accent_pixels = [&] {
    const ImU32 color = theme().accent;
    const auto is_accent = [&](const Rgb& c) { return IM_COL32(c.r, c.g, c.b, 255) == color; };
    const std::vector<Rgb> pixels = panel.host.pixels();
    return std::count_if(pixels.begin(), pixels.end(), is_accent);
  };
  const auto before = accent_pixels();
  std::vector<Index> tokens;
  for (Index token = 200; token < 424; ++token) tokens.push_back(token);  // a quarter of the prompt
  panel.app.state().select_tokens(tokens);
  panel.settle();
  const auto a_quarter = accent_pixels() - before;
  CHECK(a_quarter > 100);
  panel.app.state().select_tokens({200});
  panel.settle();
  CHECK(accent_pixels() > before);
  CHECK(accent_pixels() - before < a_quarter / 20);
  panel.app.state().select_tokens({});
  panel.settle();
  CHECK(accent_pixels() == before);
}

TEST_CASE("equal settings differ by 0 in all heads, in the neutral colour", "[what_if]") {
  test::OnePanelDashboard panel(PanelKind::heads, kSample, 900, 620, 3, 1);
  panel.app.panel(PanelKind::heads).load({{"controls", {{"view", "setting_b-a"}}}});
  panel.app.state().setting_b = panel.app.state().setting_a;
  panel.settle();
  const HeatmapView& map = map_of(panel, PanelKind::heads);
  const Tile& tile = *map.tiles().at({0, 0, 0});
  REQUIRE(tile.values.size() == 12);
  for (const float value : tile.values) CHECK(value == 0);
  CHECK(map.colors() == ColorMap::rdbu);
  CHECK(map.scale().place(0) == Approx(0.5));
}
