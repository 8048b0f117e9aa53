#include "sim/channels/subset_search.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

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

/// What rounding may have added to a bound: the magnitude of all terms of the slopes' sums, where the channel
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

}  // namespace kvreplay
