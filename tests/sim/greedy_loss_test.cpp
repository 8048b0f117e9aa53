#include "data/error.hpp"
#include "sim/eviction/exact/greedy.hpp"
#include "sim/loss/change_loss.hpp"
#include "tests/sim/greedy_checks.hpp"
#include "tests/support/catch.hpp"
#include "tests/support/kept_changes.hpp"
#include "tests/support/random_group.hpp"

#include <algorithm>
#include <bit>
#include <cmath>
#include <random>
#include <string>
#include <vector>

// Searches by loss: the laws of greedy_test.cpp with gradients, and what gradients add.

using namespace kvreplay;
using namespace kvreplay::test;

namespace {

/// Gradients of both row sets of a group.
struct GradientRows {
  RowRange rows;
  const RowGradients<double>* gradients;
};
std::vector<GradientRows> gradient_rows_of(const HeadGroup<double>& group, Index window) {
  std::vector<GradientRows> all;
  const std::vector<RowRange> sets = row_sets(group, window);
  for (const auto& [rows, gradients] : {std::pair{sets[0], &group.g_window}, {sets[1], &group.g_future}})
    if (rows.count() > 0) all.push_back({rows, gradients});
  return all;
}

/// Calls body(group, rows, gradients) for every case, with 1, 3 and 9 samples in turn.
template <class Body>
void for_cases(std::uint64_t seed, Body body) {
  Index samples = 1;
  for (GreedyCase c : greedy_cases()) {
    c.spec.samples = samples;
    samples = samples == 9 ? 1 : 3 * samples;
    const HeadGroup<double> group = group_of(c, seed);
    for (const auto& [rows, gradients] : gradient_rows_of(group, c.window)) {
      INFO(c.name << ", rows " << rows.begin << " to " << rows.end << ", samples " << c.spec.samples);
      body(group, rows, *gradients);
    }
  }
}

/// Such that the loss of every change is its squared norm: S = d_v, each sample along a channel.
RowGradients<double> identity_gradients(const HeadGroup<double>& group, RowRange rows) {
  const Index S = group.d_v(), n = rows.count();
  RowGradients<double> identity{rows, S, {}};
  for (Index g = 0; g < group.G(); ++g) {
    identity.g.push_back(Matrix<double>::Zero(S * n, S));
    for (Index s = 0; s < S; ++s)
      identity.g.back().block(s * n, s, n, 1).setConstant(std::sqrt(2 * static_cast<double>(S)));
  }
  return identity;
}

/// What a path evicts, those in order of position that go while the reference's losses are below 1e-30:
/// there its difference of two weights near 1 is rounding.
std::vector<Index> told_apart(const GreedyPath& path, const GreedyPath& reference) {
  std::vector<Index> evicted = path.evicted;
  const auto first =
      std::find_if(reference.error.begin(), reference.error.end(), [](double loss) { return loss > 1e-30; });
  std::sort(evicted.begin(), evicted.begin() + (first - reference.error.begin()));
  return evicted;
}

KeptSet subset(Index l, unsigned bits) {
  KeptSet kept;
  for (Index p = 0; p < l; ++p) kept.push_back(bits >> p & 1);
  return kept;
}

}  // namespace

TEST_CASE("the loss and every change of one token stay right while all leave and return", "[greedy][loss]") {
  Workers workers(1);
  std::mt19937_64 bits(9);
  for_cases(21, [&](const HeadGroup<double>& group, RowRange rows, const RowGradients<double>& gradients) {
    const SetErrorJudge judge(group, rows, &gradients);
    const KeptSet all(static_cast<std::size_t>(group.l), 1);
    ExactError state(group, rows, all, true, workers, &gradients);
    check_leave_and_return(state, judge, group, bits, check_neighbours);
  });
}

TEST_CASE("greedy_loss takes the best token at every step, as the reference does", "[greedy][loss]") {
  Workers workers(1);
  for_cases(7, [&](const HeadGroup<double>& group, RowRange rows, const RowGradients<double>& gradients) {
    const GreedyPath path = greedy_loss(group, gradients, rows, 0, workers);
    CHECK(std::ssize(path.evicted) == group.held());
    check_path(path, group, rows, 1, &gradients);
    const GreedyPath want = greedy_loss_reference(group, gradients, rows, 0);
    check_path(want, group, rows, 1, &gradients);
    CHECK(told_apart(path, want) == told_apart(want, want));
  });
}

TEST_CASE("greedy_loss is greedy_exact where every direction counts alike", "[greedy][loss]") {
  Workers workers(1);
  for (const GreedyCase& c : greedy_cases()) {
    const HeadGroup<double> group = group_of(c, 3);
    for (const RowRange rows : row_sets(group, c.window)) {
      if (rows.count() == 0) continue;
      INFO(c.name << ", rows " << rows.begin << " to " << rows.end);
      const RowGradients<double> identity = identity_gradients(group, rows);
      const GreedyPath exact = greedy_exact(group, rows, 0, workers);
      const GreedyPath loss = greedy_loss(group, identity, rows, 0, workers);
      CHECK(loss.evicted == exact.evicted);
      for (std::size_t n = 0; n < exact.error.size(); ++n)
        CHECK(loss.error.at(n) == Approx(exact.error[n]).epsilon(1e-9).margin(1e-20));
      const KeptSet start = left_by(exact, group, group.l / 2);
      CHECK(exchange_loss(group, identity, rows, start, workers) == exchange(group, rows, start, workers));
    }
  }
}

TEST_CASE("a path's losses are loss_row of its kept sets", "[greedy][loss]") {
  Workers workers(1);
  const HeadGroup<double> group = random_group({.G = 3, .logit_std = 3.0, .window_gradients = 40});
  for (const auto& [rows, gradients] : gradient_rows_of(group, 12)) {
    const GreedyPath path = greedy_loss(group, *gradients, rows, 0, workers);
    for (const Index keep : {39, 20, 4, 0}) {
      const auto found = output_change_reference(group, rows, left_by(path, group, keep));
      double loss = 0;
      for (Index g = 0; g < group.G(); ++g)
        loss += change_loss_reference(*gradients, g, rows, found.change[g], rows).row;
      CHECK(path.error.at(39 - keep) == Approx(loss).epsilon(1e-9));
    }
  }
}

TEST_CASE("exchange by loss ends where no swap pays", "[greedy][loss]") {
  Workers workers(1);
  std::mt19937_64 bits(5);
  int greedy_improved = 0, random_improved = 0;
  for_cases(11, [&](const HeadGroup<double>& group, RowRange rows, const RowGradients<double>& gradients) {
    const auto improves = [&](const KeptSet& start) {
      const KeptSet kept = exchange_loss(group, gradients, rows, start, workers);
      return check_exchange(group, rows, start, kept, &gradients);
    };
    const GreedyPath path = greedy_loss(group, gradients, rows, 0, workers);
    for (const Index keep : {Index{0}, Index{1}, group.l / 2, group.l - 1, group.l}) {
      INFO("keep " << keep);
      greedy_improved += improves(left_by(path, group, keep));
      random_improved += improves(random_set(group, keep, bits));
    }
  });
  CHECK(greedy_improved > 10);
  CHECK(random_improved > 150);
}

TEST_CASE("of all kept sets none has less loss, and a search comes near the best", "[greedy][loss]") {
  Workers workers(1);
  int best = 0, sets = 0;
  for (const std::uint64_t seed : {1, 2, 3, 4, 5, 6})
    for (const Index samples : {1, 4}) {
      const HeadGroup<double> group =
          random_group({.l = 9, .T = 12, .logit_std = 2.0, .samples = samples, .seed = seed});
      for (const auto& [rows, gradients] : gradient_rows_of(group, 4)) {
        const SetErrorJudge judge(group, rows, gradients);
        std::vector<double> least(10, 1e300);
        for (unsigned set = 0; set < 1U << 9; ++set) {
          double& so_far = least[std::popcount(set)];
          so_far = std::min(so_far, judge.error(subset(9, set)));
        }
        const GreedyPath path = greedy_loss(group, *gradients, rows, 0, workers);
        CHECK(path.error[0] == Approx(least[8]));
        CHECK(path.error[8] == Approx(least[0]));
        for (const Index keep : {2, 4, 6}) {
          const KeptSet greedy = kept_by(path, 9, keep);
          const double found = judge.error(exchange_loss(group, *gradients, rows, greedy, workers));
          CHECK(found <= judge.error(greedy));
          CHECK(found >= least[keep] * (1 - 1e-12));
          best += found <= least[keep] * (1 + 1e-9);
          ++sets;
        }
      }
    }
  CHECK(sets == 72);
  CHECK(best > 36);
}

// One query to which all tokens are alike, and a gradient that sees channel 0 alone: the loss is
// 1/2 (2 (mean of the kept - mean of all))^2, the mean being -3.6; channel 1 is of no account.
TEST_CASE("a loss by hand", "[greedy][loss]") {
  HeadGroup<double> group = random_group({.l = 5, .T = 5, .T_q = 1, .G = 1, .d = 4, .d_v = 2});
  group.k.setZero();
  group.v.col(0) << -8, 1, -7, -9, 5;
  group.v.col(1) << 1e3, 2e3, -5e3, 0, 7;
  RowGradients<double> gradients{{4, 5}, 1, {Matrix<double>::Zero(1, 2)}};
  gradients.g[0](0, 0) = 2;
  Workers workers(1);
  const GreedyPath path = greedy_loss(group, gradients, {4, 5}, 2, workers);
  CHECK(kept_by(path, 5, 2) == KeptSet{0, 0, 0, 1, 1});
  CHECK(path.error.back() == Approx(2 * 1.6 * 1.6));
  CHECK(exchange_loss(group, gradients, {4, 5}, {0, 0, 0, 1, 1}, workers) == KeptSet{1, 1, 0, 0, 0});
}

TEST_CASE("gradients of 0 and of fewer rows", "[greedy][loss]") {
  Workers workers(1);
  HeadGroup<double> group = random_group({.l = 6, .T = 8, .samples = 2, .window_gradients = 4});
  // Of the rows that have gradients, the last ones alone.
  const GreedyPath path = greedy_loss(group, group.g_window, {4, 6}, 0, workers);
  check_path(path, group, {4, 6}, 1, &group.g_window);
  // All tokens are alike to a model that does not look.
  for (Matrix<double>& g : group.g_window.g) g.setZero();
  const GreedyPath blind = greedy_loss(group, group.g_window, {2, 6}, 0, workers);
  CHECK(blind.evicted == std::vector<Index>{5, 4, 3, 2, 1, 0});
  CHECK(blind.error == std::vector<double>(6, 0.0));
  const KeptSet start{0, 1, 0, 0, 1, 0};
  CHECK(exchange_loss(group, group.g_window, {2, 6}, start, workers) == start);
  // One token, one row, one sample.
  group = random_group({.l = 1, .T = 1, .G = 1, .samples = 1});
  const GreedyPath one = greedy_loss(group, group.g_window, {0, 1}, 0, workers);
  const double nats = group.g_window.g[0].row(0).dot(group.v.row(0));
  CHECK(one.error.at(0) == Approx(0.5 * nats * nats));
  // No row at all.
  CHECK(greedy_loss(group, group.g_window, {1, 1}, 0, workers).error == std::vector<double>{0.0});
}

TEST_CASE("searches by loss are the same for any number of threads, stop, and say what overflows",
          "[greedy][loss]") {
  HeadGroup<double> group = random_group(
      {.l = 600, .T = 620, .T_q = 120, .G = 2, .logit_std = 3.0, .samples = 5, .window_gradients = 100});
  const RowRange rows{500, 600};
  Workers alone(1);
  const GreedyPath want = greedy_loss(group, group.g_window, rows, 560, alone);
  const KeptSet want_set = exchange_loss(group, group.g_window, rows, kept_by(want, 600, 595), alone);
  for (const int threads : {2, 5}) {
    Workers workers(threads);
    const GreedyPath got = greedy_loss(group, group.g_window, rows, 560, workers);
    CHECK(got.evicted == want.evicted);
    CHECK(got.error == want.error);
    CHECK(exchange_loss(group, group.g_window, rows, kept_by(want, 600, 595), workers) == want_set);
  }
  alone.stop();
  CHECK_THROWS_AS(greedy_loss(group, group.g_window, rows, 0, alone), Interrupted);
  CHECK_THROWS_AS(exchange_loss(group, group.g_window, rows, kept_by(want, 600, 595), alone), Interrupted);
  Workers workers(1);
  for (Matrix<double>& g : group.g_window.g) g *= 1e160;
  try {
    greedy_loss(group, group.g_window, rows, 0, workers);
    FAIL("nothing said");
  } catch (const InputError& error) {
    CHECK(std::string(error.what()).find("losses") != std::string::npos);
  }
}
