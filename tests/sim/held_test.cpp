#include "sim/backend.hpp"
#include "sim/cache/cache_outputs.hpp"
#include "sim/compute.hpp"
#include "sim/eviction/decode/decode.hpp"
#include "sim/eviction/exact/greedy.hpp"
#include "sim/eviction/prompt_eviction.hpp"
#include "tests/support/catch.hpp"
#include "tests/support/random_group.hpp"

#include <numeric>

// Positions that a cache of a layer with a sliding window holds: those that a later row can see.

using namespace kvreplay;
using namespace kvreplay::test;

namespace {

constexpr Index kPrompt = 60, kAll = 70, kWindow = 21, kHeld = kWindow - 1, kFirst = kPrompt - kHeld;

GroupSpec windowed() { return {.l = kPrompt, .T = kAll, .sliding_window = kWindow, .seed = 61}; }

/// A dump of the held and the decoded positions only, at their places in the model's sequence. The decoding
/// steps need no other positions.
HeadGroup<double> trimmed(const HeadGroup<double>& group) {
  HeadGroup<double> only = group;
  const Index first = group.first_held();
  only.l = group.held();
  only.k = group.k.bottomRows(group.T_all() - first).eval();
  only.v = group.v.bottomRows(group.T_all() - first).eval();
  for (HeadMatrix<double>& q : only.q) q = q.bottomRows(group.T_all() - group.l).eval();
  only.position.resize(group.T_all() - first);
  std::iota(only.position.begin(), only.position.end(), first);
  only.g_window = only.g_future = only.g_nll = {};
  only.q_ref.clear();
  only.h_ref_norm.clear();
  return only;
}

RowRange steps_of(const HeadGroup<double>& group) { return {group.l, group.T_all()}; }

std::vector<Index> moved(std::vector<Index> positions, Index by) {
  for (Index& p : positions) p += by;
  return positions;
}

}  // namespace

TEST_CASE("a window of w holds the last w - 1 positions of a prompt", "[held]") {
  AttentionRule rule;
  CHECK(rule.first_held(60) == 0);
  rule.sliding_window = 21;
  CHECK(rule.first_held(60) == 40);
  CHECK(rule.first_held(20) == 0);
  CHECK(rule.first_held(0) == 0);
  rule.sliding_window = 1;
  CHECK(rule.first_held(60) == 60);
  rule.sliding_window = 61;
  CHECK(rule.first_held(60) == 0);
  rule.sliding_window = 21;
  rule.two_sided = true;
  CHECK(rule.first_held(60) == 0);

  const HeadGroup<double> group = random_group(windowed());
  CHECK(group.first_held() == kFirst);
  CHECK(group.held() == kHeld);
  CHECK(group.first_visible(group.l) == group.first_held());  // the first row after the prompt
  CHECK(trimmed(group).first_held() == 0);
  CHECK(cache_group(group, {3, 41, 50, 59}, 1).first_held() == 1);
}

TEST_CASE("kept sets of candidates that begin behind the prompt's first position", "[held]") {
  CHECK(all_from(2, 5) == KeptSet{0, 0, 1, 1, 1});
  CHECK(behind(2, {1, 0, 1}) == KeptSet{0, 0, 1, 0, 1});
  CHECK(kept_by({{4, 2}, {0, 0}}, 5, 1, 2) == KeptSet{0, 0, 0, 1, 0});
  CHECK(evicted_positions({0, 0, 1, 0, 1}, 2) == std::vector<Index>{3});
  Vector<double> score(5);
  score << 9, 9, 1, 3, 2;
  CHECK(largest(score, 2, 2) == KeptSet{0, 0, 0, 1, 1});
  CHECK(largest(score, 7, 2) == KeptSet{0, 0, 1, 1, 1});
  CHECK(largest(score, 0, 2) == KeptSet(5, 0));
}

TEST_CASE("decoding steps do not see what a window no longer holds", "[held]") {
  const HeadGroup<double> group = random_group(windowed()), only = trimmed(group);
  Workers workers(1);
  const GreedyPath all = greedy_exact(group, steps_of(group), 3, workers);
  const GreedyPath some = greedy_exact(only, steps_of(only), 3, workers);
  CHECK(all.evicted == moved(some.evicted, kFirst));
  for (std::size_t n = 0; n < all.error.size(); ++n)
    CHECK(all.error[n] == Approx(some.error[n]).epsilon(1e-9).margin(1e-14));

  KeptSet start(kPrompt, 0);
  for (Index p = kFirst; p < kPrompt; p += 2) start[p] = 1;
  const KeptSet of_held(start.begin() + kFirst, start.end());
  CHECK(exchange(group, steps_of(group), start, workers) ==
        behind(kFirst, exchange(only, steps_of(only), of_held, workers)));

  const auto changes = [&](const HeadGroup<double>& g, const KeptSet& kept) {
    const std::vector<Cache<double>> caches{compressed_cache<double>(g, {kept})};
    return output_changes(g, steps_of(g), caches, false, workers).change_sq.front();
  };
  CHECK(changes(group, start) == Approx(changes(only, of_held)).epsilon(1e-12));
}

TEST_CASE("rows of the prompt keep seeing what the window held for them", "[held]") {
  const HeadGroup<double> group = random_group(windowed());
  Workers workers(1);
  const RowRange window = window_rows(kPrompt, 0, 8);
  const std::vector<Cache<double>> caches{compressed_cache<double>(group, {all_from(kFirst, kPrompt)})};
  CHECK(output_changes(group, window, caches, false, workers).change_sq.front() == 0);

  // The search on these rows agrees with the reference, which evicts candidates only.
  const GreedyPath fast = greedy_exact(group, window, 4, workers);
  const GreedyPath judge = greedy_exact_reference(group, window, 4);
  CHECK(fast.evicted == judge.evicted);
  CHECK(std::ssize(fast.evicted) == kHeld - 4);
  for (const Index p : fast.evicted) CHECK(p >= kFirst);
  KeptSet kept(kPrompt, 1);
  for (std::size_t n = 0; n < fast.evicted.size(); ++n) {
    kept[fast.evicted[n]] = 0;
    CHECK(fast.error[n] ==
          Approx(output_change_reference(group, window, {kept}).change_sq).epsilon(1e-7).margin(1e-13));
  }
}

TEST_CASE("formats, groups and bytes begin with the first position that is held", "[held]") {
  const HeadGroup<double> group = random_group(windowed()), only = trimmed(group);
  const Quantization quantization = Quantization::kivi(4, 8, 3);
  const Cache<double> all =
      compressed_cache<double>(group, {all_from(kFirst, kPrompt), {}, {}, quantization});
  const Cache<double> some = compressed_cache<double>(only, {KeptSet(kHeld, 1), {}, {}, quantization});
  CHECK(all.k.bottomRows(kAll - kFirst) == some.k);
  CHECK(all.v.bottomRows(kAll - kFirst) == some.v);
  CHECK(all.k.topRows(kFirst) == group.k.topRows(kFirst));
  CHECK(cache_bytes({all_from(kFirst, kPrompt), {}, {}, quantization}, 8, 8) ==
        cache_bytes({KeptSet(kHeld, 1), {}, {}, quantization}, 8, 8));
}

TEST_CASE("blocks of a prompt leave the cache as the window moves on", "[held]") {
  const HeadGroup<double> group = random_group(windowed());
  Workers workers(1);
  const Compute compute(workers);
  for (const EvictionBase base : {EvictionBase::keydiff, EvictionBase::streaming, EvictionBase::tova})
    for (const Index budget : {0, 1, 7, 20, 60}) {
      INFO(name_of(base) << ", budget " << budget);
      const Policy policy{std::string(name_of(base)), base, {}, {}, {}};
      const EvictionRule rule = rule_of(policy, Semantics::paper, {}, kHeld, budget, false);
      const KeptSet kept = evict_in_blocks(group, rule, budget, 8, compute);
      CHECK(count(kept) == std::min(budget, kHeld));
      CHECK(std::count(kept.begin(), kept.begin() + kFirst, std::uint8_t{1}) == 0);
    }
}

TEST_CASE("a decoding cache drops what the window hides, and only that where the budget holds the rest",
          "[held]") {
  const HeadGroup<double> group = random_group(windowed());
  Workers workers(1);
  const Policy policy{"h2o", EvictionBase::h2o, {}, {}, {}};
  EvictionRule rule = rule_of(policy, Semantics::paper, {}, kHeld, kWindow, false);
  const DecodeReplay<double> replay =
      decode_replay_reference(group, rule, all_from(kFirst, kPrompt), kWindow, {});
  for (const double change : replay.change_sq) CHECK(change == Approx(0).margin(1e-24));
  CHECK(replay.cache_size == kHeld);
  CHECK(std::ssize(replay.left) == kAll - kPrompt);
  for (std::size_t n = 0; n < replay.left.size(); ++n)
    CHECK(replay.left[n] == DecodeMove{static_cast<Index>(n), kFirst + static_cast<Index>(n)});
  // Positions of a start set before the window never enter the cache.
  const DecodeReplay<double> more = decode_replay_reference(group, rule, KeptSet(kPrompt, 1), kWindow, {});
  CHECK(more.left == replay.left);
  CHECK(more.kept == replay.kept);
}
