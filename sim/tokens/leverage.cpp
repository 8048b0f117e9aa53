#include "sim/tokens/leverage.hpp"

#include "sim/gram_sums.hpp"
#include "sim/least_squares/cholesky.hpp"
#include "sim/least_squares/normal_equations.hpp"
#include "sim/least_squares/reference_rows.hpp"
#include "sim/overflow.hpp"
#include "sim/simd/panel_gemm.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <vector>

namespace kvreplay {
namespace {

constexpr Index kWidth = kPanelWidth<double>;
constexpr Index kLeverageTokensPerItem = 256;
constexpr Index kBlockOfEvictions = 64;  // evictions between two updates of the inverse

/// L^-1 of G = L L^T over the tokens from position `begin` on. Nothing if no row sees any of these tokens:
/// then every eviction costs 0.
std::optional<Matrix<double>> inverse_factor(const HeadGroup<double>& group, Index begin, Workers& workers) {
  std::vector<Index> every(group.l - begin);
  std::iota(every.begin(), every.end(), begin);
  const NormalEquations equations =
      mass_equations(row_logits(group, leverage_rows(group), workers), every, workers);
  const double mean =
      equations.mean_diagonal() * static_cast<double>(every.size()) / static_cast<double>(group.l);
  if (mean == 0) return std::nullopt;
  const Cholesky factor(equations.XX, workers, kLeverageRidge * mean);
  if (!factor.definite()) report_not_finite(group, "a finite leverage");
  return factor.inverse_factor(workers);
}

/// The tokens that are left: G^-1 over them, and the values that make up for the others.
class Elimination {
 public:
  Elimination(Matrix<double> inverse, Matrix<double> values, Workers& workers)
      : workers_(workers), P_(std::move(inverse)), C_(std::move(values)), position_(P_.rows()) {
    std::iota(position_.begin(), position_.end(), Index{0});
  }

  /// Evicts `n` more tokens.
  void evict(Index n, GreedyPath& path) {
    diagonal_ = P_.diagonal();
    value_sq_ = C_.rowwise().squaredNorm();
    gone_.assign(position_.size(), 0);
    U_.resize(P_.rows(), n);
    for (Index step = 0; step < n; ++step) {
      const Index p = cheapest();
      const double cost = value_sq_[p] / diagonal_[p];
      path.evicted.push_back(position_[p]);
      path.error.push_back((path.error.empty() ? 0 : path.error.back()) + cost);
      leave_out(p, step);
    }
    close_ranks(n);
  }

 private:
  Index cheapest() const {
    Index best = -1;
    double least = std::numeric_limits<double>::infinity();
    for (Index j = 0; j < std::ssize(position_); ++j) {
      if (gone_[j]) continue;
      const double cost = value_sq_[j] / diagonal_[j];
      if (best < 0 || cost <= least) {
        best = j;
        least = cost;
      }
    }
    return best;
  }

  /// A Schur complement whose product with itself is left to close_ranks().
  void leave_out(Index p, Index step) {
    gone_[p] = 1;
    const double pivot = diagonal_[p], root = std::sqrt(pivot);
    const Vector<double> moves = C_.row(p).transpose() / pivot;
    const Vector<double> before = U_.row(p).head(step).transpose();
    const Index n = std::ssize(position_);
    workers_.parallel_for(div_up(n, kLeverageTokensPerItem), [&](Index item) {
      const Index end = std::min((item + 1) * kLeverageTokensPerItem, n);
      for (Index j = item * kLeverageTokensPerItem; j < end; ++j) {
        if (gone_[j]) {
          U_(j, step) = 0;
          continue;
        }
        const double u = P_(p, j) - U_.row(j).head(step).dot(before);
        U_(j, step) = u / root;
        diagonal_[j] -= U_(j, step) * U_(j, step);
        C_.row(j) -= u * moves.transpose();
        value_sq_[j] = C_.row(j).squaredNorm();
      }
    });
  }

  void close_ranks(Index depth) {
    std::vector<Index> left;
    for (Index j = 0; j < std::ssize(position_); ++j)
      if (!gone_[j]) left.push_back(j);
    const auto n = std::ssize(left);
    const Matrix<double> U = U_(left, Eigen::all);
    std::vector<double> panels(div_up(n, kWidth) * depth * kWidth, 0.0);
    for (Index j = 0; j < n; ++j)
      for (Index k = 0; k < depth; ++k) panels[(j / kWidth * depth + k) * kWidth + j % kWidth] = U(j, k);
    Matrix<double> P(n, n);
    workers_.parallel_for(div_up(n, kLeverageTokensPerItem), [&](Index item) {
      const Index first = item * kLeverageTokensPerItem, rows = std::min(kLeverageTokensPerItem, n - first);
      std::vector<double> product(rows * kWidth);
      for (Index panel = 0; panel * kWidth < n; ++panel) {
        panel_gemm(rows, depth, U.data() + first * depth, depth, panels.data() + panel * depth * kWidth,
                   product.data());
        for (Index r = 0; r < rows; ++r)
          for (Index c = panel * kWidth; c < std::min((panel + 1) * kWidth, n); ++c)
            P(first + r, c) = P_(left[first + r], left[c]) - product[r * kWidth + c - panel * kWidth];
      }
    });
    P_ = std::move(P);
    C_ = C_(left, Eigen::all).eval();
    std::vector<Index> position(n);
    std::transform(left.begin(), left.end(), position.begin(), [&](Index j) { return position_[j]; });
    position_ = std::move(position);
  }

  Workers& workers_;
  Matrix<double> P_, C_;  // [n, n], [n, d_v] of n tokens
  std::vector<Index> position_;
  // Changes by the evictions since the ranks were closed.
  Vector<double> diagonal_, value_sq_;
  std::vector<char> gone_;
  Matrix<double> U_;  // [n, evictions]: G^-1 less U U^T is that over what is left
};

}  // namespace

QueryRows<double> leverage_rows(const HeadGroup<double>& group) {
  constexpr Index kQueries = 4096;
  return reference_queries(group,
                           {.kind = Reference::shifted, .most = std::max<Index>(kQueries / group.G(), 1)});
}

std::optional<std::string> why_no_leverage(const Dump& dump) {
  const DumpShape& shape = dump.shape();
  if (shape.l > kMostLeverageTokens)
    return std::string("it solves for every token of the prompt, at most ")
        .append(std::to_string(kMostLeverageTokens));
  return why_no_reference(dump, Reference::shifted);
}

Vector<double> leverage(const HeadGroup<double>& group, Workers& workers) {
  if (group.l == 0) return {};
  const auto factor = inverse_factor(group, 0, workers);
  if (!factor) return Vector<double>::Zero(group.l);
  const Vector<double> inverse = factor->colwise().squaredNorm().transpose();
  return group.v.topRows(group.l).rowwise().squaredNorm().cwiseQuotient(inverse);
}

GreedyPath greedy_leverage(const HeadGroup<double>& group, Index keep, Workers& workers) {
  GreedyPath path;
  const Index begin = group.first_held(), n = group.held();
  if (keep >= n) return path;
  const auto factor = inverse_factor(group, begin, workers);
  if (!factor) {
    for (Index p = n - 1; p >= keep; --p) path.evicted.push_back(begin + p);
    path.error.assign(path.evicted.size(), 0.0);
    return path;
  }
  const auto rows_of = [&](Index first, Index count) -> Matrix<double> {
    return factor->middleRows(first, count);
  };
  Elimination left(gram_of_rows(n, n, rows_of, workers), group.v.middleRows(begin, n), workers);
  while (std::ssize(path.evicted) < n - keep) {
    if (workers.stopping()) throw Interrupted{};
    left.evict(std::min(kBlockOfEvictions, n - keep - std::ssize(path.evicted)), path);
  }
  for (Index& p : path.evicted) p += begin;
  return path;
}

}  // namespace kvreplay
