// Channel interaction and decode by hand: what a click selects, what a slider and a drag change.

#include "tests/data/small_dump.hpp"
#include "tests/support/temp_dir.hpp"
#include "tests/viewer_gl/dashboard.hpp"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <cmath>
#include <sstream>
#include <string>
#include <vector>

using namespace kvreplay;
using namespace kvreplay::viewer;
using test::Dashboard;
using test::kSample;

namespace {

/// One panel, filling the window, on a head that is not the first.
struct Alone : test::OnePanelDashboard {
  explicit Alone(PanelKind which, const std::filesystem::path& path = kSample)
      : OnePanelDashboard(which, path, 900, 560, 1, 1) {}
  void load(const nlohmann::json& json) {
    app.panel(kind).load(json);
    settle();
  }
  /// Jobs of this title that ended well.
  std::ptrdiff_t done(const std::string& title) {
    const auto log = app.desk().log();
    return std::count_if(log.begin(), log.end(), [&](const Desk::Done& one) {
      return one.error.empty() && !one.cancelled && one.title.find(title) != std::string::npos;
    });
  }
};

std::vector<std::vector<std::string>> table(const std::string& csv) {
  std::vector<std::vector<std::string>> rows;
  std::istringstream lines(csv);
  for (std::string line; std::getline(lines, line);) {
    auto& row = rows.emplace_back();
    std::istringstream cells(line);
    for (std::string cell; std::getline(cells, cell, ',');) row.push_back(cell);
  }
  return rows;
}

}  // namespace

TEST_CASE("channels: a click selects the pair under the mouse, and the table is the matrix", "[channels]") {
  Alone panel(PanelKind::channels);
  CHECK(panel.failed_job().empty());
  HeatmapView& map = *panel.app.panel(PanelKind::channels).heatmap();
  const ImVec2 at = map.pixel_of(11.5, 40.5);
  panel.host.move_mouse(at.x, at.y);
  panel.host.settle();
  panel.host.click(at.x, at.y);
  panel.host.settle();
  panel.settle();
  REQUIRE(panel.selection().channels.has_value());
  CHECK(*panel.selection().channels == ChannelPair{11, 40});
  panel.perform(ActionId::undo);
  CHECK_FALSE(panel.selection().channels.has_value());

  const auto rows = table(panel.csv());
  REQUIRE(rows.size() == 1 + 64 * 64);
  CHECK(rows[0] == std::vector<std::string>{"channel", "other_channel", "interaction"});
  const auto value = [&](std::size_t r, std::size_t c) { return std::stod(rows[1 + r * 64 + c][2]); };
  bool symmetric = true, positive = true;
  for (std::size_t r = 0; r < 64; ++r) {
    positive = positive && value(r, r) > 0;
    for (std::size_t c = 0; c < r; ++c) symmetric = symmetric && value(r, c) == value(c, r);
  }
  CHECK(symmetric);
  CHECK(positive);
  panel.load({{"normalised", true}});
  const auto shares = table(panel.csv());
  CHECK(std::stod(shares[1 + 5 * 64 + 5][2]) == Approx(1).epsilon(1e-12));
  CHECK(std::stod(shares[1 + 5 * 64 + 9][2]) ==
        Approx(value(5, 9) / std::sqrt(value(5, 5) * value(9, 9))).epsilon(1e-12));
}

TEST_CASE("channels: the slider prunes anew and forms the matrix once", "[channels]") {
  Alone panel(PanelKind::channels);
  const auto matrices = panel.done("Channel interaction");
  CHECK(matrices == 1);
  CHECK(panel.done("Pruning 50 %") >= 1);
  CHECK(panel.done("Pruning 80 %") == 0);
  panel.load({{"ratio", 0.8}});
  CHECK(panel.done("Pruning 80 %") == 1);
  CHECK(panel.done("Channel interaction") == matrices);
  panel.load({{"settings", {{"semantics", "official"}}}});
  CHECK(panel.done("Channel interaction") == matrices + 1);
  CHECK(panel.failed_job().empty());
}

TEST_CASE("channels: settings are kept, and what makes no sense is not taken", "[channels]") {
  Alone panel(PanelKind::channels);
  const nlohmann::json kept = {{"ratio", 0.35},   {"method", "think"},
                               {"outputs", true}, {"normalised", true},
                               {"dim", true},     {"settings", {{"semantics", "kvpress"}}}};
  panel.load(kept);
  nlohmann::json saved = panel.app.panel(panel.kind).save();
  for (const char* key : {"ratio", "method", "outputs", "normalised", "dim"}) CHECK(saved[key] == kept[key]);
  CHECK(saved["settings"]["semantics"] == "kvpress");
  for (const nlohmann::json& bad :
       {nlohmann::json(), nlohmann::json(3), nlohmann::json{{"ratio", 2}}, nlohmann::json{{"ratio", "x"}},
        nlohmann::json{{"method", "none of them"}}, nlohmann::json{{"outputs", 7}}})
    panel.load(bad);
  CHECK(panel.app.panel(panel.kind).save() == saved);
  panel.load({{"settings", {{"semantics", "nobody's"}}}});
  CHECK(panel.app.panel(panel.kind).save()["settings"]["semantics"] == "paper");
  CHECK(panel.failed_job().empty());
}

TEST_CASE("decode: dragging on the plot goes to a step, whose query is selected", "[decode]") {
  Alone panel(PanelKind::decode);
  CHECK(panel.failed_job().empty());
  const auto [x, y] = panel.at(PanelKind::decode, 0.2F, 0.3F);
  panel.host.drag(x, y, x + 30, y);
  panel.host.settle();
  panel.settle();
  REQUIRE(panel.selection().row.has_value());
  const Index first = *panel.selection().row;
  CHECK(first > 896);
  CHECK(first < 1023);
  panel.host.drag(x + 30, y, x + 60, y);
  panel.host.settle();
  panel.settle();
  CHECK(*panel.selection().row > first);

  const auto rows = table(panel.csv());
  REQUIRE(rows.size() == 1 + 3 * 128);
  CHECK(rows[1][2] == "snapkv");
  CHECK(rows[1 + 128][2] == "h2o");
  CHECK(rows[1][6] == "896");
  for (std::size_t r = 1; r < rows.size(); ++r) CHECK(rows[r][8] == "179");  // the budget
}

TEST_CASE("decode: a click on a strip selects the token, policies come and go with their settings",
          "[decode]") {
  Alone panel(PanelKind::decode);
  panel.load({{"settings", {{"policies", {"tova"}}, {"append_only", true}, {"decode", true}}}});
  CHECK(table(panel.csv()).size() == 1 + 2 * 128);
  bool found = false;
  // The strips lie below the plot.
  for (float y = 0.55F; y < 0.97F && !found; y += 0.012F) {
    panel.click(PanelKind::decode, 0.6F, y);
    found = panel.selection().token.has_value();
  }
  REQUIRE(found);
  CHECK(*panel.selection().token > 300);
  CHECK(*panel.selection().token < 800);
  const nlohmann::json saved = panel.app.panel(panel.kind).save();
  CHECK(saved["settings"]["policies"] == nlohmann::json{"tova"});
  panel.load(3);
  panel.load({{"settings", {{"policies", 3}}}});
  CHECK(table(panel.csv()).size() == 1 + 3 * 128);
  panel.load(saved);
  CHECK(panel.app.panel(panel.kind).save() == saved);
  CHECK(panel.failed_job().empty());
}

TEST_CASE("decode: a dump without decoding steps says so, and asks for nothing", "[decode]") {
  const test::TempDir folder;
  test::SmallDump small;
  small.write(folder / "dump");
  Alone panel(PanelKind::decode, folder / "dump");
  const Dump dump = Dump::open(folder / "dump");
  INFO(dump.shape().T << " positions, prompt " << dump.shape().l);
  REQUIRE(dump.shape().l == dump.shape().T);
  CHECK(panel.csv().empty());
  CHECK(panel.done("Decoding") == 0);
  CHECK(panel.failed_job().empty());
}
