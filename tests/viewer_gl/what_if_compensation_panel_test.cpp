// What if with kept tokens that make up for evicted ones: chosen by hand, its figures and its waterfall.

#include "analysis/results/figure_facts.hpp"
#include "tests/viewer_gl/dashboard.hpp"
#include "viewer/questions/ask.hpp"
#include "viewer/questions/what_if.hpp"
#include "viewer/widgets/theme.hpp"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <cmath>
#include <sstream>
#include <string>
#include <vector>

using namespace kvreplay;
using namespace kvreplay::viewer;
using test::kSample;

namespace {

struct WhatIfAlone : test::OnePanelDashboard {
  explicit WhatIfAlone(int width = 900, int height = 620)
      : OnePanelDashboard(PanelKind::what_if, kSample, width, height, 3, 1) {}

  Answer<WhatIf> answer(const WhatIfSettings& settings, Index layer = 3, Index kv_head = 1) {
    PanelContext context{app.state(), app.queue()};
    return ask_what_if(context, settings, layer, kv_head, Urgency::now, {});
  }
  /// Jobs of this title that ended well.
  std::ptrdiff_t done(const std::string& title) {
    const auto log = app.queue().log();
    return std::count_if(log.begin(), log.end(), [&](const JobQueue::Done& one) {
      return one.error.empty() && !one.cancelled && one.title.find(title) != std::string::npos;
    });
  }
  /// The CSV's field of the first row where `keys` hold.
  std::string field(const std::vector<std::pair<std::string, std::string>>& keys, const std::string& column) {
    std::istringstream lines(csv());
    const auto cells = [](const std::string& line) {
      std::vector<std::string> found(1);
      bool quoted = false;
      for (const char c : line)
        if (c == '"')
          quoted = !quoted;
        else if (c == ',' && !quoted)
          found.emplace_back();
        else
          found.back() += c;
      return found;
    };
    std::string line;
    std::getline(lines, line);
    const std::vector<std::string> header = cells(line);
    const auto at = [&](const std::string& name) {
      const auto found = std::find(header.begin(), header.end(), name);
      INFO(name);
      REQUIRE(found != header.end());
      return static_cast<std::size_t>(found - header.begin());
    };
    while (std::getline(lines, line)) {
      const std::vector<std::string> row = cells(line);
      REQUIRE(row.size() == header.size());
      if (std::all_of(keys.begin(), keys.end(),
                      [&](const auto& key) { return row[at(key.first)] == key.second; }))
        return row[at(column)];
    }
    return "no such row";
  }
  /// Pixels of a setting's full colour right of the settings.
  std::ptrdiff_t drawn(std::size_t setting) {
    const ImU32 color = theme().series[setting];
    const Rgb wanted{static_cast<std::uint8_t>(color >> IM_COL32_R_SHIFT),
                     static_cast<std::uint8_t>(color >> IM_COL32_G_SHIFT),
                     static_cast<std::uint8_t>(color >> IM_COL32_B_SHIFT)};
    const std::vector<Rgb> pixels = host.pixels();
    std::ptrdiff_t found = 0;
    for (int y = 0; y < host.height(); ++y)
      for (int x = host.width() / 2; x < host.width(); ++x) {
        const Rgb& c = pixels[static_cast<std::size_t>(y) * static_cast<std::size_t>(host.width()) +
                              static_cast<std::size_t>(x)];
        found += c.r == wanted.r && c.g == wanted.g && c.b == wanted.b ? 1 : 0;
      }
    return found;
  }
  std::string split_rows() { return app.panel(kind).save().value("split_rows", std::string()); }
};

const std::vector<std::pair<std::string, std::string>> kSettingA{
    {"layer", "3"}, {"kv_head", "1"}, {"setting", "A"}};

}  // namespace

TEST_CASE("a method chosen by hand changes the figures, draws its waterfall and is undone",
          "[compensation]") {
  WhatIfAlone panel;
  AppState& state = panel.app.state();
  state.setting_b = state.setting_a;
  panel.settle();
  const double plain = std::stod(panel.field(kSettingA, "output_error_future"));
  CHECK(panel.field(kSettingA, "compensate") == "none");
  CHECK(panel.field(kSettingA, "selection_future").empty());
  CHECK(panel.done("Queries to compensate on") == 0);
  const std::ptrdiff_t before = panel.drawn(0);

  // The combo box below the budget; what it opens stands below it.
  const Area& area = panel.app.area(PanelKind::what_if);
  const float x = area.x + 120, y = area.y + 181;
  for (float item = 12; item < 240 && state.setting_a.compensation != Compensation::fit; item += 9) {
    panel.host.click(x, y);
    panel.host.settle();
    panel.host.click(x, y + item);
    panel.host.settle();
    panel.host.tap_key({"Escape"});
    panel.host.settle();
  }
  REQUIRE(state.setting_a.compensation == Compensation::fit);
  WhatIfSettings chosen = state.setting_b;  // nothing else was touched
  chosen.compensation = Compensation::fit;
  CHECK(state.setting_a == chosen);
  panel.settle();
  CHECK(panel.failed_job().empty());

  const auto fitted = panel.answer(state.setting_a);
  REQUIRE(fitted);
  CHECK(std::stod(panel.field(kSettingA, "output_error_future")) == fitted->future.error);
  CHECK(fitted->future.error < plain);
  CHECK(panel.field(kSettingA, "compensate") == "fit");
  CHECK(panel.field(kSettingA, "what").find(", fit") != std::string::npos);
  CHECK(std::stod(panel.field(kSettingA, "plain_future")) == Approx(plain).epsilon(1e-4));
  for (const RowSet rows : {RowSet::window, RowSet::future, RowSet::reference}) {
    const std::string on = "_" + std::string(name_of(rows));
    CHECK(std::stod(panel.field(kSettingA, "selection" + on)) ==
          split_figure(*fitted, rows, &ErrorSplit::selection));
    CHECK(std::stod(panel.field(kSettingA, "weighted" + on)) ==
          split_figure(*fitted, rows, &ErrorSplit::weighted));
  }
  CHECK(std::stod(panel.field(kSettingA, "output_error_reference")) ==
        error_steps(*fitted, RowSet::reference)->error);
  // 64 rows of the window measure no bound of 179 tokens.
  CHECK(panel.field(kSettingA, "bound_window").empty());
  CHECK(panel.drawn(0) > before + 100);

  // Undo takes it back, and the waterfall is gone.
  std::this_thread::sleep_for(std::chrono::milliseconds(750));
  state.setting_a.compensation = Compensation::mean;
  panel.settle();
  CHECK(panel.drawn(0) < before + 200);  // no bars: it has no split
  panel.perform(ActionId::undo);
  CHECK(state.setting_a.compensation == Compensation::fit);
  state.setting_a.compensation = Compensation::none;
  panel.settle();
  CHECK(panel.drawn(0) == before);
  CHECK(std::stod(panel.field(kSettingA, "output_error_future")) == plain);
}

TEST_CASE("the rows of the split are picked by hand and come back with the session", "[compensation]") {
  WhatIfAlone panel;
  panel.app.state().setting_a.compensation = Compensation::fit;
  panel.settle();
  CHECK(panel.split_rows().empty());
  // Somewhere below the kept set: buttons beside the title.
  const Area& area = panel.app.area(PanelKind::what_if);
  std::vector<std::string> picked;
  for (float y = area.y + 60; y < area.y + 140; y += 6)
    for (float x = area.x + area.width / 2 + 40; x < area.x + area.width - 20; x += 20) {
      panel.host.click(x, y);
      panel.host.settle(1);
      const std::string rows = panel.split_rows();
      if (!rows.empty() && (picked.empty() || picked.back() != rows)) picked.push_back(rows);
    }
  for (const char* rows : {"window", "reference"})
    CHECK(std::find(picked.begin(), picked.end(), rows) != picked.end());
  nlohmann::json saved = panel.app.panel(panel.kind).save();
  saved["split_rows"] = "window";
  panel.app.panel(panel.kind).load(saved);
  CHECK(panel.split_rows() == "window");
  for (const nlohmann::json& bad : {nlohmann::json("no such"), nlohmann::json(3), nlohmann::json("")}) {
    saved["split_rows"] = bad;
    panel.app.panel(panel.kind).load(saved);
    CHECK(panel.split_rows() == "window");
  }
}

TEST_CASE("another budget looks at the same rows, and the last answer stands meanwhile", "[compensation]") {
  WhatIfAlone panel;
  AppState& state = panel.app.state();
  PanelContext context{state, panel.app.queue()};
  state.setting_a.compensation = Compensation::fit;
  state.setting_a.linked = false;
  state.setting_b = state.setting_a;
  state.setting_b.compensation = Compensation::mass;
  panel.app.panel(panel.kind).load({{"all_heads", false}});
  panel.settle();
  CHECK(panel.done("Queries to compensate on") == 1);  // of both
  const auto ask = [&](const WhatIfSettings& settings) {
    return ask_what_if(context, settings, 3, 1, Urgency::now, "test");
  };
  const auto first = ask(state.setting_a);
  REQUIRE(first);
  state.setting_a.sigma = 0.7;
  const auto meanwhile = ask(state.setting_a);
  CHECK(meanwhile.stale);
  CHECK(meanwhile.pending);
  CHECK(meanwhile.value == first.value);
  panel.settle();
  const auto second = ask(state.setting_a);
  REQUIRE(second);
  CHECK_FALSE(second.stale);
  CHECK(second->tokens > first->tokens);
  CHECK(second->compensated->method == Compensation::fit);
  CHECK(panel.done("Queries to compensate on") == 1);

  // Where all answers have little room, rows do not stay, and the figures are the same.
  panel.app.queue().set_cache_limit(std::size_t{1} << 20);
  state.setting_a.sigma = 0.71;
  state.setting_b.compensation = Compensation::none;
  panel.settle();
  const double poor = ask(state.setting_a)->future.change_sq;
  CHECK(panel.done("Queries to compensate on") == 1);
  panel.app.queue().set_cache_limit(std::size_t{1} << 30);
  panel.app.queue().forget(state.run()->key());
  panel.settle();
  CHECK(panel.done("Queries to compensate on") == 2);
  CHECK(ask(state.setting_a)->future.change_sq == poor);
}

TEST_CASE("what cannot make up for evicted tokens says why, and keeps the same tokens", "[compensation]") {
  test::OnePanelDashboard panel(PanelKind::what_if, kSample, 900, 620, 3, 1);
  AppState& state = panel.app.state();
  PanelContext context{state, panel.app.queue()};
  for (const Compensation method : kCompensations.all()) {
    INFO(name_of(method));
    state.setting_a.compensation = method;
    panel.settle();
    CHECK(panel.failed_job().empty());
    const auto with = ask_what_if(context, state.setting_a, 3, 1, Urgency::now, {});
    const auto kept = ask_kept_set(context, state.setting_a, 3, 1, Urgency::now, {});
    REQUIRE(with);
    REQUIRE(kept);
    CHECK(with->kept == kept->kept);
    CHECK_FALSE(kept->compensated);
    CHECK(with->compensated.has_value() == (method != Compensation::none));
  }
  state.setting_a.compensation = Compensation::fit;
  state.setting_a.sinks = 500;  // more than is kept
  panel.settle();
  CHECK(ask_what_if(context, state.setting_a, 3, 1, Urgency::now, {}).error.find("sinks") !=
        std::string::npos);
}

TEST_CASE("waterfalls are drawn in every shape of the panel", "[compensation]") {
  const auto [width, height] = GENERATE(std::pair(330, 900), std::pair(420, 900), std::pair(1280, 800));
  INFO(width);
  WhatIfAlone panel(width, height);
  AppState& state = panel.app.state();
  for (const auto& [a, b] : {std::pair(Compensation::fit, Compensation::values),
                             std::pair(Compensation::none, Compensation::keepkv),
                             std::pair(Compensation::mean, Compensation::cam)}) {
    state.setting_a.compensation = a;
    state.setting_b.compensation = b;
    panel.settle();
    CHECK(panel.failed_job().empty());
  }
  panel.perform(ActionId::toggle_theme);
  CHECK(panel.failed_job().empty());
}
