#include "sim/eviction/exact/greedy.hpp"

#include "data/error.hpp"
#include "tests/sim/greedy_checks.hpp"
#include "tests/support/catch.hpp"
#include "tests/support/random_group.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>
#include <vector>

using namespace kvreplay;
using namespace kvreplay::test;

namespace {

bool improves(const HeadGroup<double>& group, RowRange rows, const KeptSet& start) {
  Workers workers(1);
  return check_exchange(group, rows, start, exchange(group, rows, start, workers));
}

}  // namespace

TEST_CASE("greedy eviction takes the best token at every step", "[greedy]") {
  Workers workers(1);
  for (const GreedyCase& c : greedy_cases()) {
    const HeadGroup<double> group = group_of(c, 7);
    for (const RowRange rows : row_sets(group, c.window)) {
      INFO(c.name << ", rows " << rows.begin << " to " << rows.end);
      const GreedyPath path = greedy_exact(group, rows, 0, workers);
      CHECK(std::ssize(path.evicted) == group.held());
      check_path(path, group, rows);
    }
  }
}

TEST_CASE("greedy eviction goes the reference's way", "[greedy]") {
  Workers workers(1);
  for (const GreedyCase& c : greedy_cases()) {
    for (const std::uint64_t seed : {1, 2}) {
      const HeadGroup<double> group = group_of(c, seed);
      for (const RowRange rows : row_sets(group, c.window)) {
        INFO(c.name << ", seed " << seed << ", rows " << rows.begin << " to " << rows.end);
        const GreedyPath want = greedy_exact_reference(group, rows, 0);
        const GreedyPath got = greedy_exact(group, rows, 0, workers);
        CHECK(got.evicted == want.evicted);
        if (seed == 1) check_path(want, group, rows);
      }
    }
  }
}

TEST_CASE("exchange ends where no swap pays", "[greedy]") {
  Workers workers(1);
  std::mt19937_64 bits(5);
  int greedy_improved = 0, random_improved = 0;
  for (const GreedyCase& c : greedy_cases()) {
    const HeadGroup<double> group = group_of(c, 11);
    for (const RowRange rows : row_sets(group, c.window)) {
      const GreedyPath path = greedy_exact(group, rows, 0, workers);
      for (const Index keep : {Index{0}, Index{1}, group.l / 4, group.l / 2, group.l - 1, group.l}) {
        INFO(c.name << ", rows " << rows.begin << " to " << rows.end << ", keep " << keep);
        greedy_improved += improves(group, rows, left_by(path, group, keep));
        random_improved += improves(group, rows, random_set(group, keep, bits));
      }
    }
  }
  CHECK(greedy_improved > 20);
  CHECK(random_improved > 200);
}

TEST_CASE("long runs of evictions and swaps stay exact", "[greedy]") {
  Workers workers(1);
  for (const GroupSpec& spec :
       {GroupSpec{.l = 130, .T = 138, .logit_std = 2.0, .seed = 3},
        GroupSpec{.l = 130, .T = 138, .d = 24, .d_v = 20, .logit_std = 4.0, .attention_sink = 1, .seed = 4},
        GroupSpec{.l = 130, .T = 130, .G = 1, .logit_std = 60.0, .logit_shift = -200.0, .seed = 5}}) {
    const HeadGroup<double> group = random_group(spec);
    const RowRange rows = window_rows(group.l, 0, 10);
    INFO("seed " << spec.seed);
    check_path(greedy_exact(group, rows, 0, workers), group, rows, 40);
    std::mt19937_64 bits(spec.seed);
    improves(group, rows, random_set(group, 20, bits));
  }
}

// One query to which all tokens are alike: E = (mean of the kept - mean of all)^2, the mean being -3.6.
TEST_CASE("exchange finds the best set where greedy eviction does not", "[greedy]") {
  HeadGroup<double> group = random_group({.l = 5, .T = 5, .T_q = 1, .G = 1, .d = 4, .d_v = 1});
  group.k.setZero();
  group.v.col(0) << -8, 1, -7, -9, 5;
  Workers workers(1);
  const GreedyPath path = greedy_exact(group, {4, 5}, 2, workers);
  const KeptSet greedy = kept_by(path, 5, 2);
  CHECK(greedy == KeptSet{0, 0, 0, 1, 1});
  CHECK(path.error.back() == Approx(1.6 * 1.6));
  const KeptSet best = exchange(group, {4, 5}, greedy, workers);
  CHECK(best == KeptSet{1, 1, 0, 0, 0});
  CHECK(SetErrorJudge(group, {4, 5}).error(best) == Approx(0.1 * 0.1));
}

TEST_CASE("a shorter run of greedy eviction is the beginning of a longer one", "[greedy]") {
  Workers workers(1);
  const HeadGroup<double> group = random_group({});
  const GreedyPath all = greedy_exact(group, {32, 40}, 0, workers);
  const GreedyPath some = greedy_exact(group, {32, 40}, 15, workers);
  CHECK(some.evicted == std::vector<Index>(all.evicted.begin(), all.evicted.begin() + 25));
  CHECK(some.error == std::vector<double>(all.error.begin(), all.error.begin() + 25));
  CHECK(greedy_exact(group, {32, 40}, 40, workers).evicted.empty());
  CHECK(kept_by(all, 40, 15) == kept_by(some, 40, 15));
  CHECK(count(kept_by(all, 40, 15)) == 15);
  CHECK(kept_by(all, 40, 15)[all.evicted[24]] == 0);
  CHECK(kept_by(all, 40, 15)[all.evicted[25]] == 1);
}

TEST_CASE("ties evict the higher position", "[greedy]") {
  Workers workers(1);
  HeadGroup<double> group = random_group({.l = 24, .T = 26, .logit_std = 3.0});
  for (Index p = 0; p < 12; ++p) {  // the second half repeats the first
    group.k.row(12 + p) = group.k.row(p);
    group.v.row(12 + p) = group.v.row(p);
  }
  const GreedyPath path = greedy_exact(group, {24, 26}, 0, workers);
  std::vector<int> left(12, 2);
  for (const Index p : path.evicted) CHECK(p / 12 == --left[p % 12]);
  // A repeated token that holds nearly all of every row is nearly its output: its removal cancels.
  for (const std::uint64_t seed : {1, 2, 3, 4, 5, 6, 7, 8}) {
    group = random_group({.l = 24, .T = 26, .logit_std = 8.0, .seed = seed});
    for (Index p = 0; p < 12; ++p) {
      group.k.row(12 + p) = group.k.row(p);
      group.v.row(12 + p) = group.v.row(p);
    }
    left.assign(12, 2);
    for (const Index p : greedy_exact(group, {24, 26}, 0, workers).evicted) CHECK(p / 12 == --left[p % 12]);
  }
  // Without a row, or one that sees a candidate, all tokens are alike.
  const std::vector<Index> backwards{3, 2, 1, 0};
  HeadGroup<double> short_group = random_group({.l = 4, .T = 20});
  short_group.rule.sliding_window = 5;
  CHECK(greedy_exact(short_group, {20, 20}, 0, workers).evicted == backwards);
  CHECK(greedy_exact(short_group, {9, 20}, 0, workers).evicted == backwards);
  CHECK(greedy_exact_reference(short_group, {9, 20}, 0).evicted == backwards);
}

TEST_CASE("greedy eviction and exchange are the same for any number of threads", "[greedy]") {
  const HeadGroup<double> group = random_group({.l = 600, .T = 620, .T_q = 120, .G = 2, .logit_std = 3.0});
  const RowRange rows{500, 600};
  Workers alone(1);
  const GreedyPath want = greedy_exact(group, rows, 500, alone);
  const KeptSet want_set = exchange(group, rows, kept_by(want, 600, 590), alone);
  for (const int threads : {2, 3, 8}) {
    Workers workers(threads);
    const GreedyPath got = greedy_exact(group, rows, 500, workers);
    CHECK(got.evicted == want.evicted);
    CHECK(got.error == want.error);
    CHECK(exchange(group, rows, kept_by(want, 600, 590), workers) == want_set);
  }
}

TEST_CASE("greedy eviction can be stopped, and says where numbers overflow", "[greedy]") {
  HeadGroup<double> group = random_group({});
  Workers stopped(2);
  stopped.stop();
  CHECK_THROWS_AS(greedy_exact(group, {32, 40}, 0, stopped), Interrupted);
  CHECK_THROWS_AS(exchange(group, {32, 40}, largest(Vector<double>::Zero(40), 9), stopped), Interrupted);
  Workers workers(1);
  group.v *= 1e160;
  CHECK_THROWS_AS(greedy_exact(group, {32, 40}, 0, workers), InputError);
  group = random_group({});
  group.k *= 1e308;
  CHECK_THROWS_AS(greedy_exact(group, {32, 40}, 0, workers), InputError);
}
