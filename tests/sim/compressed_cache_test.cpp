#include "sim/cache/cache.hpp"
#include "tests/support/catch.hpp"
#include "tests/support/random_group.hpp"

#include <cmath>
#include <cstdint>
#include <set>
#include <vector>

using namespace kvreplay;
using namespace kvreplay::test;

namespace {

std::uint8_t mark(bool set) { return set ? 1 : 0; }

/// Bytes number by number: which group, if any, each stored number belongs to.
double bytes_by_count(const KeptSet& kept, const ChannelSet& pruned, const KeptSet& prunable, Index d,
                      Index d_v, const std::optional<Quantization>& quantization) {
  double bytes = 0;
  std::set<std::vector<Index>> key_groups, value_groups;
  Index n = 0;
  const Index all = count(kept);
  for (std::size_t p = 0; p < kept.size(); ++p) {
    if (kept[p] == 0) continue;
    for (Index c = 0; c < d; ++c) {
      if (!pruned.empty() && prunable[p] != 0 && pruned[c] != 0) continue;
      const bool in_group = quantization && n < quantized_keys(all, *quantization);
      bytes += in_group ? kNumberFormats[quantization->k.format].bits / 8.0 : kElementBytes;
      if (in_group) key_groups.insert({n / quantization->group, c});
    }
    for (Index c = 0; c < d_v; ++c) {
      const bool in_group = quantization && n < quantized_values(all, *quantization);
      bytes += in_group ? kNumberFormats[quantization->v.format].bits / 8.0 : kElementBytes;
      if (in_group) value_groups.insert({n, c / quantization->group});
    }
    ++n;
  }
  return bytes + 4 * static_cast<double>(key_groups.size() + value_groups.size());
}

}  // namespace

TEST_CASE("the last kept tokens are the recent ones", "[compressed_cache]") {
  const KeptSet kept{1, 0, 1, 1, 0, 1, 0};
  CHECK(without_recent(kept, 0) == kept);
  CHECK(without_recent(kept, 1) == KeptSet{1, 0, 1, 1, 0, 0, 0});
  CHECK(without_recent(kept, 2) == KeptSet{1, 0, 1, 0, 0, 0, 0});
  CHECK(without_recent(kept, 4) == KeptSet(7, 0));
  CHECK(without_recent(kept, 100) == KeptSet(7, 0));
  CHECK(without_recent({}, 3).empty());
}

TEST_CASE("a cache holds what eviction, pruning and quantization leave, in this order",
          "[compressed_cache]") {
  const HeadGroup<double> group = random_group({.l = 40, .T = 44, .d = 6, .d_v = 5, .value_offset = 1.0});
  KeptSet kept(40), none(40, 0);
  for (std::size_t p = 0; p < 40; ++p) kept[p] = mark(p % 3 != 1);  // 27 tokens
  const KeptSet prunable = without_recent(kept, 9);
  const ChannelSet pruned{0, 1, 0, 0, 1, 0};
  const Quantization quantization = Quantization::kivi(2, 4, 6);  // 20 keys, 21 values

  const Cache<double> evicted = compressed_cache(group, {kept});
  CHECK(evicted.kept == kept);
  CHECK(evicted.only_evicts());
  const Cache<double> thinned = compressed_cache(group, {kept, pruned, prunable});
  CHECK(thinned.pruned == pruned);
  CHECK(thinned.prunable == prunable);
  CHECK(thinned.v.size() == 0);
  const Cache<double> small = compressed_cache(group, {kept, pruned, prunable, quantization});
  const Matrix<double> thinned_k = keys_held(group, thinned);
  Matrix<double> k_want = thinned_k, v_want = group.v;
  quantize_keys(k_want, positions(kept), pruned, prunable, quantization);
  quantize_values(v_want, positions(kept), quantization);

  Index quantized = 0;
  for (Index p = 0; p < 44; ++p) {
    const auto at = static_cast<std::size_t>(p);
    if (p < 40 && kept[at] == 0) continue;
    INFO("position " << p);
    CHECK(small.k.row(p) == k_want.row(p));
    CHECK(small.v.row(p) == v_want.row(p));
    quantized += small.v.row(p) == group.v.row(p) ? 0 : 1;
    const bool loses = p < 40 && prunable[at] != 0;
    for (Index c = 0; c < 6; ++c) {
      const bool lost = loses && pruned[c] != 0;
      CHECK(thinned_k(p, c) == (lost ? 0.0 : group.k(p, c)));
      if (lost) CHECK(small.k(p, c) == 0.0);
    }
    if (p >= 40) CHECK(small.k.row(p) == group.k.row(p));
  }
  CHECK(quantized == 21);
  // Nobody is prunable, no channel is pruned: the same.
  CHECK(compressed_cache(group, {kept, pruned, none, quantization}).k ==
        compressed_cache(group, {kept, {}, {}, quantization}).k);
  CHECK(compressed_cache(group, {kept, ChannelSet(6, 0), kept, quantization}).k ==
        compressed_cache(group, {kept, {}, {}, quantization}).k);
}

TEST_CASE("centered keys are stored around the mean of the prompt's keys", "[compressed_cache]") {
  HeadGroup<double> group = random_group({.l = 40, .T = 44, .d = 8, .d_v = 8});
  group.k.col(3).array() += 50;  // as a key bias makes them
  KeptSet kept(40, 1);
  kept[7] = kept[8] = kept[30] = 0;
  const std::vector<Index> tokens = positions(kept);
  for (const Index turned : {0, 8})
    for (const Index from : {0, 4, 39, 40, 1000}) {
      Quantization stored{{NumberFormat::int4}, {NumberFormat::int4}, 8, 5};
      stored.k.turned = turned;
      const Matrix<double> plain = compressed_cache(group, {kept, {}, {}, stored}).k;
      stored.k.centered = from;
      const Matrix<double> found = compressed_cache(group, {kept, {}, {}, stored}).k;
      // Evicted tokens belong to the mean, decoded ones do not.
      Vector<double> mean = Vector<double>::Zero(8);
      for (Index p = from; p < 40; ++p) mean += group.k.row(p).transpose() / static_cast<double>(40 - from);
      Matrix<double> want = group.k.rowwise() - mean.transpose();
      stored.k.centered = {};
      quantize_keys(want, tokens, {}, {}, stored);
      want.rowwise() += mean.transpose();
      double off = 0, off_plain = 0;
      for (const Index p : tokens) {
        INFO(turned << " " << from << " " << p);
        CHECK((found.row(p) - want.row(p)).norm() < 1e-12);
        off += (found.row(p) - group.k.row(p)).squaredNorm();
        off_plain += (plain.row(p) - group.k.row(p)).squaredNorm();
      }
      for (const Index p : {35, 36, 37, 38, 39, 43}) CHECK(found.row(p) == group.k.row(p));
      if (from < 40) CHECK(off < 0.05 * off_plain);
      if (from >= 40) CHECK(found == plain);
    }
  // Vectors of a file: those of the head's layer, in place of the mean.
  group.layer = 2, group.kv_head = 1;
  Quantization given{{NumberFormat::int4}, {NumberFormat::int4}, 8, 5};
  given.k.centered = 0;
  const Matrix<double> by_mean = compressed_cache(group, {kept, {}, {}, given}).k;
  std::vector<double> vectors(3 * 2 * 8, std::nan(""));
  const Vector<double> mean = key_center(group, 0);
  std::copy_n(mean.data(), 8, vectors.begin() + (2 * 2 + 1) * 8);
  given.k.centers = {"means.npy", 2, 8, std::make_shared<const std::vector<double>>(vectors)};
  for (const Index p : tokens)
    CHECK(compressed_cache(group, {kept, {}, {}, given}).k.row(p) == by_mean.row(p));

  // A vector of a head in 16 bits, where any key is stored in fewer.
  Quantization stored = Quantization::kivi(4, 32, 20);
  const double without = cache_bytes({KeptSet(100, 1), {}, {}, stored}, 8, 6);
  stored.k.centered = 0;
  CHECK(cache_bytes({KeptSet(100, 1), {}, {}, stored}, 8, 6) == without + 8 * 2);
  stored.residual = 100;
  CHECK(cache_bytes(100, stored, 8, 6) == 100 * (8 + 6) * 2);
  // Exact keys stay what they are, whatever is asked for.
  Quantization exact{{}, {NumberFormat::int4}, 8, 0};
  exact.k.centered = 0;
  CHECK(compressed_cache(group, {kept, {}, {}, exact}).k == group.k);
}

TEST_CASE("llama.cpp's formats have key channels in llama.cpp's order", "[compressed_cache]") {
  HeadGroup<double> group = random_group({.l = 12, .T = 14, .d = 64, .d_v = 64});
  group.k.col(5).array() += 20;
  HeadGroup<double> ordered = group;  // as a dump of llama.cpp has it
  const auto in_ggml = [](Index c) { return c < 32 ? 2 * c : 2 * (c - 32) + 1; };
  for (Index c = 0; c < 64; ++c) ordered.k.col(in_ggml(c)) = group.k.col(c);
  group.rope = Rope{.rotary_dim = 64, .inv_freq = std::vector<double>(32, 1), .interleaved_in_ggml = true};
  HeadGroup<double> plain = group;
  plain.rope->interleaved_in_ggml = false;
  for (const NumberFormat format : {NumberFormat::q4_0, NumberFormat::q5_1, NumberFormat::mxfp4})
    for (const Index turned : {0, 32})
      for (const bool centered : {false, true}) {
        INFO(name_of(format) << " " << turned << " " << centered);
        Quantization stored{{format}, {format}, 32, 3};
        stored.k.turned = turned;
        if (centered) stored.k.centered = 2;
        const CacheCase which{KeptSet(12, 1), {}, {}, stored};
        const Cache<double> found = compressed_cache(group, which),
                            of_ggml = compressed_cache(ordered, which),
                            of_transformers = compressed_cache(plain, which);
        CHECK(found.v == of_transformers.v);
        if (format == NumberFormat::mxfp4) {
          CHECK(found.k == of_transformers.k);
          continue;
        }
        CHECK(found.k != of_transformers.k);
        for (Index c = 0; c < 64; ++c) CHECK(found.k.col(c) == of_ggml.k.col(in_ggml(c)));
      }
}

TEST_CASE("bytes by hand", "[compressed_cache]") {
  const KeptSet all(100, 1), none(100, 0);
  KeptSet half = all;
  std::fill(half.begin(), half.begin() + 50, std::uint8_t{0});
  const ChannelSet pruned{1, 0, 1, 0, 1, 0, 1, 0};
  const auto bytes = [&](const KeptSet& kept, const ChannelSet& channels, const KeptSet& prunable,
                         std::optional<Quantization> quantization) {
    return cache_bytes({kept, channels, prunable, quantization}, 8, 6);
  };
  CHECK(bytes(all, {}, {}, {}) == 100 * (8 + 6) * 2);
  CHECK(bytes(half, {}, {}, {}) == 50 * (8 + 6) * 2);
  CHECK(bytes(none, {}, {}, {}) == 0);
  CHECK(bytes(none, {}, {}, Quantization{}) == 0);
  CHECK(bytes(all, pruned, all, {}) == 100 * (4 + 6) * 2);
  CHECK(bytes(half, pruned, without_recent(half, 20), {}) == (30 * 4 + 20 * 8 + 50 * 6) * 2);
  CHECK(bytes(all, pruned, none, {}) == 100 * (8 + 6) * 2);
  // 4 bits in groups of 32, 20 tokens recent: 64 keys in 2 groups a channel, 80 values in 1 group a token.
  CHECK(bytes(all, {}, {}, Quantization::kivi(4, 32, 20)) ==
        64 * 8 * 0.5 + 2 * 8 * 2 * 2 + 36 * 8 * 2 + 80 * 6 * 0.5 + 80 * 2 * 2 + 20 * 6 * 2);
  // Values in groups of 4 and 2 channels, 2 bits.
  CHECK(bytes(all, {}, {}, Quantization::kivi(2, 4, 98)) ==
        100 * 8 * 2 + 2 * 6 * 0.25 + 2 * 2 * 4 + 98 * 6 * 2);
  // The 40 oldest lost half their channels: in the first group of 32 keys 4 channels are left, in the
  // second 8.
  CHECK(bytes(all, pruned, without_recent(all, 60), Quantization::kivi(8, 32, 20)) ==
        (32 * 4 + 8 * 4 + 24 * 8) * 1 + (4 + 8) * 2 * 2 + 36 * 8 * 2 + 80 * 6 * 1 + 80 * 2 * 2 + 20 * 6 * 2);
}

TEST_CASE("bytes are those of every stored number and group", "[compressed_cache]") {
  for (const Index step : {1, 2, 3, 60})
    for (const Index recent : {0, 5, 100})
      for (const Index residual : {0, 7, 64})
        for (const Index group : {1, 4, 32}) {
          KeptSet kept(60), prunable(60);
          for (std::size_t p = 0; p < 60; ++p) kept[p] = mark(p % static_cast<std::size_t>(step) == 0);
          prunable = without_recent(kept, recent);
          if (recent == 5) prunable[0] = prunable[6] = 0;
          const std::vector<ChannelSet> masks{{}, {0, 0, 0, 0, 0}, {1, 0, 0, 1, 0}, {1, 1, 1, 1, 1}};
          for (const ChannelSet& pruned : masks) {
            INFO("every " << step << ", recent " << recent << ", residual " << residual << ", group " << group
                          << ", pruned " << count(pruned));
            const Quantization quantization = Quantization::kivi(4, group, residual);
            CHECK(cache_bytes({kept, pruned, prunable, quantization}, 5, 7) ==
                  bytes_by_count(kept, pruned, prunable, 5, 7, quantization));
            CHECK(cache_bytes({kept, pruned, prunable}, 5, 7) ==
                  bytes_by_count(kept, pruned, prunable, 5, 7, std::nullopt));
          }
        }
}

TEST_CASE("what a channel costs is its queries times its change", "[compressed_cache]") {
  const HeadGroup<double> group = random_group({.l = 40, .T = 44, .T_q = 12, .G = 3, .d = 6, .d_v = 5});
  KeptSet kept(40, 1);
  kept[7] = kept[20] = 0;
  const CacheCase which{kept, {}, {}, Quantization{{NumberFormat::int3, true}, {}, 8, 5}};
  const Matrix<double> held = compressed_cache(group, which).k;
  const RowRange rows{36, 44};
  Vector<double> want = Vector<double>::Zero(6);
  for (Index c = 0; c < 6; ++c)
    for (Index g = 0; g < 3; ++g)
      for (Index i = rows.begin; i < rows.end; ++i)
        for (Index p = 0; p < 40; ++p)
          if (kept[p] != 0)
            want[c] += std::pow(group.rule.scale * group.q[g](i - 32, c) * (held(p, c) - group.k(p, c)), 2);
  const Vector<double> found = channel_costs(group, which, rows);
  for (Index c = 0; c < 6; ++c) CHECK(found[c] == Approx(want[c]));
  CHECK(want.minCoeff() > 0);
  // One query, one token: the channels' changes are the logit's.
  CHECK(channel_costs(group, {kept}, rows).isZero(0));
}
