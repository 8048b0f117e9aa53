#include "data/error.hpp"
#include "sim/head_group.hpp"
#include "tests/sim/kept_outputs_rows.hpp"
#include "tests/support/cases.hpp"
#include "tests/support/catch.hpp"
#include "tests/support/index_sets.hpp"
#include "tests/support/kept_changes.hpp"
#include "tests/support/random_group.hpp"

#include <algorithm>
#include <cmath>
#include <string>
#include <tuple>
#include <vector>

using namespace kvreplay;
using namespace kvreplay::test;

namespace {

struct Case {
  std::string name;
  HeadGroup<double> group;
};

/// Every attention rule and odd size, and what only gathered columns can get wrong: tiles end after 252 of
/// them, panels after 16 rows (float64) or 32 (float32).
const std::vector<Case>& cases() {
  static const std::vector<Case> list = [] {
    std::vector<Case> all;
    for (const TokenCase& c : small_token_cases()) all.push_back({c.name, c.group()});
    const std::vector<GroupSpec> large{
        {.l = 252, .T = 253, .T_q = 17, .G = 1, .seed = 401},
        {.l = 505, .T = 509, .T_q = 33, .G = 1, .attention_sink = 251, .sink_logit = 1.0, .seed = 402},
        {.l = 600, .T = 640, .T_q = 70, .G = 1, .logit_std = 3.0, .sliding_window = 260, .seed = 403},
        {.l = 520, .T = 530, .T_q = 40, .G = 1, .d = 5, .d_v = 3, .causal = false, .seed = 404}};
    for (const GroupSpec& spec : large) all.push_back({"l = " + std::to_string(spec.l), random_group(spec)});
    // A cache of its own, whose rows are not adjacent positions.
    const HeadGroup<double> group = random_group({.l = 60, .T = 70, .sliding_window = 15, .seed = 405});
    std::vector<Index> tokens;
    for (Index p = 0; p < 70; ++p)
      if (p % 3 != 1 || p >= 58) tokens.push_back(p);
    all.push_back({"positions of a cache, sliding window 15", cache_group(group, tokens, 12)});
    return all;
  }();
  return list;
}

std::vector<RowRange> row_sets(const HeadGroup<double>& group) {
  std::vector<RowRange> sets{{group.first_query(), group.T_all()},
                             {group.T_all() - 1, group.T_all()},
                             window_rows(group.l, group.first_query(), 20)};
  std::erase_if(sets, [](RowRange rows) { return rows.count() == 0; });
  return sets;
}

/// With biases of either sign, far apart.
template <class T>
Cache<T> biased(Cache<T> cache) {
  cache.bias = Vector<T>::NullaryExpr(std::ssize(cache.kept), [](Index p) {
    return static_cast<T>(p % 7 == 0 ? 30 : static_cast<double>(p % 5) - 3.5);
  });
  return cache;
}

/// Each row reads about two pages of three, the first row none.
template <class T>
Cache<T> paged(Cache<T> cache, const HeadGroup<T>& group, Index size) {
  const Index first = group.first_query();
  cache.pages = {.size = size, .first_row = first};
  cache.pages.read.resize(group.T_q());
  for (Index r = 0; r < group.T_q(); ++r)
    for (Index page = 0; page < div_up(group.l, size); ++page)
      cache.pages.read[r].push_back(r > 0 && (3 * r + 5 * page) % 7 > 1 ? 1 : 0);
  return cache;
}

/// Nothing changed first; then each way to compress alone, and all of them at once.
template <class T>
std::vector<Cache<T>> caches(const HeadGroup<T>& group) {
  const Index l = group.l, d = group.d();
  const KeptSet all = every(l, 1, 0), odd = every(l, 2, 1), none(static_cast<std::size_t>(l), 0);
  const ChannelSet even_channels = every(d, 2, 0), last = every(d, d, d - 1);
  return {compressed_cache<T>(group, {all}),
          compressed_cache<T>(group, {odd}),
          compressed_cache<T>(group, {none}),
          compressed_cache<T>(group, {none, even_channels, none, Quantization::kivi(2, 4, 0)}),
          compressed_cache<T>(group, {every(l, l, l / 2), even_channels, every(l, l, l / 2)}),
          compressed_cache<T>(group, {all, even_channels, all}),
          compressed_cache<T>(group, {all, even_channels, odd}),
          compressed_cache<T>(group, {all, every(d, 1, 0), without_recent(all, 5)}),
          compressed_cache<T>(group, {all, {}, {}, Quantization::kivi(4, 8, 3)}),
          compressed_cache<T>(group, {odd, last, without_recent(odd, 3), Quantization::kivi(2, 4, 5)}),
          biased(compressed_cache<T>(group, {odd})),
          biased(compressed_cache<T>(group, {all, even_channels, odd})),
          paged(compressed_cache<T>(group, {all}), group, 16),
          paged(compressed_cache<T>(group, {odd}), group, 1),
          paged(biased(compressed_cache<T>(
                    group, {odd, even_channels, without_recent(odd, 2), Quantization::kivi(4, 8, 3)})),
                group, 16)};
}

/// ||got - want|| over all rows and heads.
template <class T>
double distance(const PanelRows<T>& got, const std::vector<Matrix<double>>& want) {
  double sum = 0;
  for (std::size_t g = 0; g < want.size(); ++g)
    for (Index r = 0; r < want[g].rows(); ++r)
      sum += (row_of(got[g], want[g].cols(), r) - want[g].row(r).transpose()).squaredNorm();
  return std::sqrt(sum);
}

template <class T>
double total_sq(const PanelRows<T>& heads) {
  double sum = 0;
  for (const std::vector<T>& head : heads)
    for (const T x : head) sum += static_cast<double>(x) * static_cast<double>(x);
  return sum;
}

/// Each cache's vectors and sums against brute force, `tolerance` of the outputs' norm.
template <class T>
void check_against_reference(const std::string& name, const HeadGroup<double>& of, double tolerance) {
  Workers workers(1);
  const HeadGroup<T> group = converted<T>(of);
  const HeadGroup<double> judged = converted<double>(group);
  const std::vector<Cache<T>> list = caches(group);
  for (const RowRange rows : row_sets(judged)) {
    const CacheOutputs<T> outputs(group, rows, workers);
    for (std::size_t n = 0; n < list.size(); ++n) {
      const OutputChangeReference want = output_change_reference(judged, rows, converted<double>(list[n]));
      const auto got = outputs.change(list[n], true);
      INFO(name << ", rows " << rows.begin << " to " << rows.end << ", cache " << n << ": want "
                << want.change_sq << " of " << want.full_sq << ", got " << got.change_sq << " of "
                << outputs.full_sq());
      const double allowed = tolerance * std::sqrt(want.full_sq + want.change_sq);
      CHECK(distance(got.vectors, want.change) <= allowed);
      CHECK(std::abs(std::sqrt(outputs.full_sq()) - std::sqrt(want.full_sq)) <= allowed);
      // Where outputs vanish the sums are of float64 vectors, which are then rounded.
      const double rounding = sizeof(T) == 4 && want.full_sq < 1e-12 ? 1e-6 : 1e-12;
      CHECK(total_sq(got.vectors) == Approx(got.change_sq).epsilon(rounding).margin(1e-290));
      CHECK(total_sq(outputs.full()) == Approx(outputs.full_sq()).epsilon(rounding).margin(1e-290));
      CHECK(outputs.change(list[n], false).change_sq == got.change_sq);
      CHECK(outputs.change(list[n], false).vectors.empty());
    }
  }
}

}  // namespace

TEST_CASE("float64 changes of compressed caches agree with brute force", "[compressed_outputs]") {
  for (const Case& c : cases()) check_against_reference<double>(c.name, c.group, 1e-9);
}

// A logit of 200 is known to 2e-5 in float32, and so is its weight.
TEST_CASE("float32 changes of compressed caches agree with brute force", "[compressed_outputs]") {
  for (const Case& c : cases()) check_against_reference<float>(c.name, c.group, 1e-4);
}

TEST_CASE("changes at a sink of value 0 are right however much of a row it holds", "[compressed_outputs]") {
  Workers workers(2);
  const RowRange rows{60, 80};
  const auto check = [&]<class T>(T /*type*/, double gap) {
    const HeadGroup<T> group = converted<T>(random_group(
        {.l = 70, .T = 80, .d_v = 5, .value_offset = 0.5, .attention_sink = 0, .worthless_by = gap}));
    const CacheOutputs<T> outputs(group, rows, workers);
    const std::vector<Cache<T>> list = caches(group);
    for (std::size_t n = 0; n < list.size(); ++n) {
      INFO("gap " << gap << ", cache " << n);
      const OutputChangeReference want =
          output_change_reference(converted<double>(group), rows, converted<double>(list[n]));
      const auto got = outputs.change(list[n], gap < 80);
      CHECK(std::sqrt(outputs.full_sq()) == Approx(std::sqrt(want.full_sq)).epsilon(1e-9));
      CHECK(std::sqrt(got.change_sq) == Approx(std::sqrt(want.change_sq)).epsilon(1e-9));
      if (gap < 80) CHECK(total_sq(got.vectors) == Approx(want.change_sq).epsilon(1e-6));
    }
  };
  for (const double gap : {20.0, 30.0, 45.0, 60.0, 300.0}) {
    check(float(), gap);
    check(double(), gap);
  }
}

TEST_CASE("logits of ordinary size leave nothing but rounding", "[compressed_outputs]") {
  const std::vector<GroupSpec> specs{
      {.l = 300, .T = 310, .T_q = 40, .d = 64, .d_v = 64},
      {.l = 300, .T = 310, .T_q = 40, .d = 64, .d_v = 64, .value_offset = 30.0},
      {.l = 300, .T = 310, .T_q = 40, .d = 64, .d_v = 64, .softcap = 15.0, .sink_logit = 2.0}};
  for (const GroupSpec& spec : specs) {
    check_against_reference<double>("float64", random_group(spec), 1e-14);
    // Where all channels are pruned, equal weights are added up: their rounding errors have one sign.
    check_against_reference<float>("float32", random_group(spec), 2e-6);
  }
}

TEST_CASE("a cache that holds everything as it was changes nothing, to the bit", "[compressed_outputs]") {
  Workers workers(2);
  for (const Case& c : cases()) {
    INFO(c.name);
    HeadGroup<float> group = converted<float>(c.group);
    const Index l = group.l, d = group.d();
    const RowRange rows{group.first_query(), group.T_all()};
    const KeptSet all = every(l, 1, 0), odd = every(l, 2, 1);
    const ChannelSet no_channels(static_cast<std::size_t>(d), 0), even_channels = every(d, 2, 0);
    const auto change_sq = [&](const ChannelSet& pruned, const KeptSet& prunable) {
      return CacheOutputs<float>(group, rows, workers)
          .change(compressed_cache(group, {all, pruned, prunable}), false)
          .change_sq;
    };
    CHECK(change_sq({}, {}) == 0);
    CHECK(change_sq(no_channels, all) == 0);
    CHECK(change_sq(no_channels, odd) == 0);
    CHECK(change_sq(even_channels, KeptSet(all.size(), 0)) == 0);
    // Channels that were 0 before.
    for (Index c0 = 0; c0 < d; c0 += 2) group.k.col(c0).head(l).setZero();
    CHECK(change_sq(even_channels, odd) == 0);
    CHECK(change_sq(even_channels, all) == 0);
  }
}

TEST_CASE("a vector subtracted from all keys changes no output, unless logits are capped or a sink has one",
          "[compressed_outputs][center]") {
  Workers workers(1);
  double most_changed = 0;
  for (const GroupSpec& spec : {GroupSpec{.G = 3, .d = 7, .d_v = 5}, GroupSpec{.sliding_window = 9},
                                GroupSpec{.G = 1, .d = 8, .causal = false}, GroupSpec{.softcap = 5.0},
                                GroupSpec{.sink_logit = 1.0}}) {
    const HeadGroup<double> of = random_group(spec);
    HeadGroup<double> shifted = of;
    shifted.k.rowwise() -= key_center(of, 0).transpose();  // decoded keys, too
    const RowRange rows{of.first_query(), of.T_all()};
    const HeadGroup<float> group = converted<float>(of), other = converted<float>(shifted);
    const CacheOutputs<float> outputs(group, rows, workers), moved(other, rows, workers);
    double off = 0;
    for (std::size_t g = 0; g < outputs.full().size(); ++g)
      for (std::size_t n = 0; n < outputs.full()[g].size(); ++n) {
        const double apart =
            static_cast<double>(outputs.full()[g][n]) - static_cast<double>(moved.full()[g][n]);
        off += apart * apart;
      }
    if (spec.softcap || spec.sink_logit)
      most_changed = std::max(most_changed, off / outputs.full_sq());
    else
      CHECK(off <= 1e-12 * outputs.full_sq());
  }
  CHECK(most_changed > 1e-6);
}

TEST_CASE("centered and turned caches agree with brute force", "[compressed_outputs][center]") {
  Workers workers(1);
  for (const Case& c : cases()) {
    const HeadGroup<double> of = converted<double>(converted<float>(c.group));
    const HeadGroup<float> group = converted<float>(of);
    const RowRange rows{of.first_query(), of.T_all()};
    const CacheOutputs<float> outputs(group, rows, workers);
    for (const auto& [kept, turn, from] :
         {std::tuple(every(of.l, 1, 0), false, Index{0}), std::tuple(every(of.l, 2, 1), true, Index{4}),
          std::tuple(every(of.l, 3, 0), true, of.l)}) {
      Quantization stored = Quantization::kivi(4, 8, 3);
      stored.k.centered = from;
      stored.k.turned = turn && turning_block(of.d()) > 1 ? turning_block(of.d()) : 0;
      KeptSet held = kept;
      std::fill_n(held.begin(), of.first_held(), std::uint8_t{1});
      const CacheCase which{held, {}, {}, stored};
      INFO(c.name << ", turned " << stored.k.turned << ", mean from " << from);
      const Cache<float> cache = compressed_cache(group, which);
      // The definition: mean, matrix, groups of the cache's neighbours, and all of it back.
      Matrix<double> want = of.k;
      Vector<double> mean = Vector<double>::Zero(of.d());
      for (Index p = from; p < of.l; ++p) mean += of.k.row(p).transpose() / static_cast<double>(of.l - from);
      const std::vector<Index> tokens = positions(held);
      const Index whole = std::max<Index>(std::ssize(tokens) - 3, 0) / 8 * 8;
      for (Index n = 0; n < whole; ++n) want.row(tokens[n]) -= mean.transpose();
      Quantization uncentered = stored;
      uncentered.k.centered.reset();
      quantize_keys(want, tokens, {}, {}, uncentered);
      for (Index n = 0; n < whole; ++n) want.row(tokens[n]) += mean.transpose();
      double off = 0, size = 0;
      for (const Index p : tokens) {
        off += (cache.k.row(p).cast<double>() - want.row(p)).squaredNorm();
        size += want.row(p).squaredNorm();
      }
      // A number halfway between two steps may fall to either.
      CHECK(off <= 1e-3 * size);
      const OutputChangeReference judged = output_change_reference(of, rows, converted<double>(cache));
      if (judged.full_sq < 1e-12) continue;  // a sink takes all
      CHECK(std::abs(std::sqrt(outputs.change(cache, false).change_sq) - std::sqrt(judged.change_sq)) <=
            3e-6 * std::sqrt(judged.full_sq + judged.change_sq));
    }
  }
}

TEST_CASE("eviction alone is what output_changes says, to the byte", "[compressed_outputs]") {
  Workers workers(2);
  for (const Case& c : cases()) {
    const HeadGroup<float> group = converted<float>(c.group);
    const Index l = group.l;
    const RowRange rows{group.first_query(), group.T_all()};
    std::vector<KeptSet> sets{every(l, 2, 0), every(l, 5, 2), every(l, l, l), every(l, 1, l / 3)};
    for (KeptSet& set : sets) std::fill_n(set.begin(), group.first_held(), std::uint8_t{1});
    const OutputChanges<float> want = kept_changes(group, rows, sets, true, workers);
    const CacheOutputs<float> outputs(group, rows, workers);
    CHECK(outputs.full_sq() == want.full_sq);
    CHECK(outputs.full() == want.full);
    for (std::size_t s = 0; s < sets.size(); ++s) {
      INFO(c.name << ", set " << s);
      const auto got = outputs.change(compressed_cache<float>(group, {sets[s]}), true);
      CHECK(got.change_sq == want.change_sq[s]);
      CHECK(got.vectors == want.change[s]);
    }
  }
}

TEST_CASE("caches together are what they are one after the other, to the byte", "[compressed_outputs]") {
  Workers workers(2);
  for (const Case& c : cases()) {
    const HeadGroup<float> group = converted<float>(c.group);
    const RowRange rows{group.first_query(), group.T_all()};
    const std::vector<Cache<float>> all = caches(group);
    const OutputChanges<float> together = output_changes(group, rows, all, true, workers);
    const CacheOutputs<float> outputs(group, rows, workers);
    CHECK(together.full == outputs.full());
    for (std::size_t n = 0; n < all.size(); ++n) {
      INFO(c.name << ", cache " << n);
      const auto one = outputs.change(all[n], true);
      CHECK(together.change_sq[n] == one.change_sq);
      CHECK(together.change[n] == one.vectors);
    }
  }
}

TEST_CASE("a row that reads a page attends to its kept tokens alone", "[compressed_outputs]") {
  Workers workers(1);
  const HeadGroup<double> group = random_group({.l = 64, .T = 70, .T_q = 6});
  const KeptSet kept = every(64, 3, 0);
  const CacheOutputs<double> outputs(group, {64, 70}, workers);
  for (Index page = 0; page < 4; ++page) {
    KeptSet on_page = kept;
    for (Index p = 0; p < 64; ++p)
      if (p / 16 != page) on_page[p] = 0;
    Cache<double> cache{kept};
    cache.pages = {.size = 16, .first_row = 64};
    cache.pages.read.assign(6, std::vector<std::uint8_t>(4, 0));
    for (std::vector<std::uint8_t>& row : cache.pages.read) row[page] = 1;
    const auto got = outputs.change(cache, true), want = outputs.change({on_page}, true);
    CHECK(got.change_sq == Approx(want.change_sq).epsilon(1e-12));
    CHECK(got.change_sq > 0);
    std::vector<std::uint8_t> all(4, 1);
    cache.pages.read.assign(6, all);
    CHECK(outputs.change(cache, true).vectors == outputs.change({kept}, true).vectors);
  }
}

TEST_CASE("threads change no byte", "[compressed_outputs]") {
  Workers alone(1), four(4);
  for (const Case& c : cases()) {
    const HeadGroup<float> group = converted<float>(c.group);
    const RowRange rows{group.first_query(), group.T_all()};
    const CacheOutputs<float> one(group, rows, alone), many(group, rows, four);
    CHECK(one.full_sq() == many.full_sq());
    CHECK(one.full() == many.full());
    for (const Cache<float>& cache : caches(group)) {
      INFO(c.name);
      const auto want = one.change(cache, true), got = many.change(cache, true);
      CHECK(got.change_sq == want.change_sq);
      CHECK(got.vectors == want.vectors);
    }
  }
}

TEST_CASE("keys without channels are attended to alike", "[compressed_outputs]") {
  Workers workers(1);
  for (const bool sink : {false, true})
    for (const std::optional<Index> window : {std::optional<Index>(), std::optional<Index>(9)}) {
      GroupSpec spec{.T = 40, .value_offset = 1.0, .sliding_window = window};
      if (sink) spec.sink_logit = 2.0;
      const HeadGroup<double> group = random_group(spec);
      const KeptSet kept = every(40, 3, 0);
      auto cache = compressed_cache(group, {kept, every(group.d(), 1, 0), kept});
      cache.kept = kept;  // without positions that left a window, either
      const CacheOutputs<double> outputs(group, {0, 40}, workers);
      const auto change = outputs.change(cache, true);
      for (std::size_t g = 0; g < 2; ++g)
        for (Index i = 0; i < 40; ++i) {
          Vector<double> mean = Vector<double>::Zero(group.d_v());
          double weights = sink ? std::exp(2.0 + 0.25 * static_cast<double>(g)) : 0.0;
          for (Index p = group.first_visible(i); p <= i; ++p)
            if (p % 3 == 0) {
              mean += group.v.row(p).transpose();
              weights += 1;
            }
          const Vector<double> got =
              row_of(outputs.full()[g], group.d_v(), i) + row_of(change.vectors[g], group.d_v(), i);
          CHECK((got - mean / weights).norm() < 1e-13);
        }
    }
}

TEST_CASE("permuting channels of queries, keys and the mask changes nothing", "[compressed_outputs]") {
  Workers workers(1);
  const HeadGroup<double> group = random_group({.l = 60, .T = 66, .G = 3, .d = 7, .d_v = 6});
  HeadGroup<double> other = group;
  const ChannelSet pruned{1, 0, 1, 1, 0, 0, 0};
  ChannelSet moved(7);
  for (Index c = 0; c < 7; ++c) {
    const Index to = (3 * c + 2) % 7;
    other.k.col(to) = group.k.col(c);
    for (std::size_t g = 0; g < 3; ++g) other.q[g].col(to) = group.q[g].col(c);
    moved[to] = pruned[c];
  }
  const KeptSet kept = every(60, 2, 0), prunable = without_recent(kept, 4);
  const Quantization quantization = Quantization::kivi(4, 5, 6);
  const RowRange rows{0, 66};
  const CacheOutputs<double> outputs(group, rows, workers), others(other, rows, workers);
  const double want =
      outputs.change(compressed_cache(group, {kept, pruned, prunable, quantization}), false).change_sq;
  const double got =
      others.change(compressed_cache(other, {kept, moved, prunable, quantization}), false).change_sq;
  const double unmoved =
      others.change(compressed_cache(other, {kept, pruned, prunable, quantization}), false).change_sq;
  CHECK(others.full_sq() == Approx(outputs.full_sq()).epsilon(1e-12));
  CHECK(got == Approx(want).epsilon(1e-12));
  CHECK(std::abs(unmoved - want) > 1e-3 * want);
}

TEST_CASE("the more bits, the smaller the change", "[compressed_outputs]") {
  Workers workers(1);
  const HeadGroup<double> group = random_group({.l = 200, .T = 210, .T_q = 30, .d = 16, .d_v = 16});
  const CacheOutputs<double> outputs(group, {180, 210}, workers);
  const auto change_sq = [&](Index bits, Index residual) {
    const auto cache =
        compressed_cache<double>(group, {every(200, 1, 0), {}, {}, Quantization::kivi(bits, 32, residual)});
    return outputs.change(cache, false).change_sq;
  };
  CHECK(change_sq(8, 0) > 0);
  CHECK(change_sq(8, 0) < change_sq(4, 0) / 20);
  CHECK(change_sq(4, 0) < change_sq(2, 0) / 5);
  CHECK(change_sq(2, 160) < change_sq(2, 0));
  CHECK(change_sq(2, 200) == 0);
}

// Two keys of two channels: weights 3/4 and 1/4 become 1/4 and 3/4 when the first key loses its second
// channel.
TEST_CASE("two tokens and one query by hand, with a channel pruned", "[compressed_outputs]") {
  Workers workers(1);
  HeadGroup<double> group = random_group({.l = 2, .T = 2, .T_q = 1, .G = 1, .d = 2, .d_v = 2});
  group.rule.scale = 0.5;
  group.q[0] << 2, 1;
  group.k << 0, 2 * std::log(9.0), std::log(3.0), 0;  // logits ln 9 and ln 3
  group.v << 1, 2, 5, -2;                             // o = (2, 1)
  const auto cache = compressed_cache<double>(group, {{1, 1}, {0, 1}, {1, 1}});
  const CacheOutputs<double> outputs(group, {1, 2}, workers);
  const auto change = outputs.change(cache, true);
  CHECK(outputs.full_sq() == Approx(5));
  CHECK(change.change_sq == Approx(8));  // (4, -1) - (2, 1)
  CHECK(row_of(change.vectors[0], 2, 0)(0) == Approx(2));
  const OutputChangeReference reference = output_change_reference(group, {1, 2}, cache);
  CHECK(reference.full_sq == Approx(5));
  CHECK(reference.change_sq == Approx(8));
  CHECK(reference.change[0](0, 1) == Approx(-2));
  // A value that is read back as another: (2, 1) + 3/4 (4, 0).
  Cache<double> other = compressed_cache<double>(group, {{1, 1}});
  other.v = group.v;
  other.v(0, 0) = 5;
  CHECK(outputs.change(other, false).change_sq == Approx(9));
  CHECK(output_change_reference(group, {1, 2}, other).change_sq == Approx(9));
}

TEST_CASE("rows that a cache need not hold are not looked at", "[compressed_outputs]") {
  Workers workers(1);
  const HeadGroup<double> group = random_group({});
  const KeptSet kept = every(40, 3, 0), prunable = without_recent(kept, 2);
  const ChannelSet pruned = every(8, 3, 1);
  const RowRange rows{0, 48};
  Cache<double> cache = compressed_cache(group, {kept, pruned, prunable, Quantization::kivi(4, 4, 2)});
  const CacheOutputs<double> outputs(group, rows, workers);
  const auto want = outputs.change(cache, true);
  const double judged = output_change_reference(group, rows, cache).change_sq;
  for (Index p = 0; p < 48; ++p)  // evicted, and decoded
    if (p >= 40 || kept[p] == 0) {
      cache.k.row(p).setConstant(std::nan(""));
      cache.v.row(p).setConstant(std::nan(""));
    }
  CHECK(outputs.change(cache, true).vectors == want.vectors);
  CHECK(output_change_reference(group, rows, cache).change_sq == judged);
}

TEST_CASE("a compressed logit or output beyond the type is an input error", "[compressed_outputs]") {
  Workers workers(2);
  HeadGroup<double> group = random_group({});
  const RowRange rows{20, 30};
  const auto whole = [&] { return Cache<double>{.kept = every(40, 1, 0), .k = group.k, .v = group.v}; };
  {
    const CacheOutputs<double> outputs(group, rows, workers);
    Cache<double> cache = whole();
    for (const double beyond : {1e308, -1e308}) {
      cache.k.row(25).setConstant(beyond);
      cache.k(25, 0) = -beyond;
      CHECK_THROWS_AS(outputs.change(cache, false), InputError);
    }
    cache = whole();
    cache.k.row(30).setConstant(1e308);  // hidden from all rows, though not from the next
    CHECK(outputs.change(cache, false).change_sq == 0);
    cache.kept[25] = 0;
    cache.k.row(25).setConstant(1e308);  // evicted
    CHECK_NOTHROW(outputs.change(cache, false));
    cache = whole();
    cache.v.row(3).setConstant(1e200);
    CHECK_THROWS_AS(outputs.change(cache, false), InputError);
  }
  // One row sees what overflows for another that does not.
  {
    HeadGroup<double> large = group;
    for (HeadMatrix<double>& q : large.q) q.row(21) *= 1e160;
    const CacheOutputs<double> outputs(large, rows, workers);
    Cache<double> cache = whole();
    cache.k.row(29).setConstant(1e200);
    const OutputChangeReference want = output_change_reference(large, rows, cache);
    CHECK(want.change_sq > 0);
    CHECK(outputs.change(cache, false).change_sq == Approx(want.change_sq));
    cache.k.row(21).setConstant(1e200);
    CHECK_THROWS_AS(outputs.change(cache, false), InputError);
  }
  // The full outputs, too.
  group.k.row(25).setConstant(1e308);
  for (HeadMatrix<double>& q : group.q) q.setConstant(10);
  CHECK_THROWS_AS(CacheOutputs<double>(group, rows, workers), InputError);
  CHECK_NOTHROW(CacheOutputs<double>(group, {20, 25}, workers));
  group = random_group({.sink_logit = 1e39});
  const HeadGroup<float> in_float = converted<float>(group);
  CHECK_THROWS_AS(CacheOutputs<float>(in_float, rows, workers), InputError);
}

TEST_CASE("changes of compressed caches stop where they are asked to", "[compressed_outputs]") {
  Workers workers(2);
  const HeadGroup<double> group = random_group({});
  const CacheOutputs<double> outputs(group, {32, 40}, workers);
  const auto cache = compressed_cache<double>(group, {every(40, 2, 0)});
  workers.stop();
  CHECK_THROWS_AS(outputs.change(cache, false), Interrupted);
}
