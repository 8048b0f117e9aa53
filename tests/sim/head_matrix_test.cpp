#include "sim/head_matrix.hpp"

#include "tests/support/catch.hpp"

#include <array>
#include <utility>

using namespace kvreplay;

TEST_CASE("a matrix that looks at numbers gives copies their own", "[head_matrix]") {
  std::array<float, 6> numbers{1, 2, 3, 4, 5, 6};
  HeadMatrix<float> view = HeadMatrix<float>::of(numbers.data(), 2, 3);
  CHECK(view.borrowed());
  CHECK(view.data() == numbers.data());
  CHECK(view(1, 0) == 4);
  HeadMatrix<float> copy = view;
  CHECK(!copy.borrowed());
  copy(1, 0) = 7;
  CHECK(numbers[3] == 4);
  const HeadMatrix<float> moved = std::move(view);
  CHECK(moved.data() == numbers.data());
  copy = moved;
  CHECK(copy.data() != numbers.data());
  CHECK(copy == moved);
}

TEST_CASE("a matrix of its own keeps its numbers where it is moved to", "[head_matrix]") {
  HeadMatrix<double> one = Matrix<double>::Constant(3, 2, 1.5);
  const double* const there = one.data();
  HeadMatrix<double> other = std::move(one);
  CHECK(other.data() == there);
  CHECK(one.size() == 0);  // NOLINT: what is left of it
  other = other.topRows(2) * 2;
  CHECK((other.rows() == 2 && other.isConstant(3)));
  other.resize(1, 4);
  CHECK((other.rows() == 1 && other.cols() == 4 && !other.borrowed()));
  other = std::as_const(other);
  CHECK(other.cols() == 4);
}
