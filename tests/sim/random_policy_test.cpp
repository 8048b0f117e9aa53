#include "sim/eviction/decode/decode.hpp"
#include "sim/eviction/prompt_eviction.hpp"
#include "tests/sim/decode_cases.hpp"
#include "tests/support/catch.hpp"

#include <cmath>
#include <functional>
#include <set>
#include <vector>

using namespace kvreplay;
using namespace kvreplay::test;

namespace {

constexpr Index kLength = 24, kBudget = 9, kSeeds = 2000;

EvictionRule drawn(Index seed, PolicyOverrides overrides = {}) {
  overrides.seed = seed;
  return rule_named(EvictionBase::random, {}, Semantics::paper, kLength, kBudget, overrides);
}

/// The share of the seeds for which each of n positions is kept.
Vector<double> kept_shares(Index n, const std::function<KeptSet(Index seed)>& kept_by_seed) {
  Vector<double> shares = Vector<double>::Zero(n);
  for (Index seed = 0; seed < kSeeds; ++seed) {
    const KeptSet kept = kept_by_seed(seed);
    for (Index p = 0; p < n; ++p) shares[p] += kept[p];
  }
  return shares / static_cast<double>(kSeeds);
}

/// 4.5 standard deviations: one of some hundred thousand shares is further off.
void check_share(double share, double expected) {
  const double deviation = std::sqrt(expected * (1 - expected) / static_cast<double>(kSeeds));
  CHECK(std::abs(share - expected) <= 4.5 * deviation + 1e-12);
}

KeptSet once(const HeadGroup<double>& group, const EvictionRule& rule) {
  Workers workers(1);
  return keep_by(rule, rule_scores(group, std::span(&rule, 1), {}, workers)[0], kBudget);
}

}  // namespace

TEST_CASE("random keeps every token of a prompt as often, pinned ones always", "[random]") {
  const HeadGroup<double> group = random_group({.l = kLength, .T = kLength + 6, .seed = 3});
  const Vector<double> shares = kept_shares(kLength, [&](Index seed) { return once(group, drawn(seed)); });
  for (const double share : shares) check_share(share, 9.0 / 24);

  const Vector<double> beside =
      kept_shares(kLength, [&](Index seed) { return once(group, drawn(seed, pins(2, 3))); });
  for (Index p = 0; p < kLength; ++p) check_share(beside[p], p < 2 || p >= kLength - 3 ? 1.0 : 4.0 / 19);
}

TEST_CASE("random survives each cut of a prompt in blocks by chance alone", "[random]") {
  const HeadGroup<double> group = random_group({.l = kLength, .T = kLength + 6, .seed = 3});
  Workers workers(1);
  const Vector<double> shares = kept_shares(
      kLength, [&](Index seed) { return evict_in_blocks(group, drawn(seed), kBudget, 8, workers); });
  // Cuts after 16 and 24 positions, each of a cache of 9 + 8 tokens but for the first, which has 16.
  for (Index p = 0; p < kLength; ++p) check_share(shares[p], p < 16 ? 9.0 / 16 * 9 / 17 : 9.0 / 17);
}

TEST_CASE("random survives each step of decoding by chance alone", "[random]") {
  const HeadGroup<double> group = random_group({.l = kLength, .T = kLength + 4, .G = 1, .d = 2, .d_v = 1});
  Workers workers(1);
  const auto full = decode_full_outputs(group, workers);
  const KeptSet start = spread(kLength, kBudget);
  for (const Index interval : {0, 2}) {
    const Vector<double> shares = kept_shares(kLength + 4, [&](Index seed) {
      const auto replay =
          decode_replay(group, drawn(seed), start, kBudget, {.interval = interval}, {}, full, workers);
      KeptSet left(kLength + 4, 1);
      std::copy(start.begin(), start.end(), left.begin());
      for (const DecodeMove& move : replay.left) left[move.position] = 0;
      return left;
    });
    for (Index p = 0; p < kLength + 4; ++p) {
      if (p < kLength && start[p] == 0) continue;
      const Index joined = std::max<Index>(p - kLength, 0);
      const double cuts = static_cast<double>(interval == 0 ? 4 - joined : 2 - joined / 2);
      check_share(shares[p], std::pow(interval == 0 ? 9.0 / 10 : 9.0 / 11, cuts));
    }
  }
}

TEST_CASE("lots depend on seed, layer, head, step and token, and on nothing else", "[random]") {
  const EvictionRule rule = drawn(7);
  std::set<double> lots;
  for (const Index seed : {7, 8})
    for (const Index layer : {0, 1})
      for (const Index head : {0, 1})
        for (const Index seen : {24, 25})
          for (const Index p : {0, 1, 2}) lots.insert(lot_of(drawn(seed), layer, head, seen, p));
  CHECK(lots.size() == 2 * 2 * 2 * 2 * 3);
  for (const double lot : lots) {
    CHECK(lot >= 0);
    CHECK(lot < 1);
  }
  CHECK(lot_of(rule, 3, 1, 24, 5) == lot_of(drawn(7), 3, 1, 24, 5));
  CHECK(lot_of(rule, 0, 0, 24, 5) == 0x1p-53 * std::floor(0x1p53 * lot_of(rule, 0, 0, 24, 5)));

  // One draw a layer is every head's; draws of heads differ.
  PolicyOverrides by_layer;
  by_layer.heads = PageHeads::layer;
  HeadGroup<double> a = random_group({.l = kLength, .T = kLength, .seed = 3}), b = a;
  b.kv_head = a.kv_head + 1;
  CHECK(once(a, drawn(7, by_layer)) == once(b, drawn(7, by_layer)));
  CHECK(once(a, drawn(7)) != once(b, drawn(7)));
  CHECK(once(a, drawn(7)) != once(a, drawn(8)));
}
