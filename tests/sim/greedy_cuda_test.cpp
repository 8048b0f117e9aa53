#include "data/error.hpp"
#include "sim/eviction/exact/cuda/exact_error_cuda.hpp"
#include "tests/sim/greedy_checks.hpp"
#include "tests/support/cuda_devices.hpp"

#include <random>
#include <vector>

using namespace kvreplay;
using namespace kvreplay::test;

namespace {

/// Calls body(case, group, rows) for the cases whose number is `first` modulo `step`.
template <class Body>
void for_cases(std::uint64_t seed, std::size_t first, std::size_t step, Body body) {
  for (std::size_t n = first; n < greedy_cases().size(); n += step) {
    const GreedyCase& c = greedy_cases()[n];
    const HeadGroup<double> group = group_of(c, seed);
    for (const RowRange rows : row_sets(group, c.window)) {
      INFO(c.name << ", rows " << rows.begin << " to " << rows.end);
      body(group, rows);
    }
  }
}

/// E(M), that of every set with one token more, and the best removal after each insertion.
void check_state(DeviceExactError& state, const SetErrorJudge& judge, KeptSet kept) {
  constexpr double kRelative = 1e-9;
  const double error = judge.error(kept);
  REQUIRE(state.kept() == count(kept));
  CHECK(std::abs(state.error() - error) <= judge.slack(error, kRelative));
  const std::vector<Insertion> insertions = state.insertions();
  REQUIRE(std::ssize(insertions) == static_cast<Index>(kept.size() - judge.begin()) - count(kept));
  for (const Insertion& in : insertions) {
    std::uint8_t& token = kept[in.position];
    REQUIRE(token == 0);
    token = 1;
    const double changed = judge.error(kept), size = std::max(error, changed);
    token = 0;
    INFO("insertion of position " << in.position << ", from " << error << " to " << changed);
    CHECK(std::abs(error + in.change - changed) <= judge.slack(size, kRelative));
  }
}

}  // namespace

TEST_CASE("greedy eviction on a device takes the best token at every step", "[cuda]") {
  const std::size_t part = GENERATE(0, 1, 2, 3);
  on_a_device([&] {
    Workers workers(1);
    for_cases(7, part, 4, [&](const HeadGroup<double>& group, RowRange rows) {
      const GreedyPath path = greedy_exact_cuda(group, rows, 0, workers);
      CHECK(std::ssize(path.evicted) == group.held());
      check_path(path, group, rows);
      CHECK(path.evicted == greedy_exact(group, rows, 0, workers).evicted);
    });
  });
}

TEST_CASE("greedy eviction on a device goes the reference's way", "[cuda]") {
  on_a_device([] {
    Workers workers(1);
    for_cases(2, 1, 4, [&](const HeadGroup<double>& group, RowRange rows) {
      CHECK(greedy_exact_cuda(group, rows, 0, workers).evicted ==
            greedy_exact_reference(group, rows, 0).evicted);
    });
  });
}

TEST_CASE("the exact error on a device stays right while all leave and return", "[cuda]") {
  const std::size_t part = GENERATE(0, 4);
  on_a_device([&] {
    std::mt19937_64 bits(9);
    for_cases(21, part, 8, [&](const HeadGroup<double>& group, RowRange rows) {
      if (group.held() == 0) return;  // searches end before they make a state of nothing
      const SetErrorJudge judge(group, rows);
      const KeptSet all(static_cast<std::size_t>(group.l), 1);
      DeviceExactError state(group, rows, all, true);
      check_leave_and_return(state, judge, group, bits, check_state);
    });
  });
}

TEST_CASE("exchange on a device ends where no swap pays, with the CPU's set", "[cuda]") {
  on_a_device([] {
    Workers workers(1);
    std::mt19937_64 bits(5);
    int improved = 0;
    for_cases(11, 1, 6, [&](const HeadGroup<double>& group, RowRange rows) {
      for (const Index keep : {Index{0}, Index{1}, group.l / 2, group.l - 1, group.l}) {
        INFO("keep " << keep);
        const KeptSet start = random_set(group, keep, bits);
        const KeptSet kept = exchange_cuda(group, rows, start, workers);
        improved += check_exchange(group, rows, start, kept);
        CHECK(kept == exchange(group, rows, start, workers));
      }
    });
    CHECK(improved > 20);
  });
}

// Tiles of columns and of channels, several rows a warp, rows that are summed anew, decoded columns in two
// goes.
TEST_CASE("long runs of evictions and swaps on a device stay exact", "[cuda]") {
  const GroupSpec spec = GENERATE(
      GroupSpec{.l = 70, .T = 210, .T_q = 150, .G = 1, .logit_std = 2.0, .seed = 3},
      GroupSpec{
          .l = 65, .T = 66, .G = 1, .d = 40, .d_v = 130, .logit_std = 4.0, .attention_sink = 1, .seed = 4},
      GroupSpec{.l = 66, .T = 66, .logit_std = 60.0, .logit_shift = -200.0, .seed = 5});
  on_a_device([&] {
    Workers workers(1);
    const HeadGroup<double> group = random_group(spec);
    const RowRange rows = spec.T_q ? RowRange{group.l + 133, group.T_all()} : window_rows(group.l, 0, 13);
    INFO("seed " << spec.seed);
    check_path(greedy_exact_cuda(group, rows, 0, workers), group, rows, 10);
    std::mt19937_64 bits(spec.seed);
    const KeptSet start = random_set(group, group.l - 12, bits);
    const KeptSet kept = exchange_cuda(group, rows, start, workers);
    CHECK(kept == exchange(group, rows, start, workers));
    CHECK(check_exchange(group, rows, start, kept));
  });
}

// More columns than a block has threads.
TEST_CASE("a device's search is the same to the bit in every run", "[cuda]") {
  on_a_device([] {
    const HeadGroup<double> group =
        random_group({.l = 600, .T = 602, .T_q = 12, .G = 1, .logit_std = 3.0, .seed = 8});
    const RowRange rows{594, 600};
    Workers one(1), two(2);
    const GreedyPath path = greedy_exact_cuda(group, rows, 585, one);
    CHECK(path.evicted == greedy_exact(group, rows, 585, one).evicted);
    const GreedyPath again = greedy_exact_cuda(group, rows, 585, two);
    CHECK(again.evicted == path.evicted);
    CHECK(again.error == path.error);
    const KeptSet start = kept_by(path, 600, 595);
    const KeptSet kept = exchange_cuda(group, rows, start, one);
    CHECK(kept == exchange_cuda(group, rows, start, two));
    CHECK(kept == exchange(group, rows, start, one));
    // A shorter run is the beginning of a longer one.
    const GreedyPath some = greedy_exact_cuda(group, rows, 595, one);
    CHECK(some.evicted == std::vector<Index>(path.evicted.begin(), path.evicted.begin() + 5));
    CHECK(some.error == std::vector<double>(path.error.begin(), path.error.begin() + 5));
    CHECK(greedy_exact_cuda(group, rows, 600, one).evicted.empty());
  });
}

TEST_CASE("ties on a device evict the higher position", "[cuda]") {
  on_a_device([] {
    Workers workers(1);
    // The second half repeats the first; at 8 a token holds nearly all of a row, and its removal cancels.
    for (const double logit_std : {3.0, 8.0})
      for (const std::uint64_t seed : {1, 2, 3}) {
        HeadGroup<double> group = random_group({.l = 24, .T = 26, .logit_std = logit_std, .seed = seed});
        for (Index p = 0; p < 12; ++p) {
          group.k.row(12 + p) = group.k.row(p);
          group.v.row(12 + p) = group.v.row(p);
        }
        std::vector<int> left(12, 2);
        for (const Index p : greedy_exact_cuda(group, {24, 26}, 0, workers).evicted)
          CHECK(p / 12 == --left[p % 12]);
      }
    // Without a row, or one that sees a candidate, all tokens are alike.
    const std::vector<Index> backwards{3, 2, 1, 0};
    HeadGroup<double> short_group = random_group({.l = 4, .T = 20});
    short_group.rule.sliding_window = 5;
    CHECK(greedy_exact_cuda(short_group, {20, 20}, 0, workers).evicted == backwards);
    CHECK(greedy_exact_cuda(short_group, {9, 20}, 0, workers).evicted == backwards);
    // More tokens alike than are compared at once.
    HeadGroup<double> same = random_group({.l = 100, .T = 101, .G = 1});
    for (Index p = 0; p < 100; ++p) {
      same.k.row(p) = same.k.row(0);
      same.v.row(p) = same.v.row(0);
    }
    const GreedyPath path = greedy_exact_cuda(same, {100, 101}, 90, workers);
    CHECK(path.evicted == std::vector<Index>{99, 98, 97, 96, 95, 94, 93, 92, 91, 90});
    CHECK(path.evicted == greedy_exact(same, {100, 101}, 90, workers).evicted);
  });
}

TEST_CASE("searches on a device can be stopped, and say where numbers overflow", "[cuda]") {
  on_a_device([] {
    HeadGroup<double> group = random_group({});
    Workers stopped(2);
    stopped.stop();
    const KeptSet start = largest(Vector<double>::Zero(40), 9);
    CHECK_THROWS_AS(greedy_exact_cuda(group, {32, 40}, 0, stopped), Interrupted);
    CHECK_THROWS_AS(exchange_cuda(group, {32, 40}, start, stopped), Interrupted);
    Workers workers(1);
    group.v *= 1e160;
    CHECK_THROWS_AS(greedy_exact_cuda(group, {32, 40}, 0, workers), InputError);
    CHECK_THROWS_AS(exchange_cuda(group, {32, 40}, start, workers), InputError);
    group = random_group({});
    group.k *= 1e308;
    CHECK_THROWS_AS(greedy_exact_cuda(group, {32, 40}, 0, workers), InputError);
    CHECK(exchange_cuda(group, {32, 40}, KeptSet(40, 1), workers) == KeptSet(40, 1));
  });
}
