#include "viewer/questions/scatter.hpp"

#include "analysis/results/agreement.hpp"
#include "tests/support/catch.hpp"
#include "viewer/questions/score_curves.hpp"

#include <algorithm>
#include <cmath>
#include <memory>
#include <numbers>
#include <random>
#include <vector>

namespace kvreplay::viewer {
namespace {

const double kNan = std::nan("");

std::vector<double> random_values(std::size_t n, unsigned seed) {
  std::mt19937 random(seed);
  std::vector<double> values(n);
  for (double& value : values) value = std::pow(10.0, static_cast<double>(random() % 100000) / 10000 - 6);
  return values;
}

/// Points in [0, 1]^2 on linear axes, as they are.
Scatter square(std::size_t n, unsigned seed) {
  std::mt19937 random(seed);
  std::vector<double> x(n), y(n);
  for (std::size_t p = 0; p < n; ++p) {
    x[p] = static_cast<double>(random() % 10007) / 10007;
    y[p] = static_cast<double>(random() % 10007) / 10007;
  }
  ScatterOptions options;
  options.x = options.y = ScaleKind::linear;
  return scatter(x, y, options);
}

/// Whether a point is within, from the angle that the polygon turns around it.
bool winds_around(const std::vector<AxisPoint>& polygon, const AxisPoint& at) {
  double turned = 0;
  for (std::size_t i = 0; i < polygon.size(); ++i) {
    const AxisPoint& a = polygon[i];
    const AxisPoint& b = polygon[(i + 1) % polygon.size()];
    double angle = std::atan2(b.y - at.y, b.x - at.x) - std::atan2(a.y - at.y, a.x - at.x);
    while (angle > std::numbers::pi) angle -= 2 * std::numbers::pi;
    while (angle < -std::numbers::pi) angle += 2 * std::numbers::pi;
    turned += angle;
  }
  return std::llround(turned / (2 * std::numbers::pi)) % 2 != 0;
}

}  // namespace

TEST_CASE("a point a token on log axes", "[scatter]") {
  const std::vector<double> s = random_values(500, 1), e = random_values(500, 2);
  const Scatter plot = scatter(s, e, {});
  CHECK(plot.x.kind == ScaleKind::log);
  CHECK(plot.y.kind == ScaleKind::log);
  CHECK(plot.x.at_edge == 0);
  CHECK(plot.left_out == 0);
  REQUIRE(plot.points.size() == 500);
  CHECK(bytes_of(plot) > 500 * sizeof(ScatterPoint));
  for (std::size_t p = 0; p < 500; ++p) {
    const ScatterPoint& point = plot.points[p];
    CHECK(point.token == static_cast<Index>(p));
    CHECK(point.at.x == std::log10(s[p]));
    CHECK(plot.y.value_at(point.at.y) == Approx(e[p]).epsilon(1e-12));
    CHECK((point.at.x >= plot.x.low && point.at.x <= plot.x.high));
    CHECK((point.at.y >= plot.y.low && point.at.y <= plot.y.high));
  }
  CHECK(plot.x.low == std::log10(*std::min_element(s.begin(), s.end())));
  CHECK(plot.y.high == std::log10(*std::max_element(e.begin(), e.end())));
}

TEST_CASE("zeros and negatives stand at the edge of a log axis and are counted", "[scatter]") {
  ScatterOptions options;
  options.x = ScaleKind::log;
  const Scatter plot =
      scatter(std::vector<double>{0, -2, 0.01, 1, 100}, std::vector<double>{1, 2, 3, 0, 5}, options);
  CHECK(plot.x.at_edge == 2);
  CHECK(plot.y.kind == ScaleKind::log);
  CHECK(plot.y.at_edge == 1);
  CHECK(plot.x.high == 2);
  CHECK(plot.x.low == Approx(-2 - 0.2));  // a twentieth of the axis below the least
  CHECK(plot.points[0].at.x == plot.x.low);
  CHECK(plot.points[1].at.x == plot.x.low);
  CHECK(plot.points[2].at.x == Approx(-2));
  CHECK(plot.points[3].at.y == plot.y.low);

  // Left to itself the axis of a score with negatives, or of nothing but zeros, is linear.
  const Scatter own = scatter(std::vector<double>{0, -2, 3}, std::vector<double>{0, 0, 0}, {});
  CHECK(own.x.kind == ScaleKind::linear);
  CHECK(own.y.kind == ScaleKind::linear);
  CHECK(own.x.at_edge == 0);
  CHECK(own.x.low == -2);
  CHECK(own.y.low < 0);
  CHECK(own.y.high > 0);
  options.y = ScaleKind::log;
  const Scatter zeros = scatter(std::vector<double>{0, 0}, std::vector<double>{-1, 0}, options);
  CHECK(zeros.x.at_edge == 2);
  CHECK(zeros.y.at_edge == 2);
  CHECK(zeros.points.size() == 2);
  CHECK(zeros.x.low < zeros.x.high);
}

TEST_CASE("a scatter stands NaN, infinities, one token and none", "[scatter]") {
  const std::vector<double> s{1, kNan, 3, HUGE_VAL, 5}, e{1, 2, -HUGE_VAL, 4, 1e-300};
  const Scatter plot = scatter(s, e, {});
  CHECK(plot.left_out == 3);
  REQUIRE(plot.points.size() == 2);
  CHECK(plot.points[1].token == 4);
  CHECK(plot.x.high == std::log10(5.0));
  CHECK(plot.y.low == -300);
  const Scatter one = scatter(std::vector<double>{10}, std::vector<double>{-4}, {});
  CHECK(one.x.low == 0.5);
  CHECK(one.x.high == 1.5);
  CHECK(one.y.low == -6);
  CHECK(one.y.high == -2);
  const Scatter none = scatter({}, {}, {});
  CHECK(none.points.empty());
  CHECK(none.x.low < none.x.high);
  CHECK(tokens_within(none, std::vector<AxisPoint>{{0, 0}, {1, 0}, {0, 1}}).empty());
  CHECK_FALSE(nearest(none, {0, 0}, {1, 1}, 10));
}

TEST_CASE("a lasso takes what it winds around", "[scatter]") {
  const Scatter plot = square(3000, 7);
  std::mt19937 random(8);
  for (const std::size_t corners : {3, 4, 5, 11, 700}) {
    INFO(corners);
    std::vector<AxisPoint> polygon(corners);  // crosses itself many times
    for (AxisPoint& corner : polygon)
      corner = {static_cast<double>(random() % 9973) / 7000 - 0.2,
                static_cast<double>(random() % 9973) / 7000 - 0.2};
    std::vector<Index> wanted;
    for (const ScatterPoint& point : plot.points)
      if (winds_around(polygon, point.at)) wanted.push_back(point.token);
    CHECK(!wanted.empty());
    CHECK(tokens_within(plot, polygon) == wanted);
    std::reverse(polygon.begin(), polygon.end());
    CHECK(tokens_within(plot, polygon) == wanted);
  }
}

TEST_CASE("a lasso of absolute places", "[scatter]") {
  const std::vector<double> x{0, 1, 2, 3, 1.5}, y{0, 1, 2, 3, 1.5};
  ScatterOptions options;
  options.x = options.y = ScaleKind::linear;
  const Scatter plot = scatter(x, y, options);
  using Corners = std::vector<AxisPoint>;
  const Corners box{{0.5, 0.5}, {2.5, 0.5}, {2.5, 2.5}, {0.5, 2.5}};
  CHECK(tokens_within(plot, box) == std::vector<Index>{1, 2, 4});
  // A star of five points: its middle is wound around twice and is out.
  Corners star;
  for (int i = 0; i < 5; ++i)
    star.push_back(
        {1.5 + 2 * std::sin(i * 4 * std::numbers::pi / 5), 1.5 + 2 * std::cos(i * 4 * std::numbers::pi / 5)});
  const Scatter about =
      scatter(std::vector<double>{1.5, 1.5, 1.5}, std::vector<double>{1.5, 3.2, 3.6}, options);
  CHECK(tokens_within(about, star) == std::vector<Index>{1});
  // Two boxes that share an edge through points part them, none twice.
  const Corners left{{-1, -1}, {1, -1}, {1, 4}, {-1, 4}}, right{{1, -1}, {4, -1}, {4, 4}, {1, 4}};
  CHECK(tokens_within(plot, left).size() + tokens_within(plot, right).size() == 5);
  CHECK(tokens_within(plot, left) == tokens_within(plot, left));

  CHECK(tokens_within(plot, Corners{}).empty());
  CHECK(tokens_within(plot, Corners{{0, 0}, {3, 3}}).empty());
  CHECK(tokens_within(plot, Corners{{0, 1}, {3, 1}, {2, 1}}).empty());
  CHECK(tokens_within(plot, Corners{{-9, -9}, {9, -9}, {kNan, 9}}).empty());
  CHECK(tokens_within(plot, Corners{{-9, -9}, {9, -9}, {HUGE_VAL, 9}}).empty());
  CHECK(tokens_within(plot, Corners{{-1e308, -1e308}, {1e308, -1e308}, {1e308, 1e308}, {-1e308, 1e308}})
            .size() == 5);
}

TEST_CASE("the nearest point is found in the plot's own units", "[scatter]") {
  ScatterOptions options;
  options.x = options.y = ScaleKind::linear;
  const Scatter plot = scatter(std::vector<double>{0, 10, 10}, std::vector<double>{0, 0, 0}, options);
  CHECK(nearest(plot, {4, 0}, {1, 1}, 100)->token == 0);
  CHECK(nearest(plot, {6, 0}, {1, 1}, 100)->token == 1);  // the lower of two at one place
  CHECK(nearest(plot, {0, 3}, {1, 1}, 3)->token == 0);
  CHECK_FALSE(nearest(plot, {0, 3}, {1, 1}, 2.9));
  CHECK(nearest(plot, {0, 3}, {1, 10}, 0.5)->token == 0);
}

TEST_CASE("points of two runs stand on axes that hold both", "[scatter]") {
  std::mt19937 random(3);
  const auto values = [&](double scale) {
    std::vector<double> some(500);
    for (double& v : some) v = random() % 17 == 0 ? 0 : scale * static_cast<double>(random() % 9973 + 1);
    return some;
  };
  const std::vector<double> x = values(1), y = values(1e-3);
  std::vector<double> x2 = values(1e4), y2 = values(1e-7);
  x2[7] = kNan;
  y2[9] = HUGE_VAL;
  const ScatterPair pair = scatter_pair(x, y, x2, y2, {});
  REQUIRE(pair.own.points.size() == 500);
  REQUIRE(pair.pinned.points.size() == 498);
  CHECK(pair.own.left_out == 0);
  CHECK(pair.pinned.left_out == 2);
  for (const Scatter* one : {&pair.own, &pair.pinned}) {
    const bool own = one == &pair.own;
    CHECK(one->x.low == pair.own.x.low);
    CHECK(one->y.high == pair.own.y.high);
    Index before = -1;
    std::size_t zeros = 0;
    for (const ScatterPoint& point : one->points) {
      REQUIRE(point.token > before);
      before = point.token;
      REQUIRE(point.token < 500);
      const double value = (own ? x : x2)[point.token];
      CHECK(point.at.x == one->x.coordinate(value));
      CHECK(point.at.y == one->y.coordinate((own ? y : y2)[point.token]));
      CHECK(point.at.x >= one->x.low);
      CHECK(point.at.y <= one->y.high);
      zeros += value == 0 ? 1 : 0;
    }
    CHECK(one->x.at_edge == zeros);
  }
  // By the slow way: all distances, sorted.
  std::vector<std::pair<double, Index>> moves;
  for (const ScatterPoint& from : pair.pinned.points)
    for (const ScatterPoint& to : pair.own.points)
      if (from.token == to.token)
        moves.emplace_back(-std::hypot((to.at.x - from.at.x) / (pair.own.x.high - pair.own.x.low),
                                       (to.at.y - from.at.y) / (pair.own.y.high - pair.own.y.low)),
                           to.token);
  std::sort(moves.begin(), moves.end());
  REQUIRE(pair.moved.size() == ScatterPair::kMoved);
  for (std::size_t i = 0; i < pair.moved.size(); ++i) CHECK(pair.moved[i] == moves[i].second);
  // A run beside itself is where it is alone.
  const ScatterPair same = scatter_pair(x, y, x, y, {});
  const Scatter alone = scatter(x, y, {});
  REQUIRE(same.own.points.size() == alone.points.size());
  CHECK(same.moved.empty());
  CHECK(same.own.x.low == alone.x.low);
  CHECK(same.own.x.at_edge == alone.x.at_edge);
  for (std::size_t i = 0; i < alone.points.size(); ++i) {
    CHECK(same.own.points[i].at.x == alone.points[i].at.x);
    CHECK(same.pinned.points[i].at.y == alone.points[i].at.y);
    CHECK(same.pinned.points[i].token == alone.points[i].token);
  }
  // One negative value of either run, and no logarithm serves both.
  x2[7] = -1;
  CHECK(scatter_pair(x, y, x2, y2, {}).own.x.kind == ScaleKind::linear);
  CHECK(scatter_pair({}, {}, {}, {}, {}).own.points.empty());
}

namespace {

/// A summary of attn and exact_remove alone.
std::shared_ptr<const HeadSummary> summary_of_values(const std::vector<double>& score,
                                                     const std::vector<double>& reference) {
  auto tokens = std::make_shared<TokenMetrics>();
  const auto row = [](const std::vector<double>& values) {
    return Matrix<double>(Eigen::Map<const Matrix<double>>(values.data(), 1, std::ssize(values)));
  };
  (*tokens)[TokenMetric::attn] = row(score);
  (*tokens)[TokenMetric::exact_remove] = row(reference);
  auto summary = std::make_shared<HeadSummary>();
  summary->l = std::ssize(score);
  summary->metrics = {TokenMetric::attn, TokenMetric::exact_remove};
  summary->tokens = tokens;
  return summary;
}

ScatterFacts facts_of_values(const std::vector<double>& score, const std::vector<double>& reference,
                             ScatterAxes axes = ScatterAxes::log) {
  return scatter_facts(summary_of_values(score, reference), TokenMetric::attn, TokenMetric::exact_remove,
                       axes);
}

}  // namespace

TEST_CASE("what a budget loses is what recall at the budget misses", "[scatter]") {
  for (const std::size_t n : {1, 2, 9, 300}) {
    std::vector<double> s = random_values(n, 5), e = random_values(n, 6);
    if (n > 8) s[3] = s[5] = s[7], e[2] = e[4];  // ties
    const ScoreCurve curve{Ranking(s), Ranking(e)};
    const ScatterFacts facts = facts_of_values(s, e);
    for (Index k = 1; k <= static_cast<Index>(n); ++k) {
      const ScatterCut cut = scatter_cut(facts, facts.scatter, k);
      CHECK(cut.recall() == curve.at(k).recall);
      CHECK(static_cast<double>(cut.lost) ==
            Approx(static_cast<double>(k) * (1 - curve.at(k).recall)).margin(1e-9));
      CHECK(cut.both() + cut.lost + cut.wasted() + cut.neither() == static_cast<Index>(n));
      CHECK(cut.neither() >= 0);
    }
    const ScatterCut none = scatter_cut(facts, facts.scatter, 0);
    CHECK(std::isnan(none.recall()));
    CHECK(none.lost == 0);
    CHECK_FALSE(none.x);
  }
  const ScatterFacts empty = facts_of_values({}, {});
  CHECK(std::isnan(scatter_cut(empty, empty.scatter, 3).recall()));
}

TEST_CASE("the budget's lines part what is kept from what is not, on all axes", "[scatter]") {
  const std::vector<double> s = random_values(200, 7), e = random_values(200, 8);
  for (const ScatterAxes axes : kScatterAxes.all()) {
    INFO(name_of(axes));
    const ScatterFacts facts = facts_of_values(s, e, axes);
    for (const Index k : {1, 40, 199}) {
      const ScatterCut cut = scatter_cut(facts, facts.scatter, k);
      REQUIRE((cut.x && cut.y));
      const double sign = axes == ScatterAxes::rank ? -1 : 1;  // rank 1 is the best
      Index right = 0, above = 0, lost = 0;
      for (const ScatterPoint& point : facts.scatter.points) {
        const bool by_score = sign * (point.at.x - *cut.x) > 0, by_exact = sign * (point.at.y - *cut.y) > 0;
        right += by_score ? 1 : 0;
        above += by_exact ? 1 : 0;
        lost += by_exact && !by_score ? 1 : 0;
      }
      CHECK(right == k);
      CHECK(above == k);
      CHECK(lost == cut.lost);
    }
    // Nothing is beyond a budget of everything.
    CHECK_FALSE(scatter_cut(facts, facts.scatter, 200).x);
    CHECK(scatter_cut(facts, facts.scatter, 999).k == 200);
  }
}

TEST_CASE("rank axes have every rank once, and none for what has no value", "[scatter]") {
  const ScatterFacts facts = facts_of_values({5, kNan, 9, 1}, {1, 2, 3, HUGE_VAL}, ScatterAxes::rank);
  CHECK(facts.scatter.left_out == 2);
  REQUIRE(facts.scatter.points.size() == 2);
  CHECK(facts.scatter.points[0].token == 0);
  CHECK(facts.scatter.points[0].at.x == 2);
  CHECK(facts.scatter.points[1].at.x == 1);
  CHECK(facts.scatter.points[1].at.y == 2);  // behind the infinite one
}

TEST_CASE("outliers are the tokens whose ranks are farthest apart", "[scatter]") {
  const std::vector<double> s = random_values(300, 9), e = random_values(300, 10);
  const ScatterFacts facts = facts_of_values(s, e);
  REQUIRE(facts.outliers.size() == ScatterFacts::kOutliers);
  const auto apart = [&](Index p) { return std::abs(facts.score_place[p] - facts.reference_place[p]); };
  for (std::size_t i = 1; i < facts.outliers.size(); ++i)
    CHECK(apart(facts.outliers[i - 1]) >= apart(facts.outliers[i]));
  std::vector<Index> out = facts.outliers;
  std::sort(out.begin(), out.end());
  for (Index p = 0; p < 300; ++p)
    if (!std::binary_search(out.begin(), out.end(), p)) CHECK(apart(p) <= apart(facts.outliers.back()));
  CHECK(facts_of_values(s, s).outliers.empty());
  CHECK(facts_of_values({1}, {2}).outliers.empty());
}

}  // namespace kvreplay::viewer
