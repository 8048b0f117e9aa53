#include "sim/quadratic_form.hpp"

#include "tests/support/catch.hpp"

#include <cmath>

using namespace kvreplay;

namespace {

template <class T>
double largest_difference(Index n, Index d) {
  const Matrix<double> root = Matrix<double>::Random(d, d);
  const Matrix<double> S = root + root.transpose();
  const Vector<double> b = Vector<double>::Random(d);
  const Matrix<T> x = Matrix<double>::Random(n, d).cast<T>();
  const Vector<T> fast = QuadraticForm<T>(S, b).at_rows(x.data(), n);
  REQUIRE(fast.size() == n);
  double largest = 0;
  for (Index r = 0; r < n; ++r) {
    double sum = 0, size = 1;  // term by term
    for (Index i = 0; i < d; ++i) {
      sum += b(i) * static_cast<double>(x(r, i));
      for (Index j = 0; j < d; ++j) {
        const double term = static_cast<double>(x(r, i)) * S(i, j) * static_cast<double>(x(r, j));
        sum += term;
        size += std::abs(term);
      }
    }
    largest = std::max(largest, std::abs(static_cast<double>(fast(r)) - sum) / size);
  }
  return largest;
}

}  // namespace

TEST_CASE("a quadratic form is the sum of its terms", "[quadratic_form]") {
  for (const Index d : {1, 2, 15, 16, 33, 64, 129})
    for (const Index n : {1, 11, 96, 97, 200}) {
      INFO("d " << d << ", n " << n);
      CHECK(largest_difference<double>(n, d) < 1e-14);
      CHECK(largest_difference<float>(n, d) < 1e-5);
    }
}

TEST_CASE("a quadratic form of no rows", "[quadratic_form]") {
  const Vector<float> none =
      QuadraticForm<float>(Matrix<double>::Identity(3, 3), Vector<double>::Zero(3)).at_rows(nullptr, 0);
  CHECK(none.size() == 0);
}
