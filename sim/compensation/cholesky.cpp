#include "sim/compensation/cholesky.hpp"

#include "sim/simd/panel_gemm.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <utility>
#include <vector>

namespace kvreplay {
namespace {

constexpr Index W = kPanelWidth<double>;
constexpr Index kRowsPerItem = 96;

/// Over a panel's rows.
void divide_by(double* row, double by) {
  for (Index c = 0; c < W; ++c) row[c] /= by;
}
void subtract(double* row, double times, const double* other) {
  for (Index c = 0; c < W; ++c) row[c] -= times * other[c];
}

}  // namespace

// Left-looking: a block column is formed from all that is left of it in one product.
Cholesky::Cholesky(Matrix<double> A, Workers& workers) : L_(std::move(A)) {
  const Index m = L_.rows();
  std::vector<double> left(m * W);
  for (Index begin = 0; begin < m && definite_; begin += W) {
    const Index width = std::min(W, m - begin);
    std::fill_n(left.begin(), begin * W, 0.0);
    for (Index c = 0; c < width; ++c)
      for (Index k = 0; k < begin; ++k) left[k * W + c] = L_(begin + c, k);
    const auto subtract_left = [&](Index first, Index rows) {
      std::vector<double> product(rows * W);
      panel_gemm(rows, begin, L_.data() + first * m, m, left.data(), product.data());
      for (Index r = 0; r < rows; ++r)
        for (Index c = 0; c < width; ++c) L_(first + r, begin + c) -= product[r * W + c];
    };
    subtract_left(begin, width);
    for (Index c = 0; c < width && definite_; ++c) {
      double* const row = L_.data() + (begin + c) * m + begin;
      for (Index k = 0; k < c; ++k) {
        const double* const other = L_.data() + (begin + k) * m + begin;
        for (Index i = 0; i < k; ++i) row[k] -= row[i] * other[i];
        row[k] /= other[k];
        row[c] -= row[k] * row[k];
      }
      definite_ = row[c] > 0 && std::isfinite(row[c]);
      row[c] = std::sqrt(row[c]);
    }
    // What is below is divided by the diagonal block: multiplied by its inverse, D[j][k] = [L^-1]_kj.
    std::array<double, W * W> D{};
    for (Index j = 0; j < width && definite_; ++j) {
      D[j * W + j] = 1;
      for (Index k = j; k < width; ++k) {
        const double* const row = L_.data() + (begin + k) * m + begin;
        for (Index i = j; i < k; ++i) D[j * W + k] -= row[i] * D[j * W + i];
        D[j * W + k] /= row[k];
      }
    }
    const Index below = begin + width;
    workers.parallel_for(definite_ ? div_up(m - below, kRowsPerItem) : 0, [&](Index item) {
      const Index first = below + item * kRowsPerItem, rows = std::min(kRowsPerItem, m - first);
      subtract_left(first, rows);
      std::array<double, kRowsPerItem * W> quotient;
      panel_gemm(rows, width, L_.data() + first * m + begin, m, D.data(), quotient.data());
      for (Index r = 0; r < rows; ++r)
        std::copy_n(quotient.data() + r * W, width, L_.data() + (first + r) * m + begin);
    });
  }
  if (definite_) Lt_ = L_.transpose();
}

void Cholesky::divide(Index from, double* x) const {
  const Index m = L_.rows();
  std::vector<double> product(W * W);
  for (Index begin = from; begin < m; begin += W) {
    const Index rows = std::min(W, m - begin);
    panel_gemm(rows, begin - from, L_.data() + begin * m + from, m, x + from * W, product.data());
    for (Index r = begin; r < begin + rows; ++r) {
      subtract(x + r * W, 1, product.data() + (r - begin) * W);
      for (Index k = begin; k < r; ++k) subtract(x + r * W, L_(r, k), x + k * W);
      divide_by(x + r * W, L_(r, r));
    }
  }
}

Matrix<double> Cholesky::inverse_factor(Workers& workers) const {
  const Index m = L_.rows();
  Matrix<double> X(m, m);
  workers.parallel_for(div_up(m, W), [&](Index panel) {
    const Index first = panel * W, width = std::min(W, m - first);
    std::vector<double> x(m * W, 0.0);
    for (Index c = 0; c < width; ++c) x[(first + c) * W + c] = 1;
    divide(first, x.data());
    for (Index r = 0; r < m; ++r) std::copy_n(x.data() + r * W, width, X.data() + r * m + first);
  });
  return X;
}

Matrix<double> Cholesky::solve(const Matrix<double>& B, Workers& workers) const {
  const Index m = L_.rows(), columns = B.cols();
  Matrix<double> X(m, columns);
  workers.parallel_for(div_up(columns, W), [&](Index panel) {
    const Index first = panel * W, width = std::min(W, columns - first);
    std::vector<double> x(m * W, 0.0), product(W * W);
    for (Index r = 0; r < m; ++r) std::copy_n(B.data() + r * columns + first, width, x.data() + r * W);
    divide(0, x.data());
    for (Index begin = (m - 1) / W * W; begin >= 0; begin -= W) {
      const Index rows = std::min(W, m - begin), behind = begin + rows;
      panel_gemm(rows, m - behind, Lt_.data() + begin * m + behind, m, x.data() + behind * W, product.data());
      for (Index r = behind - 1; r >= begin; --r) {
        double* const row = x.data() + r * W;
        subtract(row, 1, product.data() + (r - begin) * W);
        for (Index k = r + 1; k < behind; ++k) subtract(row, Lt_(r, k), x.data() + k * W);
        divide_by(row, L_(r, r));
      }
    }
    for (Index r = 0; r < m; ++r) std::copy_n(x.data() + r * W, width, X.data() + r * columns + first);
  });
  return X;
}

}  // namespace kvreplay
