// The selected run less a pinned one, in the Head map and the Token map.

#include "tests/analysis/kvreplay_program.hpp"
#include "tests/analysis/result_files.hpp"
#include "tests/support/temp_dir.hpp"
#include "tests/viewer_gl/dashboard.hpp"

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

/// The sample with the keys of one layer halved.
fs::path halved(const test::TempDir& folder) {
  const fs::path to = fs::path(folder / "halved");
  fs::copy(kSample, to, fs::copy_options::recursive);
  test::Npy values = test::npy_file(to / "layer_03/k.npy");
  REQUIRE(values.descr == "<f2");
  for (std::size_t i = 1; i < values.data.size(); i += 2) {
    auto high = static_cast<unsigned char>(values.data[i]);
    if ((high & 0x7C) != 0) high = static_cast<unsigned char>(high - 4);  // one less in the exponent
    values.data[i] = static_cast<char>(high);
  }
  test::write_file(to / "layer_03/k.npy", values.bytes());
  return to;
}

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

void look_at(Dashboard& dashboard, std::size_t run) {
  Selection next = dashboard.selection();
  next.run = run;
  dashboard.app.state().select(next);
  dashboard.settle();
}

}  // namespace

TEST_CASE("maps show the selected run less the pinned one", "[pinned]") {
  const test::TempDir folder;
  const fs::path other = halved(folder);
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
