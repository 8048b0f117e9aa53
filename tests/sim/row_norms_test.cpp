#include "sim/tokens/row_norms.hpp"

#include "tests/support/catch.hpp"
#include "tests/support/random_group.hpp"

#include <algorithm>
#include <cmath>

using namespace kvreplay;
using namespace kvreplay::test;

namespace {

/// The largest error of a norm as a share of the norm itself.
template <class T>
double worst_error(const HeadGroup<double>& group) {
  Workers workers(2);
  const HeadGroup<T> own = converted<T>(group);
  double worst = 0;
  for (Index g = 0; g < group.G(); ++g) {
    const Vector<double> norms = projected_value_norms(own, g, workers);
    for (Index p = 0; p < group.l; ++p) {
      const double want = (group.v.row(p) * group.wo[g]).norm();
      worst = std::max(worst, std::abs(norms(p) - want) / want);
    }
  }
  return worst;
}

}  // namespace

TEST_CASE("row norms are summed in float64", "[row_norms]") {
  Workers workers(3);
  for (const Index d : {1, 7, 16, 33, 128}) {
    HeadMatrix<float> x = Matrix<float>::Random(700, d);
    x.row(3).setZero();
    x.row(5) *= 1e30F;  // whose square float32 does not hold
    const Vector<double> norms = row_norms(x, 650, workers);
    REQUIRE(norms.size() == 650);
    for (Index r = 0; r < norms.size(); ++r) {
      const double want = x.row(r).template cast<double>().norm();
      CHECK(std::abs(norms(r) - want) <= 1e-14 * want);
    }
  }
}

TEST_CASE("projected norms are as good where the projection leaves little of a value", "[row_norms]") {
  HeadGroup<double> group =
      to_double(to_float(random_group({.l = 300, .T = 301, .G = 2, .d_v = 35, .d_model = 90})));
  CHECK(worst_error<float>(group) < 1e-5);
  CHECK(worst_error<double>(group) < 1e-12);
  // One direction of the values is all but lost, and every other value is that direction.
  for (Matrix<double>& wo : group.wo) wo.row(7) *= 0x1p-10;
  for (Index p = 0; p < group.l; p += 2) {
    group.v.row(p).setZero();
    group.v(p, 7) = 1;
  }
  CHECK(worst_error<float>(group) < 1e-5);
  CHECK(worst_error<double>(group) < 1e-9);
}

TEST_CASE("a projection to fewer numbers than values have loses some of them", "[row_norms]") {
  HeadGroup<double> group = random_group({.l = 5, .T = 6, .G = 1, .d_v = 4, .d_model = 2});
  group.wo[0] << 1, 0, 0, 1, 0, 0, 0, 0;
  group.v.row(0) << 3, 4, 0, 0;
  group.v.row(1) << 0, 0, 5, 1;
  Workers workers(1);
  const Vector<double> norms = projected_value_norms(group, 0, workers);
  CHECK(norms(0) == Approx(5));
  CHECK(norms(1) == 0);
  group.wo[0].setZero();
  CHECK(projected_value_norms(group, 0, workers).maxCoeff() == 0);
}
