#include "sim/channels/convex_bound.hpp"

#include "tests/sim/channel_cases.hpp"
#include "tests/support/catch.hpp"

#include <Eigen/Eigenvalues>

#include <bit>
#include <cmath>
#include <limits>
#include <random>

using namespace kvreplay;
using namespace kvreplay::test;

namespace {

/// The smallest error of n channels outside `fixed` for every n: [d + 1]. All 2^d sets, in Gray's order, so
/// that each differs from the last in one channel; infinite where there is none.
std::vector<double> exhaustive(const Matrix<double>& H, const ChannelSet& fixed) {
  const Index d = H.rows();
  std::vector<double> best(d + 1, std::numeric_limits<double>::infinity());
  Vector<double> x = Vector<double>::Zero(d), Hx = x;
  double error = 0;
  std::uint32_t forbidden = 0, set = 0;
  for (Index c = 0; c < d; ++c) forbidden |= holds(fixed, c) ? std::uint32_t{1} << c : 0;
  best[0] = 0;
  for (std::uint32_t i = 1; i < std::uint32_t{1} << d; ++i) {
    const auto c = static_cast<Index>(std::countr_zero(i));
    set ^= std::uint32_t{1} << c;
    const double sign = x[c] == 0 ? 1 : -1;
    error += sign * 2 * Hx[c] + H(c, c);
    x[c] += sign;
    Hx += sign * H.col(c);
    if ((set & forbidden) != 0) continue;
    double& least = best[std::popcount(set)];
    least = std::min(least, error);
  }
  return best;
}

void check_set(const ChannelSet& set, Index n, const ChannelSet& fixed) {
  Index members = 0;
  for (Index c = 0; c < std::ssize(set); ++c) {
    CHECK_FALSE((holds(set, c) && holds(fixed, c)));
    members += holds(set, c);
  }
  CHECK(members == n);
}

}  // namespace

TEST_CASE("no set is below the bound, and most bounds reach the best set", "[channel_bound]") {
  int beats_exchange = 0, proven = 0, all = 0;
  double worst_gap = 0;
  for (const ChannelSpec& spec : channel_specs({1, 2, 3, 5, 8, 11, 13, 16})) {
    const Matrix<double> H = channel_matrix(spec);
    const double rounding = 1e-11 * H.cwiseAbs().sum();
    for (const Index n_fixed : {Index{0}, spec.d / 4}) {
      const ChannelSet fixed = random_channels(spec.d, n_fixed, spec.seed);
      const std::vector<double> best = exhaustive(H, fixed);
      for (Index n = 0; n <= spec.d - n_fixed; ++n) {
        INFO(name_of(spec) << ", fixed " << n_fixed << ", n " << n);
        const BoundedSubset found = bounded_subset(H, n, fixed, {});
        check_set(found.set, n, fixed);
        CHECK(found.error == subset_error(H, found.set));
        CHECK(found.lower_bound <= best[n] + rounding);
        CHECK(found.lower_bound >= 0);
        if (n > 0) CHECK(row_bound(whole_problem(H, n, fixed)) <= best[n] + rounding);
        if (found.proven) {
          CHECK(found.lower_bound == found.error);
          CHECK(std::abs(found.error - best[n]) <= rounding);
        }
        const ChannelSet greedy = first_of(greedy_order(H, fixed), n, spec.d);
        const double exchanged = subset_error(H, exchange_channels(H, greedy, fixed));
        CHECK(found.error <= exchanged);
        beats_exchange += exchanged > found.error + 1e-6 * H.cwiseAbs().sum();
        proven += found.proven;
        ++all;
        // The bound says little at rank 6, and if an odd number of pairs cancel.
        if (spec.keys > 3 && !spec.cancel && best[n] > 0)
          worst_gap = std::max(worst_gap, 1 - found.lower_bound / best[n]);
      }
    }
  }
  CHECK(beats_exchange > 3);
  CHECK(proven > 0.7 * all);
  CHECK(proven < all);
  CHECK(worst_gap < 0.35);
}

TEST_CASE("a tangent bounds every set from below, and what it settles is right", "[channel_bound]") {
  std::mt19937_64 bits(3);
  int settled_any = 0;
  for (const ChannelSpec& spec : channel_specs({10})) {
    SubsetProblem problem = whole_problem(channel_matrix(spec), 4, {});
    const std::vector<double> best = exhaustive(problem.A, {});
    for (int trial = 0; trial < 20; ++trial) {
      Vector<double> x(spec.d);
      for (double& entry : x) entry = std::ldexp(static_cast<double>(bits() >> 11), -53);
      x = feasible(x, 4);
      REQUIRE(x.minCoeff() >= 0);
      REQUIRE(x.maxCoeff() <= 1);
      REQUIRE(std::abs(x.sum() - 4) < 1e-14);
      // H itself is convex: no shift, and few steps or many.
      const double far = std::numeric_limits<double>::infinity();
      const Tangent t = lowest_tangent(
          problem, x, {.enough = far, .precision = 0, .most_steps = trial % 2 == 0 ? 0 : 1000});
      CHECK(t.bound <= best[4]);
      CHECK(t.value >= t.bound);
      CHECK(std::abs(t.value - t.x.dot(problem.A * t.x)) <= 1e-13 * problem.A.cwiseAbs().sum());
      const double limit = best[4] * 1.001;
      Choices choices(static_cast<std::size_t>(spec.d), Choice::kOpen);
      if (!settle(t, limit, choices)) continue;
      ++settled_any;
      for (std::uint32_t set = 0; set < std::uint32_t{1} << spec.d; ++set) {
        if (std::popcount(set) != 4) continue;
        std::vector<Index> members;
        bool agrees = true;
        for (Index c = 0; c < spec.d; ++c) {
          const bool in = (set >> c & 1U) != 0;
          if (in) members.push_back(c);
          agrees = agrees && choices[c] != (in ? Choice::kOut : Choice::kIn);
        }
        CHECK((agrees || naive_error(problem.A, members) >= limit * (1 - 1e-12)));
      }
    }
  }
  CHECK(settled_any > 10);
}

TEST_CASE("a shifted problem is convex and keeps the error of every set", "[channel_bound]") {
  int shifted_up = 0;
  for (const ChannelSpec& spec : channel_specs({11, 40})) {
    const Matrix<double> H = channel_matrix(spec);
    const Index n = spec.d / 2;
    const ChannelSet greedy = first_of(greedy_order(H, {}), n, spec.d);
    Incumbent best(H, {}, exchange_channels(H, greedy, {}));
    const SubsetProblem convex = convexified(whole_problem(H, n, {}), best).convex;
    if (convex.closed()) continue;
    INFO(name_of(spec) << ", open " << convex.m());
    for (const std::uint64_t seed : {1, 2, 3}) {
      const ChannelSet chosen = random_channels(convex.m(), convex.k, seed);
      Vector<double> x(convex.m());
      std::vector<Index> members = convex.taken;
      for (Index i = 0; i < convex.m(); ++i) {
        x[i] = holds(chosen, i) ? 1 : 0;
        if (holds(chosen, i)) members.push_back(convex.channel[i]);
      }
      const double error = convex.constant + convex.linear.dot(x) + x.dot(convex.A * x);
      CHECK(std::abs(error - naive_error(H, members)) <= 1e-10 * H(members, members).cwiseAbs().sum());
    }
    // On the changes that keep the sum of x: e is moved out of the way.
    const Index m = convex.m();
    const Eigen::MatrixXd keep =
        Eigen::MatrixXd::Identity(m, m) - Eigen::MatrixXd::Constant(m, m, 1.0 / static_cast<double>(m));
    const Eigen::SelfAdjointEigenSolver<Eigen::MatrixXd> eigen(keep * convex.A * keep,
                                                               Eigen::EigenvaluesOnly);
    CHECK(eigen.eigenvalues()[0] >= -1e-12 * convex.A.cwiseAbs().sum());
    for (Index i = 0; i < m; ++i) {
      const Index c = convex.channel[i];
      shifted_up += convex.A(i, i) < H(c, c);
    }
  }
  CHECK(shifted_up > 20);
}

TEST_CASE("a reduced problem gives the errors of the whole one", "[channel_bound]") {
  const SubsetProblem whole = whole_problem(channel_matrix({.d = 7, .seed = 8}), 4, {0, 0, 1, 0, 0, 0, 0});
  REQUIRE(whole.channel == std::vector<Index>{0, 1, 3, 4, 5, 6});
  using enum Choice;
  const SubsetProblem once = reduced(whole, {kOpen, kIn, kOpen, kOut, kOpen, kOpen});
  const SubsetProblem twice = reduced(once, {kIn, kOpen, kOpen, kOpen});
  CHECK(twice.taken == std::vector<Index>{1, 0});
  CHECK(twice.channel == std::vector<Index>{3, 5, 6});
  CHECK(twice.k == 2);
  const Vector<double> x = Vector<double>::Unit(3, 0) + Vector<double>::Unit(3, 2);
  const double error = twice.constant + twice.linear.dot(x) + x.dot(twice.A * x);
  const Matrix<double> H = channel_matrix({.d = 7, .seed = 8});
  CHECK(error == Approx(naive_error(H, {1, 0, 3, 6})).epsilon(1e-13));
}

TEST_CASE("half of many channels has a bound near the error", "[channel_bound]") {
  const Index d = 128;
  for (const ChannelSpec& spec : channel_specs({d})) {
    const Matrix<double> H = channel_matrix(spec);
    INFO(name_of(spec));
    const ChannelSet start = first_of(ascending_order(H.diagonal(), {}), d / 2, d);
    const BoundedSubset half = bounded_subset(H, d / 2, {}, start);
    check_set(half.set, d / 2, {});
    CHECK(half.lower_bound <= half.error);
    CHECK(half.lower_bound >= 0);
    if (spec.seed == 1) CHECK(half.lower_bound > 0.94 * half.error);
    CHECK(half.error <= subset_error(H, exchange_channels(H, start, {})));
    const ChannelSet greedy = first_of(greedy_order(H, {}), d / 2, d);
    CHECK(half.error <= subset_error(H, exchange_channels(H, greedy, {})));
    if (spec.keys > 3) CHECK(half.lower_bound > 0.7 * half.error);
    const BoundedSubset again = bounded_subset(H, d / 2, {}, start);
    CHECK(again.set == half.set);
    CHECK(again.lower_bound == half.lower_bound);
  }
}

TEST_CASE("no scale changes the best subset", "[channel_bound]") {
  for (const Index d : {9, 30})
    for (const ChannelSpec& spec : channel_specs({d})) {
      const Matrix<double> H = channel_matrix(spec);
      const BoundedSubset want = bounded_subset(H, d / 2, {}, {});
      for (const int exponent : {-100, 100}) {
        const BoundedSubset got = bounded_subset(H * std::ldexp(1.0, exponent), d / 2, {}, {});
        INFO(name_of(spec) << ", exponent " << exponent);
        CHECK(got.set == want.set);
        CHECK(got.proven == want.proven);
        CHECK(got.lower_bound == std::ldexp(want.lower_bound, exponent));
      }
    }
}

TEST_CASE("matrices without a choice to make are proven", "[channel_bound]") {
  for (const Index d : {1, 5, 40}) {
    for (const Index n : {Index{0}, Index{1}, d / 2, d, d + 3}) {
      INFO("d " << d << ", n " << n);
      const auto size = static_cast<double>(std::min(n, d));
      const BoundedSubset zero = bounded_subset(Matrix<double>::Zero(d, d), n, {}, {});
      CHECK(zero.proven);
      CHECK(zero.error == 0);
      const BoundedSubset even = bounded_subset(Matrix<double>::Constant(d, d, 1e30), n, {}, {});
      CHECK(even.proven);
      CHECK(even.error == Approx(1e30 * size * size));
      const BoundedSubset alike = bounded_subset(1e-30 * Matrix<double>::Identity(d, d), n, {}, {});
      CHECK(alike.proven);
      CHECK(alike.error == Approx(1e-30 * size));
      check_set(alike.set, std::min(n, d), {});
    }
    const ChannelSet all(static_cast<std::size_t>(d), 1);
    CHECK(bounded_subset(Matrix<double>::Identity(d, d), 1, all, {}).set == ChannelSet(all.size(), 0));
  }
  CHECK(bounded_subset(Matrix<double>(0, 0), 2, {}, {}).set.empty());
}

TEST_CASE("a channel of 1e8 times the others' size leaves them exact", "[channel_bound]") {
  for (const Index d : {14, 26}) {
    const Index n = d / 2;
    Matrix<double> H = channel_matrix({.d = d, .mean = 0.3, .seed = 21});
    H.row(d - 1) *= 1e8;
    H.col(d - 1) *= 1e8;
    ChannelSet fixed(static_cast<std::size_t>(d), 0);
    fixed.back() = 1;
    const BoundedSubset want = bounded_subset(H.topLeftCorner(d - 1, d - 1), n, {}, {});
    CHECK(bounded_subset(H, n, {}, {}).set.back() == 0);
    CHECK(bounded_subset(H, n, fixed, {}).error == want.error);
  }
}

TEST_CASE("a start that is no such set is not used", "[channel_bound]") {
  const Matrix<double> H = channel_matrix({.d = 30, .seed = 2});
  const ChannelSet fixed = random_channels(30, 5, 1);
  const BoundedSubset want = bounded_subset(H, 12, fixed, {});
  for (const ChannelSet& start : {random_channels(30, 11, 2), fixed, ChannelSet(3, 1)}) {
    const BoundedSubset got = bounded_subset(H, 12, fixed, start);
    check_set(got.set, 12, fixed);
    CHECK(got.set == want.set);
    CHECK(got.lower_bound == want.lower_bound);
  }
}
