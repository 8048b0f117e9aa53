#include "sim/least_squares/cholesky.hpp"
#include "sim/least_squares/normal_equations.hpp"
#include "tests/support/catch.hpp"

#include <algorithm>
#include <cstdint>
#include <limits>
#include <random>

using namespace kvreplay;

namespace {

Matrix<double> random_matrix(Index rows, Index cols, std::uint64_t seed) {
  std::mt19937_64 random(seed);
  return Matrix<double>::NullaryExpr(rows, cols,
                                     [&] { return static_cast<double>(random() >> 11) * 0x1p-52 - 1; });
}

/// Symmetric, with eigenvalues from about 1e-4 on.
Matrix<double> random_definite(Index m, std::uint64_t seed) {
  const Matrix<double> X = random_matrix(m + 3, m, seed);
  return X.transpose() * X + 1e-4 * Matrix<double>::Identity(m, m);
}

}  // namespace

TEST_CASE("A Cholesky factor solves at every size of a last block, with any number of threads",
          "[compensation]") {
  for (const Index m : {1, 2, 15, 16, 17, 33, 100, 230})
    for (const Index columns : {1, 16, 19}) {
      INFO(m << " x " << columns);
      const Matrix<double> A = random_definite(m, 7 + m), X = random_matrix(m, columns, 11);
      Workers one(1), three(3);
      const Cholesky factor(A, one);
      REQUIRE(factor.definite());
      const Matrix<double> found = factor.solve(A * X, one);
      CHECK((A * found - A * X).norm() <= 1e-12 * A.norm() * found.norm());
      CHECK(found == Cholesky(A, three).solve(A * X, three));
      // The same of rows and columns among others, and with a part of the diagonal as a ridge.
      Matrix<double> among = random_matrix(2 * m, 2 * m, 12);
      std::vector<Index> at(m);
      for (Index r = 0; r < m; ++r) at[r] = 2 * r + 1;
      among(at, at) = A;
      among.diagonal().array() -= 0.5;
      const Matrix<double> of_part = Cholesky(among, at, three, 0.5).solve(A * X, three);
      CHECK((of_part - found).norm() <= 1e-9 * found.norm());
    }
}

TEST_CASE("The inverse of a Cholesky factor is its inverse", "[compensation]") {
  Workers workers(2);
  for (const Index m : {1, 17, 64, 65, 200}) {
    const Matrix<double> A = random_definite(m, m), inverse = Cholesky(A, workers).inverse_factor(workers);
    INFO(m);
    CHECK(inverse.isLowerTriangular(0));
    CHECK((inverse * A * inverse.transpose() - Matrix<double>::Identity(m, m)).norm() <= 1e-8);
  }
}

TEST_CASE("The error of a solution is that of its rows", "[compensation]") {
  Workers workers(2);
  for (const Index m : {1, 95, 96, 97, 300}) {
    const Matrix<double> X = random_matrix(m + 20, m, 1), R = random_matrix(m + 20, 21, 2),
                         D = random_matrix(m, 21, 3);
    const NormalEquations equations{X.transpose() * X, X.transpose() * R, R.squaredNorm()};
    INFO(m);
    CHECK(equations.error(D, workers) == Approx((X * D - R).squaredNorm()).epsilon(1e-11));
  }
}

TEST_CASE("A matrix that is not positive definite has no Cholesky factor", "[compensation]") {
  Workers workers(1);
  Matrix<double> A = random_definite(40, 3);
  A(35, 35) = -1;
  CHECK_FALSE(Cholesky(A, workers).definite());
  CHECK_FALSE(Cholesky(Matrix<double>::Zero(3, 3), workers).definite());
  A(0, 0) = std::numeric_limits<double>::quiet_NaN();
  CHECK_FALSE(Cholesky(A, workers).definite());
}

TEST_CASE("A product by panels is the product", "[compensation]") {
  const Matrix<double> a = random_matrix(13, 37, 1), b = random_matrix(37, 21, 2);
  CHECK((product(a, b) - a * b).norm() <= 1e-13 * (a * b).norm());
  CHECK(product(Matrix<double>(4, 0), Matrix<double>(0, 3)).isZero(0));
}

TEST_CASE("Nonnegative least squares meet their optimality conditions", "[compensation]") {
  Workers workers(2);
  int at_zero = 0;
  for (std::uint64_t seed = 1; seed <= 60; ++seed) {
    const Index m = 1 + static_cast<Index>(seed) % 40;
    INFO("seed " << seed << ", m = " << m);
    const Matrix<double> H = random_definite(m, seed);
    const Vector<double> f = random_matrix(m, 1, seed + 1000);
    const Vector<double> w = nonnegative_least_squares(H, 0, f, {}, workers), slope = H * w - f;
    const double rounding = 1e-9 * f.norm();
    CHECK(w.minCoeff() >= 0);
    CHECK(slope.minCoeff() >= -rounding);
    CHECK(w.cwiseProduct(slope).cwiseAbs().maxCoeff() <= rounding * std::max(1.0, w.maxCoeff()));
    at_zero += static_cast<int>((w.array() == 0).count());
  }
  CHECK(at_zero > 100);  // the bounds did hold
}

TEST_CASE("Nonnegative least squares without bounds in the way is the plain solution", "[compensation]") {
  Workers workers(1);
  const Matrix<double> H = random_definite(30, 5);
  const Vector<double> w = random_matrix(30, 1, 6).cwiseAbs();
  CHECK((nonnegative_least_squares(H, 0, H * w, {}, workers) - w).norm() <= 1e-9 * w.norm());
  // Wherever it starts from.
  const Vector<double> f = H * w - Vector<double>::Constant(w.size(), H.diagonal().maxCoeff());
  const Vector<double> want = nonnegative_least_squares(H, 0, f, {}, workers);
  for (const Vector<double>& near : {Vector<double>(Vector<double>::Zero(w.size())), w, want})
    CHECK((nonnegative_least_squares(H, 0, f, near, workers) - want).norm() <= 1e-9 * want.norm());
}
