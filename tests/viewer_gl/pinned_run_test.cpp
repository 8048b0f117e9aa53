// The selected run held against a pinned one: less it in maps and the text, beside it in plots.

#include "tests/analysis/kvreplay_program.hpp"
#include "tests/support/temp_dir.hpp"
#include "tests/viewer_gl/dashboard.hpp"
#include "tests/viewer_gl/drawn_frame.hpp"
#include "tests/viewer_gl/halved_keys.hpp"

#include <cmath>
#include <filesystem>
#include <map>
#include <string>
#include <utility>
#include <vector>

using namespace kvreplay;
using namespace kvreplay::viewer;
using test::contains;
using test::Dashboard;
using test::kSample;
using test::OnePanelDashboard;

namespace {

namespace fs = std::filesystem;

/// The last column of a panel's CSV by those before it.
std::map<std::string, double> values_of(const std::string& csv) {
  std::map<std::string, double> values;
  for (std::size_t at = csv.find('\n') + 1; at > 0 && at < csv.size(); at = csv.find('\n', at) + 1) {
    const std::string line = csv.substr(at, csv.find('\n', at) - at);
    const std::size_t comma = line.rfind(',');
    values[line.substr(0, comma)] = std::strtod(line.c_str() + comma + 1, nullptr);
  }
  return values;
}

/// One panel on the sample, pinned, and on its copy with halved keys, selected.
struct HeldAgainst : OnePanelDashboard {
  HeldAgainst(PanelKind panel, const fs::path& other) : OnePanelDashboard(panel, kSample, 900, 640, 3, 1) {
    app.open(other);
    settle();
    REQUIRE(app.state().runs.size() == 2);
    look_at(0);
  }
  void look_at(std::size_t run) {
    Selection next = selection();
    next.run = run;
    app.state().select(next);
    settle();
  }
  void load(const nlohmann::json& json) {
    app.panel(kind).load(json);
    settle();
  }
  /// Whether the panel has this in a row of letters, among which no blanks are.
  bool draws(const std::string& text) {
    const Area area = app.area(kind);
    for (const test::DrawnText& one : test::drawn_texts())
      if (contains(one.text, text) && one.area.y >= area.y && one.area.y < area.y + area.height) return true;
    return false;
  }
};

void look_at(Dashboard& dashboard, std::size_t run) {
  Selection next = dashboard.selection();
  next.run = run;
  dashboard.app.state().select(next);
  dashboard.settle();
}

}  // namespace

TEST_CASE("maps show the selected run less the pinned one", "[pinned]") {
  const test::TempDir folder;
  const fs::path other = test::halved_keys(folder);
  const nlohmann::json of_setting = {{"controls", {{"figure", "setting_a~output_error_future"}}}};
  const std::vector<std::pair<PanelKind, nlohmann::json>> shown = {
      {PanelKind::heads, {}}, {PanelKind::heads, of_setting}, {PanelKind::tokens, {}}};
  for (const auto& [panel, view] : shown) {
    const PanelKind kind = panel;
    INFO(name_of(kind) << " " << view.dump());
    OnePanelDashboard dashboard(kind, kSample, 900, 600, 3, 1);
    dashboard.app.panel(kind).load(view);
    dashboard.app.open(other);
    dashboard.settle();
    REQUIRE(dashboard.app.state().runs.size() == 2);
    look_at(dashboard, 1);
    const auto of_other = values_of(dashboard.csv());
    look_at(dashboard, 0);
    const auto of_sample = values_of(dashboard.csv());
    dashboard.perform(ActionId::pin_run);
    CHECK(values_of(dashboard.csv()) == of_sample);  // itself, as it is
    look_at(dashboard, 1);
    const std::string csv = dashboard.csv();
    CHECK(contains(csv.substr(0, csv.find('\n')), "_less_pinned"));
    const auto less = values_of(csv);
    REQUIRE(less.size() == of_other.size());
    std::size_t differ = 0;
    for (const auto& [place, value] : less) {
      INFO(place);
      if (kind == PanelKind::heads) {
        CHECK(value == Approx(of_other.at(place) - of_sample.at(place)).margin(1e-9));
        // Only one layer is other.
        if (place.substr(0, 2) != "3,") CHECK(value == 0);
      } else {
        // Texels of several cells pool the differences: no larger than both together.
        const double a = of_other.at(place), b = of_sample.at(place);
        REQUIRE(std::abs(value) <= (std::abs(a) + std::abs(b)) * 1.0001);
      }
      differ += value != 0 ? 1 : 0;
    }
    CHECK(differ > 0);
    dashboard.app.state().show_difference = false;
    dashboard.settle();
    CHECK(values_of(dashboard.csv()) == of_other);
    dashboard.app.state().show_difference = true;
    look_at(dashboard, 0);
    dashboard.perform(ActionId::pin_run);  // and no longer
    look_at(dashboard, 1);
    CHECK(values_of(dashboard.csv()) == of_other);
    CHECK(dashboard.failed_job() == "");
  }
}

TEST_CASE("a run of another prompt is shown as it is", "[pinned]") {
  const test::TempDir folder;
  REQUIRE(test::run_kvreplay({"synth", folder / "synth", "--layers", "2", "--prompt", "64", "--decode", "8"})
              .code == 0);
  OnePanelDashboard dashboard(PanelKind::heads, kSample, 900, 600, 0, 0);
  dashboard.perform(ActionId::pin_run);
  dashboard.app.open(folder / "synth");
  dashboard.settle();
  REQUIRE(dashboard.app.state().runs.size() == 2);
  look_at(dashboard, 1);
  CHECK(dashboard.app.state().subtracted() == nullptr);
  CHECK_FALSE(contains(dashboard.csv(), "_less_pinned"));
  CHECK(contains(dashboard.app.state().pinned.why_not(*dashboard.app.state().run()), "another shape"));
}

TEST_CASE("a pinned run stays pinned over reload and session, and goes when it is closed", "[pinned]") {
  Dashboard dashboard(kSample, 900, 600);
  dashboard.app.open(kSample);
  dashboard.settle();
  dashboard.perform(ActionId::pin_run);
  const auto before = dashboard.app.state().pinned.run();
  REQUIRE(before == dashboard.app.state().runs[1]);
  dashboard.perform(ActionId::reload);
  CHECK(dashboard.app.state().pinned.run() == dashboard.app.state().runs[1]);
  CHECK(dashboard.app.state().pinned.run() != before);

  const ReadSession read = session_of_text(text_of(dashboard.app.save()));
  CHECK(read.remarks.empty());
  CHECK(read.session.pinned == Index{1});
  Dashboard again("", 900, 600);
  again.app.restore(read.session, true);
  again.settle();
  REQUIRE(again.app.state().runs.size() == 2);
  CHECK(again.app.state().pinned.run() == again.app.state().runs[1]);
  look_at(again, 1);
  again.perform(ActionId::close_run);
  CHECK(again.app.state().pinned.run() == nullptr);
}

TEST_CASE("plots show the pinned run beside the selected one", "[pinned]") {
  struct Columns {
    PanelKind panel;
    std::vector<std::size_t> own, pinned;
  };
  const test::TempDir folder;
  const fs::path other = test::halved_keys(folder);
  for (const Columns& columns :
       {Columns{PanelKind::curves, {6, 7, 8}, {9, 10, 11}}, Columns{PanelKind::scatter, {4, 5}, {7, 8}},
        Columns{PanelKind::decode, {7}, {9}}}) {
    INFO(name_of(columns.panel));
    HeldAgainst panel(columns.panel, other);
    const auto of_sample = test::cells_of(panel.csv());
    panel.perform(ActionId::pin_run);
    CHECK(test::cells_of(panel.csv()) == of_sample);  // itself, as it is
    CHECK_FALSE(panel.draws("Pinned"));
    panel.app.state().show_difference = false;
    panel.look_at(1);
    const auto of_other = test::cells_of(panel.csv());
    CHECK(panel.draws("Pinned"));
    const auto alone = panel.host.pixels();
    panel.app.state().show_difference = true;
    panel.settle();
    const auto both = test::cells_of(panel.csv());
    CHECK(panel.draws("pystdlib-lm"));
    const bool as_alone = panel.host.pixels() == alone;
    CHECK_FALSE(as_alone);
    REQUIRE(both.size() == of_other.size());
    REQUIRE(both.size() == of_sample.size());
    std::size_t differ = 0;
    for (std::size_t i = 0; i < columns.own.size(); ++i) {
      CHECK(both[0][columns.pinned[i]].starts_with("pinned_"));
      for (std::size_t r = 1; r < both.size(); ++r) {
        REQUIRE(both[r][columns.own[i]] == of_other[r][columns.own[i]]);
        REQUIRE(both[r][columns.pinned[i]] == of_sample[r][columns.own[i]]);
        differ += both[r][columns.pinned[i]] != both[r][columns.own[i]] ? 1 : 0;
      }
    }
    CHECK(differ > both.size() / 4);
    // Turned round, the same numbers change sides.
    panel.perform(ActionId::pin_run);
    panel.look_at(0);
    const auto turned = test::cells_of(panel.csv());
    REQUIRE(turned.size() == both.size());
    for (std::size_t r = 1; r < both.size(); ++r) {
      REQUIRE(turned[r][columns.own[0]] == both[r][columns.pinned[0]]);
      REQUIRE(turned[r][columns.pinned[0]] == both[r][columns.own[0]]);
    }
    CHECK(panel.failed_job() == "");
  }
}

TEST_CASE("curves show what is other in place of both runs", "[pinned]") {
  const test::TempDir folder;
  HeldAgainst panel(PanelKind::curves, test::halved_keys(folder));
  panel.perform(ActionId::pin_run);
  panel.look_at(1);
  CHECK_FALSE(panel.draws("lesspinned"));
  const std::string csv = panel.csv();
  panel.load({{"less", true}});
  CHECK(panel.draws("lesspystdlib-lm"));
  CHECK(panel.csv() == csv);
  panel.load({{"less", true}, {"mode", "loss"}});
  CHECK(panel.failed_job() == "");
  panel.look_at(0);  // the pinned run itself
  CHECK_FALSE(panel.draws("lesspystdlib-lm"));
}

TEST_CASE("the text is tinted by what is other, over a head, a layer and all", "[pinned]") {
  const test::TempDir folder;
  const fs::path other = test::halved_keys(folder);
  HeldAgainst panel(PanelKind::text, other);
  for (const char* scope : {"head", "layer", "all"}) {
    INFO(scope);
    panel.load({{"scope", scope}, {"metric", "attn"}, {"by", "value"}});
    panel.look_at(0);
    // The text is a column of its own that may hold commas: counted from the end.
    const auto value = [](const std::vector<std::string>& row) {
      return std::strtod(row[row.size() - 4].c_str(), nullptr);
    };
    const auto of_sample = test::cells_of(panel.csv());
    panel.perform(ActionId::pin_run);
    panel.app.state().show_difference = false;
    panel.look_at(1);
    const auto of_other = test::cells_of(panel.csv());
    panel.app.state().show_difference = true;
    panel.settle();
    const auto less = test::cells_of(panel.csv());
    REQUIRE(less.size() == of_other.size());
    CHECK(less[0][2] == "attn_less_pinned");
    std::size_t differ = 0;
    for (std::size_t r = 1; r < less.size(); ++r) {
      if (less[r].size() < 6 || less[r].size() != of_sample[r].size())
        continue;  // broken at a quoted line's end
      const double wanted = value(of_other[r]) - value(of_sample[r]);
      REQUIRE(value(less[r]) == Approx(wanted).margin(1e-6));
      differ += value(less[r]) != 0 ? 1 : 0;
    }
    CHECK(differ > 100);
    panel.load({{"by", "rank"}});
    CHECK(test::cells_of(panel.csv())[0][2] == "attn_places_up");
    panel.look_at(0);
    panel.perform(ActionId::pin_run);  // and no longer
  }
  CHECK(panel.failed_job() == "");
}

TEST_CASE("the channels' map is less the pinned run's", "[pinned]") {
  const test::TempDir folder;
  HeldAgainst panel(PanelKind::channels, test::halved_keys(folder));
  for (const bool outputs : {false, true})
    for (const bool normalised : {false, true}) {
      INFO(outputs << normalised);
      panel.load({{"outputs", outputs}, {"normalised", normalised}});
      panel.look_at(0);
      const auto of_sample = values_of(panel.csv());
      panel.perform(ActionId::pin_run);
      panel.app.state().show_difference = false;
      panel.look_at(1);
      const auto of_other = values_of(panel.csv());
      panel.app.state().show_difference = true;
      panel.settle();
      const std::string csv = panel.csv();
      CHECK(contains(csv.substr(0, csv.find('\n')), "_less_pinned"));
      const auto less = values_of(csv);
      REQUIRE(less.size() == of_other.size());
      for (const auto& [place, value] : less) {
        const double own = of_other.at(place), pinned = of_sample.at(place);
        REQUIRE(value == Approx(own - pinned).margin(1e-9 * (std::abs(own) + std::abs(pinned))));
        // Keys of half the length: H is a quarter, and normalised it is what it was.
        if (!outputs && !normalised) REQUIRE(own == Approx(pinned / 4).epsilon(1e-3));
        if (!outputs && normalised) REQUIRE(std::abs(value) < 1e-3);
      }
      panel.look_at(0);
      panel.perform(ActionId::pin_run);  // and no longer
    }
  CHECK(panel.failed_job() == "");
}

TEST_CASE("What if shows the pinned run's errors beside its own", "[pinned]") {
  const test::TempDir folder;
  HeldAgainst panel(PanelKind::what_if, test::halved_keys(folder));
  panel.perform(ActionId::pin_run);
  CHECK_FALSE(panel.draws("pystdlib-lm:A"));
  panel.look_at(1);
  CHECK(panel.draws("pystdlib-lm:A"));
  panel.app.state().show_difference = false;
  panel.settle();
  CHECK_FALSE(panel.draws("pystdlib-lm:A"));
  CHECK(panel.failed_job() == "");
}
