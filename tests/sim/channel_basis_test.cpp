#include "sim/channels/channel_basis.hpp"

#include "sim/channels/channel_interaction.hpp"
#include "tests/support/catch.hpp"
#include "tests/support/compare.hpp"
#include "tests/support/index_sets.hpp"
#include "tests/support/random_group.hpp"

#include <cmath>
#include <vector>

using namespace kvreplay;
using namespace kvreplay::test;

namespace {

constexpr Tolerance kTolerance{.of_largest = 1e-12, .floor = 1.0};

/// H from its definition, one logit after the other: what pruning c does to a logit, times what e does.
Matrix<double> interaction(const HeadGroup<double>& group, const std::vector<Index>& keys,
                           const std::vector<Index>& rows) {
  Matrix<double> H = Matrix<double>::Zero(group.d(), group.d());
  for (const HeadMatrix<double>& q : group.q)
    for (const Index i : rows)
      for (const Index p : keys) {
        const Vector<double> change = q.row(i - group.first_query()).cwiseProduct(group.k.row(p)).transpose();
        H += change * change.transpose();
      }
  return H;
}

Vector<double> squared_norms(const Matrix<double>& k, const std::vector<Index>& keys) {
  Vector<double> sums = Vector<double>::Zero(k.cols());
  for (const Index p : keys) sums += k.row(p).transpose().cwiseAbs2();
  return sums;
}

/// Every third token is evicted, and the last.
KeptSet some_tokens(Index l) {
  KeptSet cache(static_cast<std::size_t>(l), 1);
  for (std::size_t p = 0; p < cache.size(); p += 3) cache[p] = 0;
  cache.back() = 0;
  return cache;
}

struct Caches {
  const char* name;
  KeptSet set;
};
std::vector<Caches> caches(Index l) {
  return {{"whole", KeptSet(static_cast<std::size_t>(l), 1)}, {"with gaps", some_tokens(l)}};
}

}  // namespace

TEST_CASE("a channel basis is what its setting says", "[channel_basis]") {
  Workers workers(2);
  GroupSpec spec{.l = 40, .T = 47, .G = 3, .d = 6, .d_v = 4};
  spec.rope = rope_of(Rope::Style::half, 4);
  for (const Index T_q : {47, 15}) {  // all queries; those of 8 prompt positions and of the decoding steps
    spec.T_q = T_q;
    const HeadGroup<double> group = random_group(spec);
    for (const auto& [cache_name, cache] : caches(group.l))
      for (const Semantics semantics : {Semantics::paper, Semantics::official, Semantics::kvpress})
        for (const Index recent : {0, 9, 100}) {
          const ChannelSetting setting{semantics, recent, 12, std::nullopt};
          INFO(cache_name << ", semantics " << static_cast<int>(semantics) << ", recent " << recent
                          << ", T_q " << T_q);
          const ChannelBasis basis = channel_basis(group, cache, setting, true, workers);

          // the keys that lose channels: the cache's but for its last ones
          const std::vector<Index> kept = positions(cache);
          const std::vector<Index> lose(kept.begin(), kept.end() - std::min(recent, std::ssize(kept)));
          CHECK(basis.keys.cache == cache);
          CHECK(positions(basis.keys.prunable) == lose);

          const std::vector<Index> window = range(T_q == 47 ? 28 : 32, 40), future = range(40, 47);
          CHECK(mismatch("window", interaction(group, lose, window), basis.window, kTolerance) == "");
          CHECK(mismatch("future", interaction(group, lose, future), basis.future, kTolerance) == "");
          const std::vector<Index>& scored = semantics == Semantics::official ? kept : lose;
          CHECK(mismatch("H", interaction(group, scored, window), basis.scores.logits, kTolerance) == "");
          CHECK(mismatch("||k_c||^2", Matrix<double>(squared_norms(group.k, scored)),
                         Matrix<double>(basis.scores.key_sq), kTolerance) == "");
          CHECK(mismatch("M",
                         output_interaction_reference(group, {window.front(), 40},
                                                      {basis.keys.cache, basis.keys.prunable}),
                         basis.scores.outputs, {.of_largest = 1e-9, .floor = 1.0}) == "");
          CHECK(basis.scores.rope_partner == std::vector<Index>{2, 3, 0, 1, -1, -1});
          CHECK(basis.scores.fixed.empty());
          CHECK(basis.scores.diagonal == basis.scores.logits.diagonal());

          const ChannelBasis alone = channel_diagonal(group, cache, setting, workers);
          CHECK(alone.keys.cache == basis.keys.cache);
          CHECK(alone.keys.prunable == basis.keys.prunable);
          CHECK(mismatch("H_cc", Matrix<double>(basis.scores.diagonal), Matrix<double>(alone.scores.diagonal),
                         kTolerance) == "");
          CHECK(mismatch("||k_c||^2 alone", Matrix<double>(basis.scores.key_sq),
                         Matrix<double>(alone.scores.key_sq), kTolerance) == "");
          CHECK(alone.scores.rope_partner == basis.scores.rope_partner);
          CHECK((alone.scores.logits.size() == 0 && alone.window.size() == 0 && alone.future.size() == 0));
        }
  }
}

TEST_CASE("a channel basis holds no more than it is asked for", "[channel_basis]") {
  Workers workers(1);
  const HeadGroup<double> group = random_group({.l = 30, .T = 30, .G = 1, .d = 5, .d_v = 3});
  const KeptSet all(30, 1);
  const ChannelBasis basis =
      channel_basis(group, all, {Semantics::paper, 4, 8, std::nullopt}, false, workers);
  CHECK(basis.scores.outputs.size() == 0);
  CHECK(basis.scores.rope_partner.empty());
  CHECK(basis.scores.fixed.empty());
  CHECK(basis.future.isZero(0));  // no decoding steps
  CHECK(basis.window.trace() > 0);
  CHECK(same_bytes(basis.scores.logits, basis.window));
  // nothing to score by, nothing to lose
  const ChannelBasis none =
      channel_basis(group, KeptSet(30, 0), {Semantics::official, 4, 8, std::nullopt}, true, workers);
  CHECK(none.scores.logits.isZero(0));
  CHECK(none.scores.outputs.isZero(0));
}

TEST_CASE("protection looks at the norms of the keys that scores look at", "[channel_basis]") {
  Workers workers(1);
  HeadGroup<double> group = random_group({.l = 30, .T = 34, .G = 2, .d = 8, .d_v = 3});
  group.k.topRows(20).col(2).setConstant(50);          // outstanding where it may be pruned
  group.k.middleRows(20, 10).col(5).setConstant(500);  // outstanding among the recent ones
  const KeptSet all(30, 1);
  const auto fixed = [&](Semantics semantics, const Protection& protection) {
    const ChannelSetting setting{semantics, 10, 8, protection};
    const ChannelSet fixed = channel_basis(group, all, setting, false, workers).scores.fixed;
    CHECK(channel_diagonal(group, all, setting, workers).scores.fixed == fixed);
    return fixed;
  };
  CHECK(fixed(Semantics::paper, {0, 100}) == ChannelSet{0, 0, 1, 0, 0, 0, 0, 0});
  CHECK(fixed(Semantics::official, {0, 100}) == ChannelSet{0, 0, 0, 0, 0, 1, 0, 0});
  CHECK(fixed(Semantics::official, {25, 100}) == ChannelSet{0, 0, 1, 0, 0, 1, 0, 0});
  CHECK(fixed(Semantics::paper, {0, 0}) == ChannelSet(8, 0));
  CHECK(default_recent(Semantics::paper) == 32);
  CHECK(default_recent(Semantics::official) == 32);
  CHECK(default_recent(Semantics::kvpress) == 0);
  CHECK(default_recent(Semantics::kvpress_0_5_5) == 0);
}

TEST_CASE("a channel basis in float32 is the one in float64, rounded", "[channel_basis]") {
  Workers workers(2);
  const HeadGroup<float> group =
      to_float(random_group({.l = 50, .T = 60, .G = 2, .d = 9, .d_v = 5, .value_offset = 3}));
  const KeptSet cache = some_tokens(50);
  const ChannelSetting setting{Semantics::official, 5, 16, Protection{10, 20}};
  const ChannelBasis single = channel_basis(group, cache, setting, true, workers);
  const ChannelBasis exact = channel_basis(to_double(group), cache, setting, true, workers);
  const Tolerance tolerance{.of_largest = 1e-5, .floor = 1.0};
  CHECK(mismatch("H", exact.scores.logits, single.scores.logits, tolerance) == "");
  CHECK(mismatch("window", exact.window, single.window, tolerance) == "");
  CHECK(mismatch("future", exact.future, single.future, tolerance) == "");
  CHECK(mismatch("M", exact.scores.outputs, single.scores.outputs, tolerance) == "");
  CHECK(single.scores.fixed == exact.scores.fixed);
  CHECK(single.keys.prunable == exact.keys.prunable);
}

TEST_CASE("query moments are means and deviations over rows", "[channel_basis]") {
  HeadGroup<double> group = random_group({.l = 20, .T = 26, .T_q = 15, .G = 2, .d = 4, .d_v = 2});
  for (HeadMatrix<double>& q : group.q) q.col(3).setConstant(-2.5);
  for (const Index g : {0, 1})
    for (const RowRange rows : {window_rows(20, 11, 32), future_rows(20, 26, 11), RowRange{14, 15}}) {
      INFO("head " << g << ", rows " << rows.begin << " to " << rows.end);
      const ChannelMoments got = query_moments(group, g, rows);
      REQUIRE(got.mean.size() == 4);
      REQUIRE(got.deviation.size() == 4);
      const auto n = static_cast<double>(rows.count());
      for (Index c = 0; c < 4; ++c) {
        double mean = 0, square = 0;
        for (Index i = rows.begin; i < rows.end; ++i) {
          const double q = group.q[g](i - 11, c);
          mean += q / n;
          square += q * q / n;
        }
        CHECK(got.mean[c] == Approx(mean).epsilon(1e-12));
        CHECK(got.deviation[c] == Approx(std::sqrt(std::max(square - mean * mean, 0.0))).margin(1e-7));
      }
      CHECK(got.mean[3] == -2.5);
      CHECK(got.deviation[3] == 0.0);
      if (rows.count() == 1) CHECK(got.deviation.isZero(0));
    }
  // in float32 too, summed in float64
  const HeadGroup<float> rounded = to_float(group);
  const ChannelMoments single = query_moments(rounded, 1, {12, 26});
  const ChannelMoments exact = query_moments(to_double(rounded), 1, {12, 26});
  CHECK(single.mean == exact.mean);
  CHECK(single.deviation == exact.deviation);
}
