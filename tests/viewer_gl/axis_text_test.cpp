// The text of tokens and queries along the axes of the token map.

#include "tests/viewer_gl/dashboard.hpp"
#include "tests/viewer_gl/drawn_frame.hpp"
#include "viewer/gl/headless_host.hpp"
#include "viewer/widgets/heatmap_view.hpp"
#include "viewer/widgets/theme.hpp"

#include <algorithm>
#include <cmath>
#include <optional>
#include <string>
#include <utility>
#include <vector>

using namespace kvreplay;
using namespace kvreplay::viewer;
using test::kSample;

namespace {

struct AxisMap : test::OnePanelDashboard {
  AxisMap() : OnePanelDashboard(PanelKind::tokens, kSample, 1000, 700, 3, 1) {}
  HeatmapView& map() { return *app.panel(kind).heatmap(); }
  /// Cells of so many pixels, from (640, 290) on.
  void look(double column, double row) {
    map().set_camera(Camera{{290, 1 / column}, {640, 1 / row}});
    settle();
  }
  /// Pixels nearer to letters than to the ground, within [x0, x1) x [y0, y1).
  Index inked(float x0, float x1, float y0, float y1) {
    const std::vector<Rgb> pixels = host.pixels();
    Index count = 0;
    for (auto y = static_cast<int>(y0); y < static_cast<int>(y1); ++y)
      for (auto x = static_cast<int>(x0); x < static_cast<int>(x1); ++x)
        count += pixels[static_cast<std::size_t>(y) * host.width() + x].g > 95 ? 1 : 0;
    return count;
  }
};

}  // namespace

TEST_CASE("a colour bar of no values or of one has no range that nobody measured", "[axis_text]") {
  struct Matrix : Client {
    float value;
    HeatmapView view;
    HeatmapLinks links;
    explicit Matrix(float of) : value(of) {}
    void frame() override {
      use_theme(true, 1, 13);
      ImGui::SetNextWindowPos({0, 0});
      ImGui::SetNextWindowSize({400, 300});
      ImGui::Begin("map", nullptr, ImGuiWindowFlags_NoDecoration);
      HeatmapContent content;
      content.key = Key("matrix", value);
      content.size = {4, 4};
      content.quantity = "loss";
      content.tile = [this](const TileKey&) -> Answer<Tile> {
        auto tile = std::make_shared<Tile>();
        tile->rows = tile->columns = 4;
        tile->values.assign(16, value);
        tile->stats.add(tile->values.data(), 16);
        Answer<Tile> answer;
        answer.value = tile;
        return answer;
      };
      view.draw("matrix", {390, 290}, content, links);
      ImGui::End();
    }
  };
  const auto numbers = [](float value) {
    Matrix matrix(value);
    HeadlessHost host(matrix, 400, 300, 1);
    for (int i = 0; i < 4; ++i) host.frame();
    host.ui().make_current();
    std::vector<std::string> texts;
    for (const test::DrawnText& drawn : test::drawn_texts())
      if (drawn.area.x > 300) texts.push_back(drawn.text);
    return texts;
  };
  CHECK(numbers(NAN) == std::vector<std::string>{});
  CHECK(numbers(2.5F) == std::vector<std::string>{"2.5"});
}

TEST_CASE("tokens stand below columns from 16 pixels on, reading downwards, and beside rows", "[axis_text]") {
  AxisMap board;
  board.look(12, 10);
  const ImVec2 low = board.map().map_low(), high = board.map().map_high();
  board.look(20, 10);
  const float room = high.y - board.map().map_high().y;
  CHECK(room > 60);
  CHECK(board.map().map_low().x == low.x);
  const float foot = board.map().map_high().y;
  // Every column has letters of its own, far below the place of a line, and none beyond the room.
  Index with_text = 0, columns = 0;
  for (Index c = 291; c < 325; ++c) {
    const float x = board.map().pixel_of(0, static_cast<double>(c)).x;
    with_text += board.inked(x, x + 20, foot + 8, foot + 30) > 12 ? 1 : 0;
    ++columns;
  }
  CHECK(with_text == columns);
  CHECK(board.inked(low.x, board.map().map_high().x, foot + 45, foot + room) > 20);
  const Area& area = board.app.area(board.kind);
  CHECK(board.inked(low.x, board.map().map_high().x, foot + room + 22, area.y + area.height - 2) == 0);

  // Wide columns have it in one line.
  board.look(100, 10);
  CHECK(board.map().map_high().y == high.y);
  CHECK(board.inked(low.x, high.x, high.y + 6, high.y + 18) > 100);

  board.look(12, 24);
  CHECK(board.map().map_low().x > low.x + 60);
  CHECK(board.map().map_high().y == high.y);
  for (Index r = 641; r < 655; ++r) {
    const float y = board.map().pixel_of(static_cast<double>(r), 0).y;
    CHECK(board.inked(area.x + 12, board.map().map_low().x - 6, y + 4, y + 20) > 20);
  }
  // The cell under a pixel is still the one that a click selects.
  const ImVec2 at = board.map().pixel_of(645.5, 300.5);
  board.host.click(at.x, at.y);
  board.host.settle();
  board.settle();
  CHECK(board.selection().row == 645);
  CHECK(board.selection().token == 300);
}

TEST_CASE("room for text neither flickers nor stays away", "[axis_text]") {
  AxisMap board;
  for (const double side : {14.0, 15.9, 16.1, 17.0, 18.0, 69.0, 71.0}) {
    board.look(side, side);
    const ImVec2 low = board.map().map_low(), high = board.map().map_high();
    for (int i = 0; i < 4; ++i) {
      board.host.frame();
      CHECK(board.map().map_low().x == low.x);
      CHECK(board.map().map_high().y == high.y);
    }
  }
}

TEST_CASE("positions of six digits stand whole beside a map", "[axis_text]") {
  struct LongPrompt : Client {
    std::optional<HeatmapView> map{std::in_place};
    HeatmapLinks links;
    void frame() override {
      use_theme(true, 1);
      ImGui::SetNextWindowPos({0, 0});
      ImGui::SetNextWindowSize(ImGui::GetIO().DisplaySize);
      ImGui::Begin("map", nullptr, ImGuiWindowFlags_NoDecoration);
      HeatmapContent content;
      content.key = {"long"};
      content.size = {400, 300};
      content.first_row = content.first_column = 130'700;
      content.tile = [](const TileKey&) { return Answer<Tile>(); };
      map->draw("map", ImGui::GetContentRegionAvail(), content, links);
      ImGui::End();
    }
    void closing() override { map.reset(); }
  } client;
  HeadlessHost host(client, 500, 400);
  for (int i = 0; i < 3; ++i) host.frame();
  Index labels = 0;
  for (const test::DrawnText& one : test::drawn_texts()) {
    if (one.text.empty() || one.text.find_first_not_of("0123456789") != std::string::npos ||
        one.area.y + one.area.height / 2 > client.map->map_high().y || one.area.x > client.map->map_low().x)
      continue;
    INFO(one.text);
    CHECK(one.text.size() == 6);
    CHECK(one.text.starts_with("13"));
    ++labels;
  }
  CHECK(labels > 3);
}
