#include "sim/channels/subset_search.hpp"

#include <Eigen/Cholesky>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <optional>

namespace kvreplay {

namespace {

/// A problem with a shifted diagonal, proven convex.
struct Shifted {
  SubsetProblem convex;
  Eigen::LLT<Eigen::MatrixXd> factor;  ///< of A - Diag(u) + lift e e'
  double log_determinant = 0;          ///< of A - Diag(u) on the changes that keep the sum of x
};

/// A weight of the size that most channels have: a few large ones must not drown the others in rounding.
double lift_of(const SubsetProblem& problem) {
  Vector<double> squares = problem.size.cwiseAbs2();
  const auto middle = squares.begin() + problem.m() / 2;
  std::nth_element(squares.begin(), middle, squares.end());
  return *middle;
}

/// Adding lift e e' changes nothing where the sum of x does not change, and lets a Cholesky factor tell
/// whether the rest is positive definite. Its rounding is given away on the diagonal.
std::optional<Shifted> shifted(const SubsetProblem& problem, const Vector<double>& u) {
  const Index m = problem.m();
  const double lift = lift_of(problem);
  Shifted s;
  s.convex = problem;
  s.convex.A.diagonal() -= u;
  s.factor.compute((s.convex.A.array() + lift).matrix());
  if (s.factor.info() != Eigen::Success) return std::nullopt;
  const double rounding = 2.0 * static_cast<double>(m + 8) * std::numeric_limits<double>::epsilon();
  const Vector<double> given = rounding * (s.convex.A.diagonal().array().abs() + lift);
  s.convex.A.diagonal() += given;
  s.convex.linear += u - given;
  const Eigen::VectorXd ones = Eigen::VectorXd::Ones(m);
  const double along = ones.dot(s.factor.solve(ones));
  s.log_determinant = 2 * s.factor.matrixLLT().diagonal().array().log().sum() + std::log(along);
  return s;
}

/// The first shift: a part of every diagonal entry, more where A is not positive semidefinite. A channel
/// loses u^2 / (4 A_cc) at most, of which that of the large ones is kept to their share of the error.
Vector<double> first_shift(const SubsetProblem& problem, double error) {
  const double each = error / static_cast<double>(problem.m());
  const Vector<double> squares = problem.size.array().square() + 1e-12 * lift_of(problem);
  const Vector<double> part = squares.cwiseMin((each * squares.array()).sqrt().matrix());
  for (const double share : {0.125, 0.5, 2.0}) {
    Vector<double> u = -share * part;
    if (shifted(problem, u)) return u;
  }
  return -problem.A.cwiseAbs().rowwise().sum() - squares;
}

/// The inverse of A - Diag(u) on the changes that keep the sum of x, 0 along e: [m, m].
Eigen::MatrixXd inverse_of(const Shifted& s) {
  const Index m = s.convex.m();
  Eigen::MatrixXd inverse = s.factor.solve(Eigen::MatrixXd::Identity(m, m));
  const Eigen::VectorXd along = inverse.rowwise().sum();
  inverse.noalias() -= along * (along / along.sum()).transpose();
  return inverse;
}

/// The Newton step of u. The slope of the tangent's value is x - x^2. Its curvature is taken as if no channel
/// were held at 0 or 1: those that are held at u may come loose at u + step.
std::optional<Vector<double>> newton_step(const Shifted& s, const Vector<double>& x, double mu) {
  const Eigen::MatrixXd inverse = inverse_of(s);
  const Eigen::VectorXd slant = 1 - 2 * x.array();
  const Eigen::VectorXd slope = x.array() * (1 - x.array()) - mu * inverse.diagonal().array();
  Eigen::MatrixXd curvature =
      inverse.array() * (mu * inverse.array() + 0.5 * (slant * slant.transpose()).array());
  curvature.diagonal() *= 1 + 1e-10;
  const Eigen::LLT<Eigen::MatrixXd> factor(curvature);
  if (factor.info() != Eigen::Success) return std::nullopt;
  return factor.solve(slope);
}

Tangent tangent_of(const SubsetProblem& convex, Vector<double> x, double enough, double precision) {
  constexpr Index kStepsPerChannel = 30;
  return lowest_tangent(
      convex, std::move(x),
      {.enough = enough, .precision = precision, .most_steps = kStepsPerChannel * convex.m()});
}

struct Search {
  SubsetProblem problem;
  Vector<double> u;
  Shifted at_u;
  Tangent tangent;
};

/// Goes part of a step, as far as it helps. The part, or 0.
double advance(Search& search, const Vector<double>& step, double mu, double enough) {
  const double precision = 0.02 * mu * static_cast<double>(search.problem.m());
  const double before = search.tangent.value + mu * search.at_u.log_determinant;
  for (double part = 1; part > 0.02; part *= 0.6) {
    const Vector<double> u = search.u + part * step;
    std::optional<Shifted> next = shifted(search.problem, u);
    if (!next) continue;
    Tangent tangent = tangent_of(next->convex, search.tangent.x, enough, precision);
    if (tangent.bound < enough && tangent.value + mu * next->log_determinant < before - precision) continue;
    search.u = u;
    search.at_u = std::move(*next);
    search.tangent = std::move(tangent);
    return part;
  }
  return 0;
}

/// Takes the settled channels out of the problem. False where that closes it.
bool shrink(Search& search, const Choices& choices, double enough) {
  std::vector<Index> open;
  for (Index c = 0; c < search.problem.m(); ++c)
    if (choices[c] == Choice::kOpen) open.push_back(c);
  search.problem = reduced(search.problem, choices);
  if (search.problem.closed()) return false;
  const Vector<double> u = search.u(open);
  search.u = u;
  std::optional<Shifted> next = shifted(search.problem, search.u);
  for (double by = 1e-14; !next; by *= 10) {  // a principal part is positive semidefinite, but for rounding
    search.u -= by * (search.problem.size.cwiseAbs2() + search.u.cwiseAbs());
    next = shifted(search.problem, search.u);
  }
  const Vector<double> x = search.tangent.x(open);
  search.at_u = std::move(*next);
  const double precision = 0.1 * (search.tangent.value - search.tangent.bound);
  search.tangent = tangent_of(search.at_u.convex, feasible(x, search.problem.k), enough, precision);
  return true;
}

}  // namespace

ConvexProblem convexified(SubsetProblem problem, Incumbent& best) {
  constexpr int kMostSteps = 14;
  constexpr double kStalled = 0.01;  // of the gap
  Search search;
  search.u = first_shift(problem, best.error());
  const Index m = problem.m();
  Vector<double> x(m);
  for (Index c = 0; c < m; ++c) x[c] = best.set()[problem.channel[c]];
  search.problem = std::move(problem);
  search.at_u = *shifted(search.problem, search.u);
  search.tangent = tangent_of(search.at_u.convex, x, best.limit(), 0.001 * best.error());
  double bound = search.tangent.bound, part = 0;
  double mu = (best.error() - std::max(bound, 0.0)) / static_cast<double>(m);
  for (int step = 0; step < kMostSteps && bound < best.limit(); ++step) {
    Choices choices(search.problem.m(), Choice::kOpen);
    if (settle(search.tangent, best.limit(), choices) && !shrink(search, choices, best.limit())) break;
    mu *= part >= 0.9 ? 0.1 : part >= 0.5 ? 0.3 : part >= 0.2 ? 0.6 : 1.0;
    const std::optional<Vector<double>> newton = newton_step(search.at_u, search.tangent.x, mu);
    part = newton ? advance(search, *newton, mu, best.limit()) : 0;
    if (part == 0) break;
    best.offer_exchanged(best.offer_rounded(search.problem, search.tangent.x));
    const double gain = search.tangent.bound - bound;
    bound = std::max(bound, search.tangent.bound);
    if (step > 3 && gain < kStalled * (best.limit() - bound)) break;
  }
  return {search.problem.closed() ? search.problem : search.at_u.convex, search.tangent, bound};
}

}  // namespace kvreplay
