#include "sim/tokens/leverage.hpp"

#include "sim/compensation/compensate.hpp"
#include "tests/support/catch.hpp"
#include "tests/support/random_group.hpp"

#include <Eigen/Dense>

#include <algorithm>
#include <vector>

using namespace kvreplay;
using namespace kvreplay::test;

namespace {

/// G = X^T X + mu I by definition.
struct Normal {
  Matrix<double> G;
  double mu = 0;
};
Normal normal_of(const HeadGroup<double>& group) {
  const Matrix<double> X = reference_weights(group, leverage_rows(group));
  Normal normal{X.transpose() * X, 0};
  normal.mu = kLeverageRidge * normal.G.diagonal().mean();
  normal.G.diagonal().array() += normal.mu;
  return normal;
}

/// min E where the tokens `out` are 0: by Schur complement.
double least_error(const Normal& normal, const HeadGroup<double>& group, const std::vector<Index>& out) {
  std::vector<Index> left;
  for (Index p = 0; p < group.l; ++p)
    if (std::find(out.begin(), out.end(), p) == out.end()) left.push_back(p);
  const Matrix<double> V = group.v(out, Eigen::all), B = normal.G(left, out);
  Matrix<double> S = normal.G(out, out);
  if (!left.empty()) S -= B.transpose() * normal.G(left, left).ldlt().solve(B);
  return (V.transpose() * S * V).trace();
}

std::vector<GroupSpec> specs() {
  const Rope rope = rope_of(Rope::Style::half, 8);
  return {{.rope = rope},
          {.T = 40, .G = 3, .logit_std = 4.0, .sink_logit = 1.0, .rope = rope},
          {.sliding_window = 9, .rope = rope},
          {.softcap = 5.0, .rope = rope},
          {.logit_std = 60.0, .rope = rope}};
}

}  // namespace

TEST_CASE("leverage is what a token costs where the others are fitted anew", "[leverage]") {
  Workers workers(2);
  for (const GroupSpec& spec : specs()) {
    const HeadGroup<double> group = random_group(spec);
    const Vector<double> got = leverage(group, workers), want = leverage_reference(group);
    const Normal normal = normal_of(group);
    REQUIRE(got.size() == group.l);
    for (Index p = 0; p < group.l; ++p) {
      INFO("position " << p);
      CHECK(got[p] == Approx(want[p]).epsilon(1e-9));
      CHECK(got[p] == Approx(least_error(normal, group, {p})).epsilon(1e-9));
    }
  }
}

TEST_CASE("the twin of a token has no leverage but the ridge's", "[leverage]") {
  Workers workers(1);
  HeadGroup<double> group = random_group({.rope = rope_of(Rope::Style::half, 8)});
  group.k.row(11) = group.k.row(5);
  group.v.row(11) = group.v.row(5);
  const Vector<double> got = leverage(group, workers);
  const double mu = normal_of(group).mu;
  for (const Index p : {5, 11}) CHECK(got[p] <= 2 * mu * group.v.row(p).squaredNorm() * (1 + 1e-9));
}

TEST_CASE("greedy_leverage takes the cheapest token each time", "[leverage]") {
  Workers workers(2);
  for (const GroupSpec& spec : specs()) {
    const HeadGroup<double> group = random_group(spec);
    const Normal normal = normal_of(group);
    const GreedyPath path = greedy_leverage(group, 0, workers);
    REQUIRE(std::ssize(path.evicted) == group.held());
    REQUIRE(path.error.size() == path.evicted.size());
    std::vector<Index> out;
    for (Index step = 0; step < group.held(); ++step) {
      INFO("step " << step);
      double least = std::numeric_limits<double>::infinity();
      for (Index p = group.first_held(); p < group.l; ++p) {
        if (std::find(out.begin(), out.end(), p) != out.end()) continue;
        out.push_back(p);
        least = std::min(least, least_error(normal, group, out));
        out.pop_back();
      }
      out.push_back(path.evicted[step]);
      CHECK(path.error[step] == Approx(least).epsilon(1e-8));
      CHECK(least_error(normal, group, out) == Approx(least).epsilon(1e-8));
    }
  }
}

TEST_CASE("greedy_leverage over many blocks, on any number of threads", "[leverage]") {
  const HeadGroup<double> group =
      random_group({.l = 300, .T = 300, .G = 2, .logit_std = 2.0, .rope = rope_of(Rope::Style::half, 8)});
  const Normal normal = normal_of(group);
  Workers one(1), three(3);
  const GreedyPath path = greedy_leverage(group, 20, one);
  const GreedyPath again = greedy_leverage(group, 20, three);
  CHECK(path.evicted == again.evicted);
  CHECK(path.error == again.error);
  for (const Index step : {0, 63, 64, 65, 127, 200, 279}) {
    INFO("step " << step);
    const std::vector<Index> out(path.evicted.begin(), path.evicted.begin() + step + 1);
    CHECK(path.error[step] == Approx(least_error(normal, group, out)).epsilon(1e-8));
  }
  // What is evicted on the way to few is what is evicted on the way to many.
  const GreedyPath few = greedy_leverage(group, 150, one);
  CHECK(std::equal(few.evicted.begin(), few.evicted.end(), path.evicted.begin()));
  CHECK(greedy_leverage(group, 300, one).evicted.empty());
}

TEST_CASE("leverage of one token, of values that are 0, of stopped workers", "[leverage]") {
  Workers workers(1);
  HeadGroup<double> group = random_group({.l = 1, .T = 1, .rope = rope_of(Rope::Style::half, 8)});
  CHECK(leverage(group, workers)[0] == Approx(least_error(normal_of(group), group, {0})));
  CHECK(greedy_leverage(group, 0, workers).evicted == std::vector<Index>{0});

  group = random_group({.rope = rope_of(Rope::Style::half, 8)});
  group.v.row(7).setZero();
  CHECK(leverage(group, workers)[7] == 0);
  CHECK(greedy_leverage(group, group.l - 1, workers).evicted == std::vector<Index>{7});
  group.v.setZero();
  CHECK(leverage(group, workers).isZero(0));
}
