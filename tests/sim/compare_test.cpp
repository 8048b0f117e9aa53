#include "tests/support/compare.hpp"

#include "tests/support/catch.hpp"

#include <limits>
#include <string>

using namespace kvreplay;
using namespace kvreplay::test;

namespace {

Matrix<double> row(std::initializer_list<double> values) {
  Matrix<double> out(1, std::ssize(values));
  Index p = 0;
  for (const double value : values) out(0, p++) = value;
  return out;
}

constexpr Tolerance kTolerance{1e-3, 1e-2, 1e-2, 1e-30};

bool passes(const Matrix<double>& want, const Matrix<double>& got) {
  return mismatch("case", want, got, kTolerance).empty();
}

}  // namespace

TEST_CASE("the comparator allows both a share of the largest and a relative error", "[compare]") {
  CHECK(passes(row({1, 0.5}), row({1, 0.5})));
  CHECK(passes(row({}), row({})));
  CHECK(passes(row({1, 0.5}), row({1, 0.5009})));    // 0.0009 of the largest, 0.0018 of itself
  CHECK(!passes(row({1, 0.5}), row({1, 0.5011})));   // more than 0.001 of the largest
  CHECK(!passes(row({1, 0.05}), row({1, 0.0509})));  // within 0.001 of the largest, but 0.018 of itself
  CHECK(passes(row({1, 0.005}), row({1, 0.0059})));  // below the floor: only the share of the largest counts
  CHECK(!passes(row({1, 0.005}), row({1, 0.0061})));
  CHECK(passes(row({-1, 0.5}), row({-1.0009, 0.5})));
  CHECK(!passes(row({1}), row({-1})));
  CHECK(passes(row({0, 0}), row({0, 1e-31})));
  CHECK(!passes(row({0, 0}), row({0, 1e-29})));
}

TEST_CASE("the comparator rejects NaN, matches infinities and shapes", "[compare]") {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  const double inf = std::numeric_limits<double>::infinity();
  CHECK(!passes(row({1, nan}), row({1, nan})));
  CHECK(!passes(row({1, 2}), row({1, nan})));
  CHECK(!passes(row({1, nan}), row({1, 2})));
  CHECK(passes(row({1, inf}), row({1, inf})));
  CHECK(!passes(row({1, inf}), row({1, -inf})));
  CHECK(!passes(row({1, inf}), row({1, 1e300})));
  CHECK(!passes(row({1, 1e300}), row({1, inf})));
  CHECK(!passes(row({1, inf}), row({1.1, inf})));  // an infinity does not widen what the others may miss by
  CHECK(!passes(row({1, 2}), row({1})));
  CHECK(!passes(row({1, 2}), row({1, 2}).transpose()));
}

TEST_CASE("the comparator names the worst entry", "[compare]") {
  const std::string line = mismatch("a case: attn", row({1, 2, 3}), row({1.1, 2.5, 3}), kTolerance);
  CHECK(line.find("a case: attn: row 0, position 1: want 2, got 2.5") == 0);
  CHECK(line.find("2 of 3 entries miss") != std::string::npos);
}

TEST_CASE("same bytes", "[compare]") {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  CHECK(same_bytes(row({1, nan}), row({1, nan})));
  CHECK(!same_bytes(row({0.0}), row({-0.0})));
  CHECK(!same_bytes(row({1, 2}), row({1, 2}).transpose()));
  CHECK(same_bytes(Matrix<double>(), Matrix<double>()));
}
