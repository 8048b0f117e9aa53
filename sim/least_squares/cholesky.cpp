#include "sim/least_squares/cholesky.hpp"

#include "sim/simd/panel_gemm.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <stdexcept>
#include <vector>

namespace kvreplay {
namespace {

constexpr Index W = kPanelWidth<double>;
constexpr Index kRowsPerItem = 96;
constexpr Index kColumns = 4 * W;  // of an item of a solution: they share what is read of L

/// a [rows][depth] of row-major rows `a_row` apart, transposed into panels of W of its rows, [depth][W] each.
void pack_transposed(const double* a, Index rows, Index depth, Index a_row, double* panels) {
  for (Index first = 0; first < rows; first += W) {
    const Index width = std::min(W, rows - first);
    double* const panel = panels + first * depth;
    if (width < W) std::fill_n(panel, depth * W, 0.0);
    for (Index k = 0; k < depth; ++k)
      for (Index c = 0; c < width; ++c) panel[k * W + c] = a[(first + c) * a_row + k];
  }
}

/// a [rows][width], its rows `a_row` apart, less product [rows][W].
void subtract_columns(const double* product, Index rows, Index width, double* a, Index a_row) {
  for (Index r = 0; r < rows; ++r)
    for (Index c = 0; c < width; ++c) a[r * a_row + c] -= product[r * W + c];
}

/// L of a small D = L L^T in its place, rows `row` apart; false where it is not definite.
bool factor_small(double* D, Index width, Index row) {
  for (Index c = 0; c < width; ++c) {
    if (!(D[c * row + c] > 0) || !std::isfinite(D[c * row + c])) return false;
    D[c * row + c] = std::sqrt(D[c * row + c]);
    for (Index r = c + 1; r < width; ++r) D[r * row + c] /= D[c * row + c];
    for (Index r = c + 1; r < width; ++r)
      for (Index k = c + 1; k <= r; ++k) D[r * row + k] -= D[r * row + c] * D[k * row + c];
  }
  return true;
}

/// L^-1 of a small L, into rows `inverse_row` apart.
void invert_small(const double* L, Index width, Index row, double* inverse, Index inverse_row) {
  for (Index r = 0; r < width; ++r) {
    double* const to = inverse + r * inverse_row;
    for (Index k = 0; k < r; ++k)
      for (Index c = 0; c <= k; ++c) to[c] -= L[r * row + k] * inverse[k * inverse_row + c];
    for (Index c = 0; c < r; ++c) to[c] /= L[r * row + r];
    to[r] = 1 / L[r * row + r];
  }
}

/// Panels x of some columns, into those of X from `first` on.
void unpack(const std::vector<double>& x, Index columns, Matrix<double>& X, Index first) {
  for (Index r = 0; r < X.rows(); ++r)
    for (Index c = 0; c < columns; c += W)
      std::copy_n(x.data() + panel_entry<double>(r, c, X.rows()), std::min(W, columns - c),
                  X.data() + r * X.cols() + first + c);
}

}  // namespace

/// Data of a finished diagonal block that the rows below it need.
struct Cholesky::Finished {
  std::vector<double> left;     // panels [begin][W]: the block's rows left of it, transposed
  std::vector<double> inverse;  // panels [width][W] of L^-T of the diagonal block
};

void Cholesky::finish_diagonal(Index begin, Finished& block) {
  const Index m = L_.rows(), width = block_width(begin), panels = div_up(width, W);
  double* const D = L_.data() + begin * m + begin;
  double* const inverse = inverses_.data() + begin * kBlock;
  block.left.resize(panels * W * begin);
  pack_transposed(L_.data() + begin * m, width, begin, m, block.left.data());
  std::array<double, kBlock * W> product, panel;
  for (Index s = 0; s < width && definite_; s += W) {
    // The columns s .. s + w - 1 of the block, from all that is left of them, in and before it.
    const Index w = std::min(W, width - s), rest = width - s;
    panel_gemm(rest, begin, D + s * m - begin, m, block.left.data() + s * begin, product.data());
    subtract_columns(product.data(), rest, w, D + s * m + s, m);
    pack_transposed(D + s * m, w, s, m, panel.data());
    panel_gemm(rest, s, D + s * m, m, panel.data(), product.data());
    subtract_columns(product.data(), rest, w, D + s * m + s, m);
    definite_ = factor_small(D + s * m + s, w, m);
    invert_small(D + s * m + s, w, m, inverse + s * kBlock + s, kBlock);
    pack_transposed(inverse + s * kBlock + s, w, w, kBlock, panel.data());
    panel_gemm(rest - w, w, D + (s + w) * m + s, m, panel.data(), product.data());
    for (Index r = 0; r < rest - w; ++r) std::copy_n(product.data() + r * W, w, D + (s + w + r) * m + s);
  }
  if (!definite_) return;
  // Below the diagonal L^-1 is -(L_ss)^-1 L_s,<s (L^-1)_<s.
  for (Index s = W; s < width; s += W)
    for (Index p = 0; p < s; p += W) {
      const Index w = std::min(W, width - s);
      for (Index k = p; k < s; ++k) std::copy_n(inverse + k * kBlock + p, W, panel.data() + (k - p) * W);
      panel_gemm(w, s - p, D + s * m + p, m, panel.data(), product.data());
      panel_gemm(w, w, inverse + s * kBlock + s, kBlock, product.data(), panel.data());
      for (Index r = 0; r < w; ++r)
        for (Index c = 0; c < W; ++c) inverse[(s + r) * kBlock + p + c] = -panel[r * W + c];
    }
  block.inverse.resize(panels * W * width);
  pack_transposed(inverse, width, width, kBlock, block.inverse.data());
}

Cholesky::Cholesky(const Matrix<double>& A, Workers& workers, double ridge) : L_(A.rows(), A.rows()) {
  const Index m = L_.rows();
  workers.parallel_for(div_up(m, kRowsPerItem), [&](Index item) {
    for (Index r = item * kRowsPerItem; r < std::min((item + 1) * kRowsPerItem, m); ++r) {
      std::copy_n(A.data() + r * m, r + 1, L_.data() + r * m);
      L_(r, r) += ridge;
    }
  });
  factor(workers);
}

Cholesky::Cholesky(const Matrix<double>& A, std::span<const Index> of, Workers& workers, double ridge)
    : L_(std::ssize(of), std::ssize(of)) {
  const Index m = L_.rows();
  workers.parallel_for(div_up(m, kRowsPerItem), [&](Index item) {
    for (Index r = item * kRowsPerItem; r < std::min((item + 1) * kRowsPerItem, m); ++r) {
      const double* const row = A.data() + of[r] * A.cols();
      for (Index c = 0; c <= r; ++c) L_(r, c) = row[of[c]];
      L_(r, r) += ridge;
    }
  });
  factor(workers);
}

// Left-looking: a block column is formed from all that is left of it. The first item of a column goes on to
// finish the next diagonal block, which needs no other's rows, while the others work.
void Cholesky::factor(Workers& workers) {
  const Index m = L_.rows();
  inverses_.assign(static_cast<std::size_t>(m * kBlock), 0.0);
  Finished now, next;
  if (m > 0) finish_diagonal(0, now);
  for (Index begin = 0; begin + kBlock < m && definite_; begin += kBlock) {
    const Index below = begin + kBlock;
    const Index first_rows = block_width(below), rest = m - below - first_rows;
    workers.parallel_for(1 + div_up(rest, kRowsPerItem), [&](Index item) {
      const Index first = item == 0 ? below : below + first_rows + (item - 1) * kRowsPerItem,
                  rows = item == 0 ? first_rows : std::min(kRowsPerItem, m - first);
      double* const block = L_.data() + first * m + begin;
      std::vector<double> product(rows * W);
      for (Index p = 0; p < kBlock / W; ++p) {
        panel_gemm(rows, begin, L_.data() + first * m, m, now.left.data() + p * W * begin, product.data());
        subtract_columns(product.data(), rows, W, block + p * W, m);
      }
      std::vector<double> quotient(rows * kBlock);
      for (Index p = 0; p < kBlock / W; ++p) {
        // The inverse is 0 where a column is right of a row.
        panel_gemm(rows, (p + 1) * W, block, m, now.inverse.data() + p * W * kBlock, product.data());
        for (Index r = 0; r < rows; ++r)
          std::copy_n(product.data() + r * W, W, quotient.data() + r * kBlock + p * W);
      }
      for (Index r = 0; r < rows; ++r) std::copy_n(quotient.data() + r * kBlock, kBlock, block + r * m);
      if (item == 0) finish_diagonal(below, next);
    });
    std::swap(now, next);
  }
}

void Cholesky::divide(Index from, double* x, Index panels) const {
  const Index m = L_.rows();
  std::array<double, kBlock * W> product;
  for (Index begin = from / kBlock * kBlock; begin < m; begin += kBlock) {
    const Index rows = block_width(begin), left = std::max<Index>(begin - from, 0);
    for (double* y = x; y < x + panels * m * W; y += m * W) {
      panel_gemm(rows, left, L_.data() + begin * m + from, m, y + from * W, product.data());
      subtract_columns(product.data(), rows, W, y + begin * W, W);
      panel_gemm(rows, rows, inverse_of(begin), kBlock, y + begin * W, product.data());
      std::copy_n(product.data(), rows * W, y + begin * W);
    }
  }
}

void Cholesky::divide_transposed(double* x, Index panels) const {
  const Index m = L_.rows();
  std::array<double, kBlock * W> product;
  for (Index begin = (m - 1) / kBlock * kBlock; begin >= 0; begin -= kBlock) {
    const Index rows = block_width(begin), behind = begin + rows;
    for (double* y = x; y < x + panels * m * W; y += m * W) {
      panel_gemm_transposed(rows, m - behind, L_.data() + behind * m + begin, m, y + behind * W,
                            product.data());
      subtract_columns(product.data(), rows, W, y + begin * W, W);
      panel_gemm_transposed(rows, rows, inverse_of(begin), kBlock, y + begin * W, product.data());
      std::copy_n(product.data(), rows * W, y + begin * W);
    }
  }
}

Matrix<double> Cholesky::inverse_factor(Workers& workers) const {
  const Index m = L_.rows();
  Matrix<double> X(m, m);
  workers.parallel_for(div_up(m, kColumns), [&](Index item) {
    const Index first = item * kColumns, columns = std::min(kColumns, m - first);
    std::vector<double> x(div_up(columns, W) * m * W, 0.0);
    for (Index c = 0; c < columns; ++c) x[panel_entry<double>(first + c, c, m)] = 1;
    divide(first, x.data(), div_up(columns, W));
    unpack(x, columns, X, first);
  });
  return X;
}

Matrix<double> Cholesky::solve(const Matrix<double>& B, Workers& workers) const {
  const Index m = L_.rows();
  Matrix<double> X(m, B.cols());
  workers.parallel_for(div_up(B.cols(), kColumns), [&](Index item) {
    const Index first = item * kColumns, columns = std::min(kColumns, B.cols() - first);
    std::vector<double> x(div_up(columns, W) * m * W, 0.0);
    for (Index r = 0; r < m; ++r)
      for (Index c = 0; c < columns; c += W)
        std::copy_n(B.data() + r * B.cols() + first + c, std::min(W, columns - c),
                    x.data() + panel_entry<double>(r, c, m));
    divide(0, x.data(), div_up(columns, W));
    divide_transposed(x.data(), div_up(columns, W));
    unpack(x, columns, X, first);
  });
  return X;
}

Vector<double> nonnegative_least_squares(const Matrix<double>& A, double ridge, const Vector<double>& f,
                                         const Vector<double>& near, Workers& workers) {
  constexpr int kFullExchanges = 3;  // that may fail to help before one token is exchanged at a time
  const Index m = f.size();
  const double rounding = m > 0 ? 1e-12 * f.cwiseAbs().maxCoeff() : 0;
  std::vector<Index> positive, zero, wrong;
  for (Index p = 0; p < m; ++p) (near.size() == 0 || near[p] > 0 ? positive : zero).push_back(p);
  Vector<double> w = Vector<double>::Zero(m);
  std::size_t fewest = m + 1;
  int left = kFullExchanges;
  for (;;) {
    w.setZero();
    if (!positive.empty()) {
      const Cholesky factor(A, positive, workers, ridge);
      if (!factor.definite()) throw std::logic_error("nonnegative_least_squares: H is not positive definite");
      const Matrix<double> right = f(positive);
      w(positive) = factor.solve(right, workers).col(0);
    }
    wrong.clear();
    for (const Index p : positive)
      if (w[p] < 0) wrong.push_back(p);
    for (const Index p : zero)
      if (A.row(p) * w - f[p] < -rounding) wrong.push_back(p);
    if (wrong.empty()) return w;
    if (wrong.size() < fewest) {
      fewest = wrong.size();
      left = kFullExchanges;
    } else if (--left < 0) {
      wrong = {*std::max_element(wrong.begin(), wrong.end())};
    }
    std::vector<bool> is_positive(m, false);
    for (const Index p : positive) is_positive[p] = true;
    for (const Index p : wrong) is_positive[p] = !is_positive[p];
    positive.clear();
    zero.clear();
    for (Index p = 0; p < m; ++p) (is_positive[p] ? positive : zero).push_back(p);
  }
}

}  // namespace kvreplay
