// The panels that hold a score against a reference, by hand: lasso, click, budget line, settings.

#include "analysis/results/agreement.hpp"
#include "tests/viewer_gl/dashboard.hpp"
#include "viewer/panels/curves/curve_modes.hpp"
#include "viewer/panels/panel.hpp"
#include "viewer/questions/head_figures.hpp"
#include "viewer/widgets/theme.hpp"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <cmath>
#include <limits>
#include <set>
#include <sstream>
#include <string>
#include <vector>

using namespace kvreplay;
using namespace kvreplay::viewer;
using test::Dashboard;
using test::kSample;

namespace {

/// One panel of the sample, filling the window, on a head that is not the first.
struct OnePanel : test::OnePanelDashboard {
  explicit OnePanel(PanelKind which) : OnePanelDashboard(which, kSample, 800, 560, 3, 1) {}
  /// Presses at the first place, moves to the others, lets go. Places are shares of the panel.
  void lasso(const std::vector<std::pair<float, float>>& places) {
    for (std::size_t i = 0; i < places.size(); ++i) {
      const auto [x, y] = at(kind, places[i].first, places[i].second);
      host.move_mouse(x, y);
      host.settle();
      if (i == 0) host.press_button();
      host.settle();
    }
    host.release_button();
    host.settle();
    settle();
  }
};

/// The columns `first`.. of a table without quotes, its header left out.
std::vector<std::vector<double>> numbers(const std::string& csv, std::size_t first) {
  std::vector<std::vector<double>> rows;
  std::istringstream lines(csv);
  std::string line;
  std::getline(lines, line);
  while (std::getline(lines, line)) {
    std::istringstream cells(line);
    std::string cell;
    std::vector<double> row;
    for (std::size_t i = 0; std::getline(cells, cell, ','); ++i)
      if (i >= first) row.push_back(std::stod(cell));
    rows.push_back(row);
  }
  return rows;
}

constexpr std::pair<float, float> kMiddle{0.5F, 0.6F};
/// Everything left of the middle, everything below it, and everything.
const std::vector<std::pair<float, float>> kLeftHalf{
    kMiddle, {0.5F, 0.05F}, {0.01F, 0.05F}, {0.01F, 0.99F}, {0.5F, 0.99F}};
const std::vector<std::pair<float, float>> kLowerHalf{
    kMiddle, {0.01F, 0.6F}, {0.01F, 0.99F}, {0.99F, 0.99F}, {0.99F, 0.6F}};
const std::vector<std::pair<float, float>> kAll{
    kMiddle, {0.5F, 0.05F}, {0.01F, 0.05F}, {0.01F, 0.99F}, {0.99F, 0.99F}, {0.99F, 0.05F}, {0.51F, 0.05F}};

}  // namespace

TEST_CASE("a lasso selects the tokens within it, Shift adds and Ctrl takes away", "[panels]") {
  OnePanel scatter(PanelKind::scatter);
  scatter.lasso(kLeftHalf);
  const std::vector<Index> left = scatter.selection().tokens;
  double most_inside = -1, least_outside = 1e300;
  std::size_t inside = 0;
  const auto rows = numbers(scatter.csv(), 3);  // token, attn, exact_remove, selected
  REQUIRE(rows.size() == 896);
  for (const auto& row : rows) {
    const bool chosen = std::binary_search(left.begin(), left.end(), static_cast<Index>(row[0]));
    CHECK((row[3] == 1) == chosen);
    inside += chosen ? 1 : 0;
    (chosen ? most_inside : least_outside) =
        chosen ? std::max(most_inside, row[1]) : std::min(least_outside, row[1]);
  }
  CHECK(inside == left.size());
  CHECK(inside > 100);
  CHECK(inside < 890);
  CHECK(most_inside < least_outside);  // the lasso's right side is a vertical line

  scatter.lasso(kLowerHalf);
  const std::vector<Index> lower = scatter.selection().tokens;
  double highest_inside = -1, lowest_outside = 1e300;
  for (const auto& row : rows) {
    const bool chosen = std::binary_search(lower.begin(), lower.end(), static_cast<Index>(row[0]));
    (chosen ? highest_inside : lowest_outside) =
        chosen ? std::max(highest_inside, row[2]) : std::min(lowest_outside, row[2]);
  }
  CHECK(lower.size() > 100);
  CHECK(highest_inside < lowest_outside);

  scatter.lasso(kAll);
  CHECK(scatter.selection().tokens.size() == 896);
  scatter.host.hold({true, false, false});
  scatter.lasso(kLeftHalf);
  std::vector<Index> right = scatter.selection().tokens;
  CHECK(right.size() + left.size() == 896);
  scatter.host.hold({false, true, false});
  scatter.lasso(kLeftHalf);
  CHECK(scatter.selection().tokens.size() == 896);
  scatter.host.hold({});
  scatter.perform(ActionId::undo);
  CHECK(scatter.failed_job().empty());
}

TEST_CASE("the outermost point of the scatter is the token with the largest score", "[panels]") {
  OnePanel scatter(PanelKind::scatter);
  const auto rows = numbers(scatter.csv(), 3);
  const auto largest =
      std::max_element(rows.begin(), rows.end(), [](const auto& a, const auto& b) { return a[1] < b[1]; });
  const Area& area = scatter.app.area(PanelKind::scatter);
  int found_x = 0, found_y = 0;
  for (float x = area.x + area.width - 12; x > area.x + area.width / 2 && !scatter.app.state().hover.token;
       x -= 9)
    for (float y = area.y + 100; y < area.y + area.height * 0.3F && !scatter.app.state().hover.token;
         y += 9) {
      scatter.host.move_mouse(x, y);
      scatter.host.settle(2);
      if (!scatter.app.state().hover.token) continue;
      found_x = static_cast<int>(x);
      found_y = static_cast<int>(y);
      scatter.host.click(x, y);
      scatter.host.settle();
    }
  REQUIRE(scatter.selection().token.has_value());
  CHECK(*scatter.selection().token == static_cast<Index>((*largest)[0]));
  CHECK(scatter.selection().tokens.empty());  // a click is no lasso

  // It is drawn in the accent colour where it was found.
  const auto [far_x, far_y] = scatter.at(PanelKind::scatter, 0.5F, 0.99F);
  scatter.host.move_mouse(far_x, far_y);
  scatter.host.settle();
  const ImU32 accent = theme().accent;
  const Rgb wanted{static_cast<std::uint8_t>(accent >> IM_COL32_R_SHIFT),
                   static_cast<std::uint8_t>(accent >> IM_COL32_G_SHIFT),
                   static_cast<std::uint8_t>(accent >> IM_COL32_B_SHIFT)};
  const auto pixels = scatter.host.pixels();
  int near = 0;
  for (int y = found_y - 9; y <= found_y + 9; ++y)
    for (int x = found_x - 9; x <= found_x + 9; ++x) {
      const auto width = static_cast<std::size_t>(scatter.host.width());
      const auto& c = pixels[static_cast<std::size_t>(y) * width + static_cast<std::size_t>(x)];
      near += c.r == wanted.r && c.g == wanted.g && c.b == wanted.b ? 1 : 0;
    }
  CHECK(near > 10);
}

TEST_CASE("the budget line moves the budget of all panels, in tokens", "[panels]") {
  for (const bool sigma : {false, true}) {
    OnePanel curves(PanelKind::curves);
    AppState& state = curves.app.state();
    state.budget = {.sigma_budget = sigma, .budget = 60};
    curves.settle();
    const Area area = curves.app.area(PanelKind::curves);
    const float y = area.y + area.height * 0.6F;
    float x = area.x + 200;
    const auto on_line = [&] {
      curves.host.move_mouse(x, y);
      curves.host.settle(2);
      return ImGui::GetMouseCursor() == ImGuiMouseCursor_ResizeEW;
    };
    while (!on_line() && x < area.x + area.width) x += 8;
    REQUIRE(x < area.x + area.width);
    curves.host.drag(x, y, x - 80, y);
    curves.host.settle();
    curves.settle();
    CHECK_FALSE(state.budget.sigma_budget);
    CHECK(state.budget.budget >= 1);
    CHECK(state.budget.budget < (sigma ? 179 : 60));
    CHECK(state.settings()[0].budget == state.budget.budget);
  }
}

TEST_CASE("the curves' table has every score at every budget, as agreement() has it", "[panels]") {
  std::vector<double> attn, exact;
  for (const auto& row : numbers(OnePanel(PanelKind::scatter).csv(), 3)) {
    attn.push_back(row[1]);
    exact.push_back(row[2]);
  }
  OnePanel curves(PanelKind::curves);
  const Agreement expected = agreement(attn, exact, false);
  std::istringstream lines(curves.csv());
  std::string line;
  std::set<std::string> scores;
  int found = 0;
  while (std::getline(lines, line)) {
    if (line.rfind("3,1,,exact_remove,", 0) != 0) continue;
    const std::string rest = line.substr(18), score = rest.substr(0, rest.find(','));
    scores.insert(score);
    if (rest.rfind("attn,9,", 0) != 0) continue;  // 1 % of 896
    ++found;
    const auto row = numbers("\n" + rest, 2);
    CHECK(row[0][0] == Approx(expected[AgreementFigure::recall_1pc]));
    CHECK(row[0][1] == Approx(expected[AgreementFigure::mass_1pc]));
  }
  CHECK(found == 1);
  const MetricSet there = metrics_of(Dump::open(kSample));
  for (const TokenMetric m : kTokenMetrics.all())
    CHECK(scores.contains(std::string(name_of(m))) == there.contains(m));
}

TEST_CASE("the recall on every window is drawn at the budget, with and without reserved tokens", "[panels]") {
  OnePanel curves(PanelKind::curves);
  curves.app.state().comparison.reference = TokenMetric::oracle_next;
  curves.app.state().budget = {.sigma_budget = false, .budget = 40};
  curves.app.panel(PanelKind::curves).load({{"windows", {{"shown", true}, {"reserve", 20}}}});
  curves.settle();
  CHECK(curves.failed_job().empty());
  const auto rows = test::cells_of(curves.csv());
  REQUIRE(rows.size() > 1);
  CHECK(rows[0].back() == "recall");
  HeadSummaryOptions options;
  options.metrics = {TokenMetric::attn, TokenMetric::oracle_next};
  Workers workers(2);
  const HeadSummary head =
      summarise_head(load_head_group<float>(Dump::open(kSample), 3, 1), options, workers);
  std::set<std::string> windows, reserves;
  int found = 0;
  for (std::size_t r = 1; r < rows.size(); ++r) {
    REQUIRE(rows[r].size() == 9);
    windows.insert(rows[r][6]);
    reserves.insert(rows[r][7]);
    if (rows[r][4] != "attn" || rows[r][6] != "32" || rows[r][7] != "0") continue;
    ++found;
    CHECK(std::stod(rows[r][8]) ==
          head.value({TokenMetric::attn, TokenMetric::oracle_next, AgreementFigure::recall_40}));
  }
  CHECK(found == 1);
  CHECK(windows.size() == 11);  // powers of two below 896, and all
  CHECK(reserves == std::set<std::string>{"0", "20"});
}

TEST_CASE("panels that compare keep their settings, and load anything without complaint", "[panels]") {
  const auto junk = {nlohmann::json(), nlohmann::json(3), nlohmann::json::array({1, 2}),
                     nlohmann::json{{"mode", 7}, {"log_y", {1, "x"}}, {"hidden", {3, "attn", "no"}}},
                     nlohmann::json{{"mode", "none"}, {"hidden", "attn"}, {"axes", 1}}};
  for (const bool first : {true, false}) {
    const auto make = first ? make_panel<PanelKind::scatter> : make_panel<PanelKind::curves>;
    for (const nlohmann::json& json : junk) CHECK_NOTHROW(make()->load(json));
    const nlohmann::json settings =
        first ? nlohmann::json{{"axes", "rank"}, {"show_evicted", true}, {"show_kept", true}}
              : nlohmann::json{{"mode", "loss"},
                               {"log_y", {true, false, false}},
                               {"hidden", {"key"}},
                               {"less", true},
                               {"windows", {{"shown", true}, {"reserve", 20}}}};
    const auto panel = make();
    CHECK(panel->save() != settings);
    panel->load(settings);
    CHECK(panel->save() == settings);
  }
}

TEST_CASE("curve values are sorted best first, undefined ones last", "[panels]") {
  CHECK(better(0.9, 0.1, CurveMode::recall));
  CHECK(better(0.9, 0.1, CurveMode::mass));
  CHECK(better(0.1, 0.9, CurveMode::loss));
  for (const CurveMode mode : {CurveMode::recall, CurveMode::mass, CurveMode::loss}) {
    CHECK(better(0.0, kNan, mode));
    CHECK_FALSE(better(kNan, 0.0, mode));
    CHECK_FALSE(better(kNan, kNan, mode));
    CHECK_FALSE(better(0.5, 0.5, mode));
  }
}

TEST_CASE("the y axis of curves holds what is drawn, without zeros where it is logarithmic", "[panels]") {
  TokenMetrics metrics;
  metrics[TokenMetric::attn] = Matrix<double>{{0.1, 0.2, 0.3, 0.4}};
  metrics[TokenMetric::exact_remove] = Matrix<double>{{8, 4, 2, 0}};
  Workers workers(1);
  const ScoreCurves curves = score_curves(metrics, {TokenMetric::attn, TokenMetric::exact_remove},
                                          TokenMetric::exact_remove, 4, 16, workers);
  const auto extent_of = [](const ScoreCurves& of, CurveMode mode, bool log, const MetricSet& hidden = {}) {
    return CurveFigure{&of, nullptr, false, mode, log, hidden}.extent();
  };
  // attn keeps 3, 2, 1, 0 in turn: losses 14, 12, 8, 0. The best: 6, 2, 0, 0.
  const std::vector<double> loss = drawn_values(*curves.find(TokenMetric::attn), CurveMode::loss, false);
  CHECK(loss == std::vector<double>{14, 12, 8, 0});
  CHECK(std::isnan(drawn_values(*curves.find(TokenMetric::attn), CurveMode::loss, true)[3]));
  ValueExtent extent = extent_of(curves, CurveMode::loss, false);
  CHECK(extent.low == 0);
  CHECK(extent.high == Approx(14 * 1.03));
  extent = extent_of(curves, CurveMode::loss, true);
  CHECK(extent.low < 2);
  CHECK(extent.low > 1.8);
  CHECK(extent.high > 14);
  extent = extent_of(curves, CurveMode::loss, true, {TokenMetric::attn});
  CHECK(extent.high < 7);
  extent = extent_of(curves, CurveMode::recall, false, MetricSet::all());
  CHECK(extent.low == 0);
  CHECK(extent.high > 1);
  const std::vector<double> blind = chance(curves, CurveMode::loss);
  CHECK(blind[0] == Approx(14 * 0.75));
  CHECK(chance(curves, CurveMode::mass)[1] == Approx(0.5));

  metrics[TokenMetric::exact_remove] = Matrix<double>{{0, 0, 0, 0}};
  const ScoreCurves none =
      score_curves(metrics, {TokenMetric::attn}, TokenMetric::exact_remove, 4, 16, workers);
  for (const bool log : {false, true})
    for (const CurveMode mode : {CurveMode::recall, CurveMode::mass, CurveMode::loss}) {
      extent = extent_of(none, mode, log);
      CHECK(extent.low < extent.high);
      CHECK((!log || extent.low > 0));
    }
  CHECK(table_text(kNan, CurveMode::recall) == "\xE2\x80\x94");
  CHECK(table_text(0.8391, CurveMode::recall) == "0.839");
  CHECK(budget_text(128, 896) == "128 (14.3 %)");
}

TEST_CASE("curves of two runs are drawn beside each other, or as what is other", "[panels]") {
  const auto curves_of = [](const Matrix<double>& attn, const MetricSet& scores) {
    TokenMetrics metrics;
    metrics[TokenMetric::attn] = attn;
    metrics[TokenMetric::key] = Matrix<double>{{4, 3, 2, 1}};
    metrics[TokenMetric::exact_remove] = Matrix<double>{{8, 4, 2, 0}};
    Workers workers(1);
    return score_curves(metrics, scores, TokenMetric::exact_remove, 4, 16, workers);
  };
  const Matrix<double> worst{{0.1, 0.2, 0.3, 0.4}}, best{{0.4, 0.3, 0.2, 0.1}};
  const ScoreCurves own = curves_of(worst, {TokenMetric::attn, TokenMetric::key, TokenMetric::exact_remove});
  const ScoreCurves pinned = curves_of(best, {TokenMetric::attn, TokenMetric::exact_remove});
  CurveFigure figure{&own, &pinned, true, CurveMode::loss, false, {}};
  const ScoreCurves::Curve& attn = *own.find(TokenMetric::attn);
  // Losses 14, 12, 8, 0 less 6, 2, 0, 0.
  CHECK(figure.drawn(attn) == std::vector<double>{8, 10, 8, 0});
  CHECK(figure.at(attn, 2) == 10);
  // The other way round the signs turn, and a run less itself is 0 everywhere.
  const CurveFigure turned{&pinned, &own, true, CurveMode::loss, false, {}};
  CHECK(turned.drawn(*pinned.find(TokenMetric::attn)) == std::vector<double>{-8, -10, -8, 0});
  const CurveFigure itself{&own, &own, true, CurveMode::loss, false, {}};
  for (const ScoreCurves::Curve& curve : own.curves)
    CHECK(itself.drawn(curve) == std::vector<double>{0, 0, 0, 0});
  CHECK(itself.extent().low < itself.extent().high);
  // What the pinned run lacks has no difference.
  CHECK(figure.pinned_curve(TokenMetric::key) == nullptr);
  CHECK(std::isnan(figure.at(*own.find(TokenMetric::key), 2)));
  CHECK(figure.axis().ends_with(", less pinned"));
  // The axis holds what is drawn of both.
  CHECK(turned.extent().low < -10);
  CHECK(figure.extent().high > 10);
  CurveFigure beside{&pinned, &own, false, CurveMode::loss, false, {}};
  CHECK(beside.drawn(*pinned.find(TokenMetric::attn)) == std::vector<double>{6, 2, 0, 0});
  CHECK(beside.extent().high > 14);
  beside.hidden = {TokenMetric::attn};
  CHECK(beside.extent().high < 14);
  CHECK(table_text(0.0131, CurveMode::recall, true) == "+0.013");
  CHECK(table_text(-0.0131, CurveMode::mass, true) == "-0.013");
  CHECK(table_text(0.5, CurveMode::loss, true) == "+0.5");
}
