#include "viewer/work/scatter.hpp"

#include "analysis/tokens/agreement.hpp"
#include "tests/support/catch.hpp"

#include <algorithm>
#include <cmath>
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

}  // namespace kvreplay::viewer
