// Channel interaction and decode by hand: what a click selects, what a slider and a drag change.

#include "tests/data/small_dump.hpp"
#include "tests/support/temp_dir.hpp"
#include "tests/viewer_gl/dashboard.hpp"
#include "tests/viewer_gl/drawn_frame.hpp"
#include "viewer/model/playback.hpp"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>
#include <set>
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
  nlohmann::json settings() { return app.panel(kind).save()["settings"]; }
  /// Types into the first field behind the button for more settings, which stands somewhere in the panel's
  /// first row; `taken` says whether the text arrived.
  template <class Taken>
  bool type_first_setting(const std::string& text, Taken taken) {
    const Area& area = app.area(kind);
    const float y = area.y + 45;
    for (float x = area.x + area.width - 20; x > area.x && !taken(); x -= 14) {
      host.click(x, y);
      host.settle();
      // The popup opens below: names, then controls.
      host.click(x + 140, y + 38);
      host.settle();
      if (ImGui::GetIO().WantTextInput) host.type(text);
      host.settle();
      host.tap_key({"Enter"});
      host.settle();
      host.tap_key({"Escape"});
      host.settle();
    }
    settle();
    return taken();
  }
  /// Jobs of this title that ended well.
  std::ptrdiff_t done(const std::string& title) {
    const auto log = app.queue().log();
    return std::count_if(log.begin(), log.end(), [&](const JobQueue::Done& one) {
      return one.error.empty() && !one.cancelled && one.title.find(title) != std::string::npos;
    });
  }
};

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

  const auto rows = test::cells_of(panel.csv());
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
  const auto shares = test::cells_of(panel.csv());
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

TEST_CASE("channels: recent keys that stay whole are typed behind a button, and count", "[channels]") {
  Alone panel(PanelKind::channels);
  const std::string before = panel.csv();
  const auto has_recent = [&] { return panel.settings().value("recent", -1) == 600; };
  REQUIRE(panel.type_first_setting("600", has_recent));
  CHECK(panel.csv() != before);
  panel.load({{"settings", {{"recent", 32}}}});
  CHECK(panel.csv() == before);  // as it is by default
  CHECK(panel.failed_job().empty());
}

TEST_CASE("channels: other protected channels make another basis", "[channels]") {
  Alone panel(PanelKind::channels);
  const auto matrices = panel.done("Channel interaction");
  panel.load({{"settings", {{"protect", "20:20"}}}, {"ratio", 0.9}});
  CHECK(panel.done("Channel interaction") == matrices + 1);
  CHECK(panel.settings()["protect"] == nlohmann::json::array({20, 20}));
  CHECK(panel.failed_job().empty());
}

TEST_CASE("channels: a prompt that is all recent offers to prune its keys, too", "[channels]") {
  const test::TempDir folder;
  test::SmallDump{}.write(folder / "dump");  // a prompt of 5
  Alone panel(PanelKind::channels, folder / "dump");
  CHECK(panel.csv().empty());
  CHECK(panel.done("Channel interaction") == 0);
  for (float y = 0.2F; y < 0.9F && !panel.settings().contains("recent"); y += 0.02F)
    panel.click(PanelKind::channels, 0.5F, y);
  CHECK(panel.settings()["recent"] == 0);
  CHECK(test::cells_of(panel.csv()).size() == 1 + 6 * 6);
  CHECK(panel.done("Pruning 50 %") >= 1);
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

  const auto rows = test::cells_of(panel.csv());
  REQUIRE(rows.size() == 1 + 3 * 128);
  CHECK(rows[1][2] == "snapkv");
  CHECK(rows[1 + 128][2] == "h2o");
  CHECK(rows[1][6] == "896");
  for (std::size_t r = 1; r < rows.size(); ++r) CHECK(rows[r][8] == "179");  // the budget
}

TEST_CASE("decode: played, steps follow each other, and the selected query with them", "[decode]") {
  Alone panel(PanelKind::decode);
  const DumpShape& shape = panel.app.state().run()->shape();
  panel.app.state().select_cell(shape.l + 10, 5);
  panel.settle();
  // The play button stands at the left of the list's first line: found by what it does.
  const Area& area = panel.app.area(PanelKind::decode);
  const auto played = [&] { return panel.app.state().wakes_at.has_value(); };
  float px = 0, py = 0;
  for (float y = area.y + 60; y < area.y + area.height && !played(); y += 6)
    for (float x : {20.0F, 40.0F}) {
      if (played()) break;
      panel.app.state().select_cell(shape.l + 10, 5);
      panel.host.click(area.x + x, y);
      panel.host.settle();
      px = area.x + x;
      py = y;
    }
  REQUIRE(played());
  panel.app.state().select_cell(shape.l + 10, 5);
  panel.host.frame();
  for (int i = 1; i <= 4; ++i) {
    CHECK(panel.app.changes_in() <= 0.126);
    panel.now += Playback::kStep;
    panel.host.frame();
    CHECK(panel.selection().row == shape.l + 10 + i);
    CHECK(panel.selection().token == 5);
  }
  panel.host.click(px, py);
  panel.host.settle();
  CHECK_FALSE(played());
  const Selection paused = panel.selection();
  panel.now += std::chrono::seconds(5);
  panel.settle();
  CHECK(panel.selection() == paused);
  // At the end it begins anew, and stops there.
  panel.app.state().select_cell(shape.T - 1, 5);
  panel.settle();
  panel.host.click(px, py);
  panel.host.settle();
  CHECK(panel.selection().row == shape.l);
  for (Index step = 0; step < shape.T - shape.l; ++step) {
    panel.now += Playback::kStep;
    panel.host.frame();
  }
  CHECK(panel.selection().row == shape.T - 1);
  CHECK_FALSE(played());
  CHECK(panel.failed_job().empty());
}

TEST_CASE("decode: a button goes to where a policy first loses twice what the best one does", "[decode]") {
  Alone panel(PanelKind::decode);
  // Errors by policy, from the table.
  std::map<std::string, std::vector<double>> errors;
  for (const auto& row : test::cells_of(panel.csv()))
    if (row[0] != "layer") errors[row[2]].push_back(std::stod(row[7]));
  REQUIRE(errors.size() == 3);
  const auto sum = [](const std::vector<double>& of) { return std::accumulate(of.begin(), of.end(), 0.0); };
  const auto best = std::min_element(errors.begin(), errors.end(), [&](const auto& a, const auto& b) {
    return sum(a.second) < sum(b.second);
  });
  std::set<Index> steps;  // of each other policy, its first
  for (const auto& [policy, of] : errors)
    for (std::size_t s = 0; policy != best->first && s < of.size(); ++s)
      if (of[s] > 2 * best->second[s]) {
        steps.insert(static_cast<Index>(s));
        break;
      }
  REQUIRE(!steps.empty());
  const DumpShape& shape = panel.app.state().run()->shape();
  const auto texts = [&](const std::string& part) {
    std::vector<test::DrawnText> found;
    for (const test::DrawnText& one : test::drawn_texts())
      if (one.text.find(part) != std::string::npos) found.push_back(one);
    return found;
  };
  panel.app.state().select_cell(shape.T - 1, 5);
  panel.settle();
  // One after the other, and then the first again.
  std::vector<Index> expected(steps.begin(), steps.end());
  expected.push_back(expected.front());
  for (const Index step : expected) {
    const auto button = texts("Divergence");
    REQUIRE(button.size() == 1);
    INFO(button[0].text);
    panel.host.click(button[0].area.x + button[0].area.width - 5, button[0].area.y + 5);
    panel.host.settle();
    panel.settle();
    CHECK(panel.selection().row == shape.l + step);
    CHECK(panel.selection().token == 5);
    CHECK(!texts("timeswhat").empty());
  }
  CHECK(panel.failed_job().empty());
}

TEST_CASE("decode: a click on a strip selects the token, policies come and go with their settings",
          "[decode]") {
  Alone panel(PanelKind::decode);
  panel.load({{"settings", {{"policies", {"tova"}}, {"append_only", true}, {"decode", true}}}});
  CHECK(test::cells_of(panel.csv()).size() == 1 + 2 * 128);
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
  CHECK(test::cells_of(panel.csv()).size() == 1 + 3 * 128);
  panel.load(saved);
  CHECK(panel.app.panel(panel.kind).save() == saved);
  CHECK(panel.failed_job().empty());
}

TEST_CASE("decode: window, pooling and pins are set behind a button, and count", "[decode]") {
  Alone panel(PanelKind::decode);
  const auto errors = [&] {
    std::vector<std::string> found;
    for (const auto& row : test::cells_of(panel.csv())) found.push_back(row[7]);
    return found;
  };
  const auto own = errors();
  REQUIRE(panel.type_first_setting("3", [&] { return panel.settings().value("window", -1) == 3; }));
  CHECK(errors() != own);
  for (const nlohmann::json& one : {nlohmann::json{{"pool", "none"}}, nlohmann::json{{"sinks", 12}},
                                    nlohmann::json{{"recent", 90}}, nlohmann::json{{"decode_window", 2}}}) {
    INFO(one.dump());
    panel.load({{"settings", one}});
    CHECK(errors() != own);
    for (const auto& item : one.items()) CHECK(panel.settings()[item.key()] == item.value());
  }
  panel.load({{"settings", nlohmann::json::object()}});
  CHECK(errors() == own);
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
