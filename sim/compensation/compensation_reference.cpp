#include "sim/compensation/compensate.hpp"
#include "sim/tokens/leverage.hpp"

#include <Eigen/Dense>

#include <algorithm>
#include <cmath>
#include <limits>

namespace kvreplay {
namespace {

/// Weights of a query's softmax over some of the prompt's tokens and the sink column, each token's numerator
/// times its weight: [tokens].
Vector<double> weights_over(const HeadGroup<double>& group, const QueryRows<double>& rows, Index r,
                            const std::vector<Index>& tokens, const Vector<double>& times) {
  constexpr double kHidden = -std::numeric_limits<double>::infinity();
  Vector<double> z = Vector<double>::Constant(std::ssize(tokens), kHidden);
  for (Index j = 0; j < z.size(); ++j) {
    const Index p = tokens[j];
    if (p < rows.visible[r].begin || p >= rows.visible[r].end || times[j] == 0) continue;
    z[j] = group.rule.scale * rows.q.row(r).dot(group.k.row(p));
    if (group.rule.softcap) z[j] = *group.rule.softcap * std::tanh(z[j] / *group.rule.softcap);
    z[j] += std::log(times[j]);
  }
  const double sink = group.sink(rows.head[r]), top = std::max(z.maxCoeff(), sink);
  if (top == kHidden) return Vector<double>::Zero(z.size());
  const Vector<double> e = (z.array() - top).exp();
  return e / (e.sum() + std::exp(sink - top));
}

/// argmin over w >= 0 of w^T H w / 2 - f^T w, one coordinate after the other until none moves.
Vector<double> by_coordinates(const Matrix<double>& H, const Vector<double>& f) {
  Vector<double> w = Vector<double>::Ones(f.size());
  for (int sweep = 0; sweep < 100000; ++sweep) {
    double moved = 0;
    for (Index p = 0; p < w.size(); ++p) {
      const double next = std::max(0.0, w[p] - (H.row(p).dot(w) - f[p]) / H(p, p));
      moved = std::max(moved, std::abs(next - w[p]));
      w[p] = next;
    }
    if (moved < 1e-14) break;
  }
  return w;
}

}  // namespace

Compensated compensated_reference(const HeadGroup<double>& group, const KeptSet& kept, Compensation method,
                                  const QueryRows<double>& rows, double lambda, double mu) {
  Compensated held;
  held.tokens = positions(kept);
  held.lambda = lambda;
  held.mu = mu;
  const Index m = std::ssize(held.tokens), n = rows.count();
  const auto all = positions(KeptSet(static_cast<std::size_t>(group.l), 1));
  const auto rows_over = [&](const std::vector<Index>& tokens, const Vector<double>& times) {
    Matrix<double> X(n, std::ssize(tokens));
    for (Index r = 0; r < n; ++r) X.row(r) = weights_over(group, rows, r, tokens, times).transpose();
    return X;
  };
  const Matrix<double> a = rows_over(all, Vector<double>::Ones(group.l));
  const Matrix<double> own = group.v(held.tokens, Eigen::all);
  const Matrix<double> I = Matrix<double>::Identity(m, m);
  Vector<double> w = Vector<double>::Ones(m);
  if (kCompensations[method].fits_mass) {
    const Matrix<double> X = a(Eigen::all, held.tokens), A = X.transpose() * X;
    const double ridge = lambda * A.diagonal().mean();
    const Vector<double> f = X.transpose() * a.rowwise().sum() + Vector<double>::Constant(m, ridge);
    w = by_coordinates(A + ridge * I, f).cwiseMax(1e-3);
    held.bias = w.array().log();
  }
  held.values = own;
  if (kCompensations[method].fits_values) {
    const Matrix<double> X = rows_over(held.tokens, w), A = X.transpose() * X;
    const Matrix<double> lacking = a * group.v.topRows(group.l) - X * own;
    held.values += (A + mu * A.diagonal().mean() * I).ldlt().solve(X.transpose() * lacking);
  }
  return held;
}

Matrix<double> reference_weights(const HeadGroup<double>& group, const QueryRows<double>& rows) {
  const auto every = positions(KeptSet(static_cast<std::size_t>(group.l), 1));
  Matrix<double> X(rows.count(), group.l);
  for (Index r = 0; r < rows.count(); ++r)
    X.row(r) = weights_over(group, rows, r, every, Vector<double>::Ones(group.l)).transpose();
  return X;
}

Vector<double> leverage_reference(const HeadGroup<double>& group) {
  const Matrix<double> X = reference_weights(group, leverage_rows(group));
  const Matrix<double> XX = X.transpose() * X;
  const Index l = group.l;
  Vector<double> found = Vector<double>::Zero(l);
  const double mu = kLeverageRidge * XX.trace() / static_cast<double>(l);
  if (mu == 0) return found;
  for (Index p = 0; p < l; ++p) {
    std::vector<Index> others;
    for (Index j = 0; j < l; ++j)
      if (j != p) others.push_back(j);
    Matrix<double> G = XX(others, others);
    G.diagonal().array() += mu;
    const Vector<double> g = XX(others, p);
    found[p] = group.v.row(p).squaredNorm() * (XX(p, p) + mu - g.dot(G.ldlt().solve(g)));
  }
  return found;
}

}  // namespace kvreplay
