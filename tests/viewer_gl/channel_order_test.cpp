// Channels in other orders than the stored one, the strips at the map's edges and what is said of them, and
// the sheet of all heads.

#include "sim/channels/arrangement.hpp"
#include "sim/channels/selection.hpp"
#include "tests/data/small_dump.hpp"
#include "tests/support/temp_dir.hpp"
#include "tests/viewer_gl/dashboard.hpp"
#include "tests/viewer_gl/drawn_frame.hpp"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <cstddef>
#include <filesystem>
#include <optional>
#include <set>
#include <string>
#include <vector>

using namespace kvreplay;
using namespace kvreplay::viewer;
using test::kSample;

namespace {

struct ChannelDashboard : test::OnePanelDashboard {
  explicit ChannelDashboard(const nlohmann::json& settings, const std::filesystem::path& path = kSample,
                            int width = 900, int height = 560)
      : OnePanelDashboard(PanelKind::channels, path, width, height, 1, 1) {
    app.panel(kind).load(settings);
    settle();
  }
  HeatmapView& map() { return *app.panel(kind).heatmap(); }
  void click_cell(double row, double column) {
    const ImVec2 at = map().pixel_of(row, column);
    host.click(at.x, at.y);
    host.settle();
    settle();
  }
  void hover(float x, float y) {
    host.move_mouse(x, y);
    host.settle(30);
  }
  /// Where a text begins that was drawn last.
  static std::optional<test::DrawnText> drawn(const std::string& part) {
    for (const test::DrawnText& one : test::drawn_texts())
      if (one.text.find(part) != std::string::npos) return one;
    return std::nullopt;
  }
  /// The numbers at the map's lower edge, from left to right.
  std::vector<Index> column_numbers() {
    const ImVec2 low = map().map_low(), high = map().map_high();
    std::vector<Index> numbers;
    for (const test::DrawnText& one : test::drawn_texts())
      if (one.area.y > high.y && one.area.y < high.y + 14 && one.area.x > low.x - 10 && one.area.x < high.x &&
          one.text.find_first_not_of("0123456789") == std::string::npos)
        numbers.push_back(std::stoll(one.text));
    return numbers;
  }
  std::vector<Index> order(ChannelArrangement arrangement) {
    const auto cells = test::cells_of(csv());
    Matrix<double> H(64, 64);
    for (std::size_t i = 1; i < cells.size(); ++i) H.data()[i - 1] = std::stod(cells[i][2]);
    const Rope rope = *app.state().run()->dump()->rope(1);
    return arranged_channels(arrangement, H, rope_partners(rope, 64), rope_frequencies(rope, 64));
  }
};

}  // namespace

TEST_CASE("channels in any order have their own numbers: at the axes, selected, in the table",
          "[channels][channel_order]") {
  ChannelDashboard stored(nlohmann::json::object());
  const std::string table = stored.csv();
  const std::vector<Index> first = stored.column_numbers();
  REQUIRE(first.size() > 3);
  CHECK(first[0] == 0);
  const auto step = static_cast<std::size_t>(first[1]);
  for (const ChannelArrangement one : kChannelArrangements.all()) {
    INFO(name_of(one));
    const std::vector<Index> order = stored.order(one);
    ChannelDashboard panel(nlohmann::json{{"order", name_of(one)}});
    CHECK(panel.csv() == table);
    panel.click_cell(3.5, 40.5);
    CHECK(panel.selection().channels == ChannelPair{order[3], order[40]});
    const std::vector<Index> numbers = panel.column_numbers();
    REQUIRE(numbers.size() > 3);
    for (std::size_t i = 0; i < numbers.size(); ++i) CHECK(numbers[i] == order[i * step]);
    CHECK(panel.app.panel(panel.kind).save()["order"] == name_of(one));
    // The same pair stays selected in another order, where it then stands.
    panel.app.panel(panel.kind).load({{"order", "stored"}});
    panel.settle();
    CHECK(panel.selection().channels == ChannelPair{order[3], order[40]});
    CHECK(panel.failed_job().empty());
  }
}

TEST_CASE("channels: what an order needs and is not known is told, and the channels stay as stored",
          "[channels][channel_order]") {
  const test::TempDir folder;
  test::SmallDump{}.write(folder / "dump");  // without a rotation
  ChannelDashboard panel(nlohmann::json{{"order", "pairs"}, {"settings", {{"recent", 0}}}}, folder / "dump");
  CHECK(panel.csv().size() > 100);
  panel.click_cell(1.5, 4.5);
  CHECK(panel.selection().channels == ChannelPair{1, 4});
  CHECK_FALSE(panel.drawn("rotation pairs").has_value());
  const auto label = panel.drawn("Normalisedorder");
  REQUIRE(label.has_value());
  // Its menu: the entry is there, and a click on it chooses nothing.
  panel.host.click(label->area.x + label->area.width + 30, label->area.y + 5);
  panel.host.settle();
  const auto entry = panel.drawn("rotationpartners");
  REQUIRE(entry.has_value());
  panel.hover(entry->area.x + 20, entry->area.y + 5);
  CHECK(panel.drawn("Notknown").has_value());
  panel.host.tap_key({"Escape"});
  panel.host.settle();
  CHECK(panel.app.panel(panel.kind).save()["order"] == "pairs");  // for a run that knows
}

TEST_CASE("channels: the strips at the edges have names, and say more under the mouse",
          "[channels][channel_order]") {
  ChannelDashboard panel(nlohmann::json{{"order", "pairs"}, {"method", "think"}}, kSample, 1280, 800);
  const auto pruned = panel.drawn("prunedby"), pairs = panel.drawn("rotationpairs");
  REQUIRE(pruned.has_value());
  REQUIRE(pairs.has_value());
  CHECK(pruned->text == "prunedbythink");
  CHECK(pruned->area.y > panel.map().map_high().y);
  panel.hover(pruned->area.x + 3, pruned->area.y + 4);
  CHECK(panel.drawn("Lowerandleftedge").has_value());
  panel.hover(pairs->area.x + 3, pairs->area.y + 4);
  CHECK(panel.drawn("Upperandrightedge").has_value());
  // On the strips: the third place has channel 1, which rotates with 33.
  const ImVec2 upper = panel.map().pixel_of(0, 2.5);
  panel.hover(upper.x, panel.map().map_low().y - 2);
  CHECK(panel.drawn("rotateswith33").has_value());
  const ImVec2 lower = panel.map().pixel_of(0, 2.5);
  panel.hover(lower.x, panel.map().map_high().y + 2);
  CHECK((panel.drawn("keptbythink").has_value() || panel.drawn("prunedbythink")->window != pruned->window));
}

TEST_CASE("channels: the unit stands in any window", "[channels][channel_order]") {
  for (const auto& [width, height] : {std::pair(1280, 800), std::pair(480, 320)}) {
    INFO(width);
    ChannelDashboard logits(nlohmann::json::object(), kSample, width, height);
    CHECK(logits.drawn("squaredlogit").has_value());
    ChannelDashboard outputs(nlohmann::json{{"outputs", true}}, kSample, width, height);
    CHECK(outputs.drawn("squaredoutput").has_value());
    ChannelDashboard normalised(nlohmann::json{{"normalised", true}}, kSample, width, height);
    CHECK(normalised.drawn("nounit").has_value());
  }
}

TEST_CASE("channels: a sheet has all heads of the layer, and a click selects one", "[channels][sheet]") {
  ChannelDashboard panel(nlohmann::json{{"sheet_shown", true}, {"order", "clusters"}});
  CHECK(panel.failed_job().empty());
  CHECK(panel.selection().kv_head == 1);
  CHECK(panel.app.panel(panel.kind).save()["sheet_shown"] == true);
  // Two heads of 64 x 64 in a row, or below each other in a high room.
  const auto rows = test::cells_of(panel.csv());
  REQUIRE(rows.size() == 1 + 2 * 64 * 64);
  CHECK(rows[0] ==
        std::vector<std::string>{"kv_head", "query_head", "channel", "other_channel", "interaction"});
  CHECK(rows[1][0] == "0");
  CHECK(rows.back()[0] == "1");
  panel.click_cell(10.5, 10.5);
  CHECK(panel.selection().kv_head == 0);
  CHECK(panel.selection().layer == 1);
  CHECK_FALSE(panel.selection().channels.has_value());
  // Each head's matrix is the one that the map has.
  panel.app.panel(panel.kind).load({{"sheet_shown", false}});
  panel.settle();
  const auto alone = test::cells_of(panel.csv());
  REQUIRE(alone.size() == 1 + 64 * 64);
  std::size_t same = 0;
  for (std::size_t i = 1; i < alone.size(); ++i) same += rows[i][4] == alone[i][2] ? 1 : 0;
  CHECK(same == 64 * 64);
}

TEST_CASE("channels: where query heads choose for themselves the sheet has each of them",
          "[channels][sheet]") {
  ChannelDashboard panel(nlohmann::json{{"sheet_shown", true}, {"settings", {{"semantics", "official"}}}});
  const auto rows = test::cells_of(panel.csv());
  REQUIRE(rows.size() == 1 + 4 * 64 * 64);
  CHECK(rows.back()[1] == "1");
  CHECK(panel.drawn("H0q1").has_value());
  panel.click_cell(5.5, 64 + 5 + 20.5);
  CHECK(panel.selection().kv_head == 0);
  CHECK(panel.selection().query_head == 1);
}
