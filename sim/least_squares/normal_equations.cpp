#include "sim/least_squares/normal_equations.hpp"

#include "sim/gram_sums.hpp"
#include "sim/least_squares/cholesky.hpp"
#include "sim/simd/panel_gemm.hpp"

#include <algorithm>
#include <functional>
#include <numeric>
#include <utility>
#include <vector>

namespace kvreplay {
namespace {

constexpr Index kWidth = kPanelWidth<double>;

/// Rows of X and R side by side, [count, m + columns].
using RowsOf = std::function<Matrix<double>(Index first, Index count)>;

NormalEquations equations_of(Index n, Index m, Index columns, const RowsOf& rows_of, Workers& workers) {
  const Matrix<double> all = gram_of_rows(n, m + columns, rows_of, workers);
  return {all.topLeftCorner(m, m), all.topRightCorner(m, columns),
          all.bottomRightCorner(columns, columns).trace()};
}

/// Weights X of the kept tokens in each row after the softmax, and the part R of the rows' outputs that they
/// lack.
struct Lacking {
  Matrix<double> X, R;
};

template <class T>
Lacking lacking(const RowLogits<T>& rows, Index first, Index count, std::span<const Index> tokens,
                const Vector<double>& weight, const Matrix<double>& values) {
  KeptWeights kept = kept_weights(rows, first, count, tokens, weight);
  const Vector<double> total = kept.total();
  Lacking found{std::move(kept.e), Matrix<double>(count, values.cols())};
  for (Index r = 0; r < count; ++r) {
    const double share = total[r] > 0 ? 1 / total[r] : 0;
    // Where there is a rest the largest weight is at least as large, and nothing underflows.
    const double of_rest = kept.rest[r] > 0 && kept.unscale[r] > 0 ? share / kept.unscale[r] : 0;
    found.X.row(r) *= share;
    found.R.row(r) = rows.prompt_out.row(first + r) + (1 - of_rest) * rows.rest_out.row(first + r);
  }
  found.R -= product(found.X, values);
  return found;
}

}  // namespace

NormalEquations& NormalEquations::operator+=(const NormalEquations& more) {
  XX += more.XX;
  XR += more.XR;
  RR += more.RR;
  return *this;
}

double NormalEquations::least_error(Workers& workers) const {
  const double mean = mean_diagonal();
  // The least ridge that leaves redundant tokens solvable, far below what changes the error.
  for (double ridge = 1e-12; mean > 0 && ridge < 1; ridge *= 10) {
    const Cholesky factor(XX, workers, ridge * mean);
    if (factor.definite()) return std::clamp(error(factor.solve(XR, workers), workers), 0.0, RR);
  }
  return RR;
}

// D^T XX D is symmetric: what is right of a diagonal block counts twice.
double NormalEquations::error(const Matrix<double>& D, Workers& workers) const {
  constexpr Index kRows = 96;
  const Index m = XX.rows();
  std::vector<double> parts(div_up(m, kRows));
  workers.parallel_for(std::ssize(parts), [&](Index item) {
    const Index first = item * kRows, count = std::min(kRows, m - first), behind = first + count;
    const auto here = D.middleRows(first, count);
    Matrix<double> along = product(XX.block(first, first, count, count), here);
    along += 2 * product(XX.block(first, behind, count, m - behind), D.bottomRows(m - behind));
    along -= 2 * XR.middleRows(first, count);
    parts[item] = along.cwiseProduct(here).sum();
  });
  return std::accumulate(parts.begin(), parts.end(), RR);
}

Matrix<double> product(const RowsOfMatrix& a, const RowsOfMatrix& b) {
  Matrix<double> c(a.rows(), b.cols());
  std::vector<double> panel(b.rows() * kWidth), part(a.rows() * kWidth);
  for (Index first = 0; first < b.cols(); first += kWidth) {
    const Index width = std::min(kWidth, b.cols() - first);
    for (Index k = 0; k < b.rows(); ++k)
      std::fill(std::copy_n(b.data() + k * b.outerStride() + first, width, panel.data() + k * kWidth),
                panel.data() + (k + 1) * kWidth, 0.0);
    panel_gemm(a.rows(), a.cols(), a.data(), a.outerStride(), panel.data(), part.data());
    for (Index r = 0; r < a.rows(); ++r)
      std::copy_n(part.data() + r * kWidth, width, c.data() + r * b.cols() + first);
  }
  return c;
}

template <class T>
NormalEquations mass_equations(const RowLogits<T>& rows, std::span<const Index> tokens, Workers& workers) {
  const auto m = std::ssize(tokens);
  return equations_of(
      rows.n, m, 1,
      [&](Index first, Index count) {
        const KeptWeights kept = kept_weights(rows, first, count, tokens, Vector<double>());
        Matrix<double> both(count, m + 1);
        both.leftCols(m) = kept.unscale.asDiagonal() * kept.e;
        both.col(m) = rows.prompt_mass.segment(first, count);
        return both;
      },
      workers);
}

template <class T>
NormalEquations value_equations(const RowLogits<T>& rows, std::span<const Index> tokens,
                                const Vector<double>& weight, const Matrix<double>& values,
                                Workers& workers) {
  return equations_of(
      rows.n, std::ssize(tokens), values.cols(),
      [&](Index first, Index count) {
        const auto [X, R] = lacking(rows, first, count, tokens, weight, values);
        Matrix<double> both(count, X.cols() + R.cols());
        both << X, R;
        return both;
      },
      workers);
}

template <class T>
double output_change_sq(const RowLogits<T>& rows, std::span<const Index> tokens, const Vector<double>& weight,
                        const Matrix<double>& values, Workers& workers) {
  std::vector<double> parts(div_up(rows.n, kGramTile));
  workers.parallel_for(std::ssize(parts), [&](Index item) {
    const Index first = item * kGramTile, count = std::min(kGramTile, rows.n - first);
    parts[item] = lacking(rows, first, count, tokens, weight, values).R.squaredNorm();
  });
  return std::accumulate(parts.begin(), parts.end(), 0.0);
}

template decltype(mass_equations<float>) mass_equations<float>;
template decltype(mass_equations<double>) mass_equations<double>;
template decltype(value_equations<float>) value_equations<float>;
template decltype(value_equations<double>) value_equations<double>;
template decltype(output_change_sq<float>) output_change_sq<float>;
template decltype(output_change_sq<double>) output_change_sq<double>;

}  // namespace kvreplay
