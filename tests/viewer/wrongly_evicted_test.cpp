#include "viewer/questions/wrongly_evicted.hpp"

#include "tests/analysis/kvreplay_program.hpp"
#include "tests/support/catch.hpp"
#include "tests/viewer/on_queue.hpp"
#include "viewer/questions/run.hpp"
#include "viewer/questions/what_if.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <random>

using namespace kvreplay;
using namespace kvreplay::viewer;

namespace {

/// Positions from the largest value down, ties by position, NaN last.
std::vector<Index> ranked(const std::vector<double>& values) {
  std::vector<Index> order(values.size());
  std::iota(order.begin(), order.end(), Index{0});
  std::stable_sort(order.begin(), order.end(), [&](Index a, Index b) {
    if (std::isnan(values[a]) || std::isnan(values[b]))
      return !std::isnan(values[a]) && std::isnan(values[b]);
    return values[a] > values[b];
  });
  return order;
}

}  // namespace

TEST_CASE("wrongly evicted are those of the best that are not kept", "[wrongly_evicted]") {
  std::mt19937 random(4);
  for (int trial = 0; trial < 100; ++trial) {
    const auto l = static_cast<Index>(1 + random() % 60);
    std::vector<double> score(l), truth(l);
    KeptSet kept(l);
    for (Index p = 0; p < l; ++p) {
      score[p] = static_cast<double>(random() % 20);
      truth[p] = static_cast<double>(random() % 20);
      kept[p] = random() % 3 == 0;
    }
    const WronglyEvicted found = wrongly_evicted(score, truth, kept);
    CHECK(found.kept == count(kept));
    const std::vector<Index> by_truth = ranked(truth), by_score = ranked(score);
    std::size_t n = 0;
    double sum = 0;
    for (Index place = 0; place < found.kept; ++place) {
      const Index token = by_truth[place];
      if (kept[token] != 0) continue;
      REQUIRE(n < found.tokens.size());
      const WronglyEvicted::Token& one = found.tokens[n++];
      CHECK(one.token == token);
      CHECK(one.by_truth == place + 1);
      CHECK(by_score[one.by_score - 1] == token);
      CHECK(one.truth == truth[token]);
      sum += truth[token];
    }
    CHECK(n == found.tokens.size());
    const double total = std::accumulate(truth.begin(), truth.end(), 0.0);
    if (total > 0) CHECK(found.missed == Approx(sum / total));
    // As many are kept that need not be.
    Index needless = 0;
    for (Index place = found.kept; place < l; ++place) needless += kept[by_truth[place]] != 0 ? 1 : 0;
    CHECK(needless == std::ssize(found.tokens));
  }
}

TEST_CASE("what keeps the best, everything or nothing evicts nothing wrongly", "[wrongly_evicted]") {
  const std::vector<double> truth = {3, 9, 1, 9, 5};
  CHECK(wrongly_evicted({}, truth, {0, 1, 0, 1, 1}).tokens.empty());
  CHECK(wrongly_evicted({}, truth, {1, 1, 1, 1, 1}).tokens.empty());
  CHECK(wrongly_evicted({}, truth, {0, 0, 0, 0, 0}).tokens.empty());
  const WronglyEvicted found = wrongly_evicted({}, truth, {1, 0, 1, 1, 0});
  REQUIRE(found.tokens.size() == 2);
  CHECK(found.tokens[0].token == 1);
  CHECK(found.tokens[0].by_score == 0);
  CHECK(found.tokens[1].token == 4);
  CHECK(found.missed == Approx(14.0 / 27));
}

TEST_CASE("a setting's scores are what its kept set follows from", "[wrongly_evicted]") {
  const auto run = Run::open(test::sample_dump(), 1);
  for (const char* base : {"snapkv", "knorm"}) {
    INFO(base);
    WhatIfSettings settings;
    settings.base = base;
    const EvictionPlan plan = what_if_plan(settings, *run->dump());
    const auto group = run->head(3, 1);
    const auto [scores, found] = test::on_queue([&](JobControl& job) {
      const WhatIfRanking ranking = what_if_ranking(*group, plan, nullptr, {}, job);
      return std::pair(what_if_scores(plan, ranking),
                       what_if(*group, plan, ranking, what_if_importance(*group, job), job));
    });
    REQUIRE(scores.scores.size() == run->shape().l);
    // Apart from what is pinned, no token is kept below one that is evicted.
    const Index pinned = 64, last = run->shape().l - pinned;
    double least_kept = std::numeric_limits<double>::infinity(), most_evicted = -least_kept;
    for (Index p = 8; p < last; ++p)
      if (found.kept[p] != 0)
        least_kept = std::min(least_kept, scores.scores[p]);
      else
        most_evicted = std::max(most_evicted, scores.scores[p]);
    CHECK(least_kept >= most_evicted);
  }
  WhatIfSettings searches;
  searches.base = "snapkv";
  searches.block = 128;
  const EvictionPlan blocks = what_if_plan(searches, *run->dump());
  const auto none = test::on_queue([&](JobControl& job) {
    return what_if_scores(blocks, what_if_ranking(*run->head(3, 1), blocks, nullptr, {}, job));
  });
  CHECK(none.scores.size() == 0);
}
