#include "sim/channels/convex_bound.hpp"

#include <Eigen/Cholesky>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <optional>

namespace kvreplay {

namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

/// f and its slopes from x alone.
void evaluate(const SubsetProblem& convex, Tangent& t) {
  t.slope.noalias() = convex.A * t.x;
  t.value = convex.constant + t.x.dot(t.slope + convex.linear);
  t.slope = 2 * t.slope + convex.linear;
}

/// The bound of a tangent, for exact slopes.
void set_bound(Index k, Tangent& t, std::vector<double>& slopes) {
  slopes.assign(t.slope.begin(), t.slope.end());
  const auto kth = slopes.begin() + (k - 1);
  std::nth_element(slopes.begin(), kth, slopes.end());
  t.last_in = *kth;
  t.first_out = *std::min_element(kth + 1, slopes.end());
  const double below = (t.slope.array() - t.last_in).cwiseMin(0).sum();
  t.bound = t.value - t.slope.dot(t.x) + static_cast<double>(k) * t.last_in + below;
}

/// Rounding that a bound may contain: the magnitude of all terms of the slopes' sums, where the channel
/// is in x or among the k of the bound, times the sums' length. |A_ce| <= sqrt(A_cc A_ee) saves the sums over
/// pairs.
double rounding_of(const SubsetProblem& convex, const Tangent& t) {
  double in_x = 0, in_either = 0, single = 0;
  for (Index c = 0; c < convex.m(); ++c) {
    const double size = std::max(convex.size[c], std::sqrt(std::abs(convex.A(c, c))));
    const double either = t.x[c] + (t.slope[c] <= t.last_in ? 1.0 : 0.0);
    in_x += size * t.x[c];
    in_either += size * either;
    single += std::abs(convex.linear[c]) * either;
  }
  const double magnitude = std::abs(convex.constant) + single + 2 * in_x * in_either;
  return 2.0 * static_cast<double>(convex.m() + 8) * std::numeric_limits<double>::epsilon() * magnitude;
}

struct Pair {
  Index up = -1, down = -1;
};

/// The channel with the smallest slope that can rise, and the one that gains most by giving weight to it.
Pair best_pair(const SubsetProblem& convex, const Tangent& t, const Vector<double>& diagonal) {
  Pair pair;
  double least = kInfinity, most = 0;
  for (Index c = 0; c < t.x.size(); ++c) {
    if (t.x[c] >= 1 || t.slope[c] >= least) continue;
    least = t.slope[c];
    pair.up = c;
  }
  if (pair.up < 0) return pair;
  const double* row = convex.A.row(pair.up).data();
  for (Index c = 0; c < t.x.size(); ++c) {
    const double fall = t.slope[c] - least;
    if (t.x[c] <= 0 || fall <= 0) continue;
    const double curvature = diagonal[pair.up] + diagonal[c] - 2 * row[c];
    if (fall * fall <= most * curvature) continue;
    most = fall * fall / std::max(curvature, std::numeric_limits<double>::min());
    pair.down = c;
  }
  return pair;
}

/// The best step along a pair, its ends exactly on the bounds.
void move(const SubsetProblem& convex, Pair pair, Tangent& t) {
  double &up = t.x[pair.up], &down = t.x[pair.down];
  const double fall = t.slope[pair.down] - t.slope[pair.up];
  const double curvature =
      convex.A(pair.up, pair.up) + convex.A(pair.down, pair.down) - 2 * convex.A(pair.up, pair.down);
  const double room = std::min(1 - up, down);
  double step = room;
  if (curvature > 0 && fall < 2 * curvature * room) {
    step = fall / (2 * curvature);
    up += step;
    down -= step;
  } else if (1 - up <= down) {
    up = 1;
    down -= step;
  } else {
    up += step;
    down = 0;
  }
  t.value += step * (step * curvature - fall);
  t.slope += (2 * step) * (convex.A.row(pair.up) - convex.A.row(pair.down)).transpose();
}

}  // namespace

SubsetProblem reduced(const SubsetProblem& problem, const Choices& choices) {
  SubsetProblem left;
  left.taken = problem.taken;
  left.constant = problem.constant;
  left.k = problem.k;
  std::vector<Index> open, in;
  for (Index c = 0; c < problem.m(); ++c) {
    if (choices[c] == Choice::kOpen) open.push_back(c);
    if (choices[c] == Choice::kIn) in.push_back(c);
  }
  const auto m = std::ssize(open);
  left.A.resize(m, m);
  left.linear.resize(m);
  left.size.resize(m);
  for (Index a = 0; a < m; ++a) {
    const double* row = problem.A.row(open[a]).data();
    double linear = problem.linear[open[a]];
    for (const Index c : in) linear += 2 * row[c];
    left.linear[a] = linear;
    left.size[a] = problem.size[open[a]];
    for (Index b = 0; b < m; ++b) left.A(a, b) = row[open[b]];
    left.channel.push_back(problem.channel[open[a]]);
  }
  for (const Index c : in) {
    left.constant += problem.linear[c];
    for (const Index e : in) left.constant += problem.A(c, e);
    left.taken.push_back(problem.channel[c]);
    --left.k;
  }
  return left;
}

Vector<double> feasible(Vector<double> x, Index k) {
  x = x.cwiseMax(0).cwiseMin(1);
  // Twice: the sum of the second round is off by no more than what is left of rounding.
  for (int round = 0; round < 2; ++round) {
    double missing = static_cast<double>(k) - x.sum();
    for (double& entry : x) {
      const double moved = std::clamp(entry + missing, 0.0, 1.0);
      missing -= moved - entry;
      entry = moved;
    }
  }
  return x;
}

Tangent lowest_tangent(const SubsetProblem& convex, Vector<double> x, Until until) {
  constexpr Index kStepsPerBound = 16;
  const Vector<double> diagonal = convex.A.diagonal();
  std::vector<double> slopes;
  Tangent t;
  t.x = std::move(x);
  evaluate(convex, t);
  for (Index step = 0; step < until.most_steps; ++step) {
    if (step % kStepsPerBound == 0) {
      set_bound(convex.k, t, slopes);
      if (t.bound >= until.enough || t.value - t.bound <= until.precision) break;
    }
    const Pair pair = best_pair(convex, t, diagonal);
    if (pair.down < 0) break;
    move(convex, pair, t);
  }
  evaluate(convex, t);
  set_bound(convex.k, t, slopes);
  t.bound -= rounding_of(convex, t);
  return t;
}

bool settle(const Tangent& tangent, double limit, Choices& choices) {
  bool any = false;
  for (Index c = 0; c < tangent.x.size(); ++c) {
    // Taking c makes the last of the k leave; leaving c out lets the first one in.
    if (tangent.slope[c] > tangent.last_in && tangent.bound + (tangent.slope[c] - tangent.last_in) >= limit)
      choices[c] = Choice::kOut;
    else if (tangent.slope[c] < tangent.first_out &&
             tangent.bound + (tangent.first_out - tangent.slope[c]) >= limit)
      choices[c] = Choice::kIn;
    else
      continue;
    any = true;
  }
  return any;
}

Incumbent::Incumbent(const Matrix<double>& H, ChannelSet fixed, const ChannelSet& first)
    : H_(H), fixed_(std::move(fixed)), set_(first) {
  error_ = std::numeric_limits<double>::infinity();
  offer(first);
}

void Incumbent::offer(const ChannelSet& set) {
  std::vector<Index> members;
  for (Index c = 0; c < H_.rows(); ++c)
    if (set[c] != 0) members.push_back(c);
  const auto sum_of = [&](auto&& entry) {
    double sum = 0;
    for (std::size_t i = 0; i < members.size(); ++i) {
      const double* row = H_.row(members[i]).data();
      double above = 0;
      for (std::size_t j = 0; j < i; ++j) above += entry(row[members[j]]);
      sum += entry(row[members[i]]) + 2 * above;
    }
    return sum;
  };
  const double error = sum_of([](double x) { return x; });
  if (!(error < error_)) return;
  set_ = set;
  error_ = error;
  limit_ = error - 1e-11 * sum_of([](double x) { return std::abs(x); });
}

ChannelSet Incumbent::offer_rounded(const SubsetProblem& problem, const Vector<double>& x) {
  std::vector<Index> order(problem.m());
  std::iota(order.begin(), order.end(), Index{0});
  std::stable_sort(order.begin(), order.end(), [&](Index a, Index b) { return x[a] > x[b]; });
  ChannelSet set(H_.rows(), 0);
  for (const Index c : problem.taken) set[c] = 1;
  for (Index i = 0; i < problem.k; ++i) set[problem.channel[order[i]]] = 1;
  offer(set);
  return set;
}

void Incumbent::offer_closed(const SubsetProblem& problem) {
  if (problem.k < 0 || problem.k > problem.m()) return;
  offer_rounded(problem, Vector<double>::Zero(problem.m()));
}

void Incumbent::offer_exchanged(const ChannelSet& set) {
  offer(set);
  offer(exchange_channels(H_, set, fixed_));
}

SubsetProblem whole_problem(const Matrix<double>& H, Index n, const ChannelSet& fixed) {
  SubsetProblem problem;
  for (Index c = 0; c < H.rows(); ++c)
    if (fixed.empty() || fixed[c] == 0) problem.channel.push_back(c);
  problem.A = H(problem.channel, problem.channel);
  problem.linear = Vector<double>::Zero(problem.A.rows());
  problem.k = n;
  const double mean = problem.A.trace() / static_cast<double>(std::max<Index>(problem.m(), 1));
  problem.size = (problem.A.diagonal().array().abs() + 1e-30 * mean).sqrt();
  return problem;
}

double row_bound(const SubsetProblem& problem) {
  std::vector<double> parts, others;
  for (Index c = 0; c < problem.m(); ++c) {
    others.assign(problem.A.row(c).begin(), problem.A.row(c).end());
    others.erase(others.begin() + c);
    std::nth_element(others.begin(), others.begin() + (problem.k - 1), others.end());
    double part = problem.A(c, c) + problem.linear[c];
    for (Index i = 0; i + 1 < problem.k; ++i) part += others[i];
    parts.push_back(part);
  }
  std::sort(parts.begin(), parts.end());
  double bound = problem.constant;
  for (Index i = 0; i < problem.k; ++i) bound += parts[i];
  return bound;
}

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

namespace {

/// n channels, none of them fixed.
bool is_choice(const ChannelSet& set, Index n, const ChannelSet& fixed, Index d) {
  if (std::ssize(set) != d) return false;
  Index members = 0;
  for (std::size_t c = 0; c < set.size(); ++c) {
    if (set[c] == 0) continue;
    if (!fixed.empty() && fixed[c] != 0) return false;
    ++members;
  }
  return members == n;
}

/// The bound, after `best` has become the best set found.
double bound_of(const Matrix<double>& H, Index n, const ChannelSet& fixed, const ChannelSet& start,
                Incumbent& best) {
  const SubsetProblem problem = whole_problem(H, n, fixed);
  if (best.limit() <= 0 || problem.closed()) return best.limit();
  best.offer_exchanged(best.set());
  if (is_choice(start, n, fixed, H.rows())) best.offer_exchanged(start);
  const double by_rows = row_bound(problem);
  if (by_rows >= best.limit()) return best.limit();
  const ConvexProblem root = convexified(problem, best);
  if (root.convex.closed()) {
    best.offer_closed(root.convex);
    return best.limit();
  }
  return std::max(by_rows, root.bound);
}

}  // namespace

BoundedSubset bounded_subset(const Matrix<double>& H, Index n, const ChannelSet& fixed,
                             const ChannelSet& start) {
  const std::vector<Index> order = greedy_order(H, fixed);
  n = std::clamp<Index>(n, 0, std::ssize(order));
  BoundedSubset found;
  found.set = first_of(order, n, H.rows());

  // By a power of 2, so that no unit of H matters to the search.
  const double largest = H.size() == 0 ? 0 : H.cwiseAbs().maxCoeff();
  int exponent = 0;
  if (std::isfinite(largest)) std::frexp(largest, &exponent);
  const Matrix<double> scaled = H * std::ldexp(1.0, -exponent);
  Incumbent best(scaled, fixed, found.set);
  const double bound = bound_of(scaled, n, fixed, start, best);

  found.set = best.set();
  found.error = subset_error(H, found.set);
  found.proven = bound >= best.limit();
  found.lower_bound =
      found.proven ? found.error : std::min(found.error, std::max(0.0, std::ldexp(bound, exponent)));
  return found;
}

}  // namespace kvreplay
