#include "sim/eviction/retrieval/retrieval.hpp"

#include "data/error.hpp"
#include "sim/attention.hpp"
#include "sim/cache/cache_outputs.hpp"
#include "tests/support/catch.hpp"
#include "tests/support/random_group.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <string>
#include <vector>

using namespace kvreplay;
using namespace kvreplay::test;

namespace {

struct Shape {
  std::string name;
  GroupSpec spec;
};

const std::vector<Shape>& shapes() {
  static const std::vector<Shape> list = {
      {"two heads", {.l = 50, .T = 56, .G = 2, .d = 8, .d_v = 5}},
      {"odd d, three heads", {.l = 37, .T = 40, .G = 3, .d = 7, .d_v = 3, .logit_std = 4, .seed = 2}},
      {"the last queries only", {.l = 41, .T = 47, .T_q = 9, .G = 1, .d = 5, .d_v = 4, .seed = 3}},
      {"one row", {.l = 33, .T = 34, .T_q = 1, .G = 2, .d = 6, .d_v = 6, .seed = 4}},
      {"one token", {.l = 1, .T = 4, .G = 2, .d = 4, .d_v = 4, .seed = 5}},
      {"one channel", {.l = 20, .T = 24, .G = 2, .d = 1, .d_v = 4, .seed = 6}},
      {"a sink of weight near 1",
       {.l = 45, .T = 50, .G = 2, .d = 8, .d_v = 4, .attention_sink = 2, .seed = 7}},
      {"sliding window", {.l = 50, .T = 58, .G = 2, .d = 8, .d_v = 4, .sliding_window = 21, .seed = 8}},
      {"soft cap and sink column",
       {.l = 40,
        .T = 46,
        .G = 2,
        .d = 8,
        .d_v = 4,
        .logit_std = 5,
        .softcap = 3.0,
        .sink_logit = 1.5,
        .seed = 9}},
      {"every row sees all", {.l = 30, .T = 36, .G = 2, .d = 8, .d_v = 4, .causal = false, .seed = 10}}};
  return list;
}

Policy policy_of(EvictionBase base) {
  Policy policy;
  policy.name = name_of(base);
  policy.base = base;
  return policy;
}

EvictionRule rule_for(EvictionBase base, Semantics semantics = Semantics::paper) {
  return rule_of(policy_of(base), semantics, {}, 40, 8, false);
}

std::vector<Index> largest_first(const std::vector<double>& values) {
  std::vector<Index> order(values.size());
  std::iota(order.begin(), order.end(), Index{0});
  std::stable_sort(order.begin(), order.end(), [&](Index a, Index b) { return values[a] > values[b]; });
  return order;
}

/// From the definitions, a token and a channel at a time.
class Reference {
 public:
  explicit Reference(const HeadGroup<double>& group) : group_(group) {}

  double q(Index g, Index i, Index c) const { return group_.q[g](i - group_.first_query(), c); }

  double scores_of_page(Index i, Index page, Index size) const {
    double sum = 0;
    for (Index g = 0; g < group_.G(); ++g)
      for (Index c = 0; c < group_.d(); ++c) {
        double most = -std::numeric_limits<double>::infinity();
        for (Index p = page * size; p < std::min((page + 1) * size, group_.l); ++p)
          most = std::max(most, q(g, i, c) * group_.k(p, c));
        sum += most;
      }
    return sum;
  }

  std::vector<double> weights(Index i) const {
    return summed(i, [&](Index g) { return attention_weights(group_, g, attention_logits(group_, g, i).z); });
  }

  /// Weights, or logits, from these channels alone, the latter over `temperature` of a head.
  template <class Temperature>
  std::vector<double> by_channels(Index i, const std::vector<Index>& channels, Temperature temperature,
                                  bool logits) const {
    return summed(i, [&](Index g) {
      Vector<double> z = Vector<double>::Constant(group_.T_all(), -std::numeric_limits<double>::infinity());
      for (Index p = group_.first_visible(i); p < group_.end_visible(i); ++p) {
        z[p] = 0;
        for (const Index c : channels) z[p] += group_.rule.scale * q(g, i, c) * group_.k(p, c);
        z[p] /= temperature(g);
        if (group_.rule.softcap) z[p] = *group_.rule.softcap * std::tanh(z[p] / *group_.rule.softcap);
      }
      return logits ? z : attention_weights(group_, g, z);
    });
  }

  std::vector<double> sparq(Index i, Index r, bool logits) const {
    std::vector<double> sums(static_cast<std::size_t>(group_.d()), 0.0);
    for (Index c = 0; c < group_.d(); ++c)
      for (Index g = 0; g < group_.G(); ++g) sums[c] += std::abs(q(g, i, c));
    std::vector<Index> channels = largest_first(sums);
    channels.resize(static_cast<std::size_t>(r));
    const auto temperature = [&](Index g) {
      double part = 0, whole = 0;
      for (const Index c : channels) part += std::abs(q(g, i, c));
      for (Index c = 0; c < group_.d(); ++c) whole += std::abs(q(g, i, c));
      return std::sqrt(part / whole);
    };
    return by_channels(i, channels, temperature, logits);
  }

  std::vector<Index> heavy(Index r) const {
    std::vector<double> sums(static_cast<std::size_t>(group_.d()), 0.0);
    for (Index i = group_.first_query(); i < group_.l; ++i)
      for (Index c = 0; c < group_.d(); ++c)
        for (Index g = 0; g < group_.G(); ++g) sums[c] += std::abs(q(g, i, c) * group_.k(i, c));
    std::vector<Index> channels = largest_first(sums);
    channels.resize(static_cast<std::size_t>(r));
    return channels;
  }

  std::vector<double> scores(const EvictionRule& rule, Index i) const {
    const Index r = rule.r.value_or(std::max<Index>(group_.d() / 4, 1));
    std::vector<double> pages;
    switch (*rule.reads) {
      case ReadBy::weight:
      case ReadBy::weight_share:
        return weights(i);
      case ReadBy::page_bounds:
        for (Index n = 0; n * rule.page < group_.l; ++n) pages.push_back(scores_of_page(i, n, rule.page));
        return pages;
      case ReadBy::query_channels:
        return sparq(i, r, rule.reads_by_logits);
      case ReadBy::heavy_channels:
        return by_channels(
            i, heavy(r), [](Index) { return 1.0; }, false);
    }
    return {};
  }

  /// The pages that a row reads: what is pinned, sinks first, then the largest scores.
  std::vector<std::uint8_t> read(const EvictionRule& rule, Index i, Index budget) const {
    const std::vector<double> all = scores(rule, i);
    std::vector<std::uint8_t> read(all.size(), 0);
    const Index begin = group_.first_visible(i), end = std::min(group_.end_visible(i), group_.l);
    const auto seen = [&](Index n) { return (n + 1) * rule.page > begin && n * rule.page < end; };
    Index left = budget / rule.page;
    const auto take = [&](Index n) {
      if (left == 0 || read[n] != 0 || !seen(n)) return;
      read[n] = 1;
      --left;
    };
    for (Index p = 0; p < rule.sinks; ++p)
      if (p / rule.page < std::ssize(all)) take(p / rule.page);
    for (Index p = end - 1; p >= std::max(end - rule.recent, begin); --p) take(p / rule.page);
    for (const Index n : largest_first(all)) take(n);
    return read;
  }

 private:
  template <class OfHead>
  std::vector<double> summed(Index, const OfHead& of_head) const {
    std::vector<double> sums(static_cast<std::size_t>(group_.l), 0.0);
    for (Index g = 0; g < group_.G(); ++g) {
      const Vector<double> one = of_head(g);
      for (Index p = 0; p < group_.l; ++p) sums[p] += one[p];
    }
    return sums;
  }

  const HeadGroup<double>& group_;
};

std::vector<EvictionRule> rules() {
  std::vector<EvictionRule> all = {
      rule_for(EvictionBase::top_k), rule_for(EvictionBase::quest), rule_for(EvictionBase::sparq),
      rule_for(EvictionBase::sparq, Semantics::official), rule_for(EvictionBase::double_sparsity)};
  const std::size_t plain = all.size();
  for (std::size_t n = 0; n < plain; ++n) {
    EvictionRule& pinned = all.emplace_back(all[n]);
    pinned.sinks = 3;
    pinned.recent = 2;
    if (pinned.reads == ReadBy::page_bounds) pinned.page = 4;
    pinned.r = 1;
  }
  return all;
}

RowRange all_rows(const HeadGroup<double>& group) { return {group.first_query(), group.T_all()}; }

double change_sq(const HeadGroup<double>& group, RowRange rows, const PagesRead& pages) {
  return output_change_reference(group, rows,
                                 {.kept = KeptSet(static_cast<std::size_t>(group.l), 1), .pages = pages})
      .change_sq;
}

}  // namespace

TEST_CASE("each row reads what its policy's definition says", "[retrieval]") {
  Workers workers(2);
  for (const Shape& shape : shapes()) {
    const HeadGroup<double> group = random_group(shape.spec);
    const Reference reference(group);
    for (const EvictionRule& rule : rules()) {
      if (rule.reads == ReadBy::heavy_channels && group.first_query() >= group.l) continue;
      for (const Index budget : {Index{1}, Index{5}, Index{17}, Index{32}}) {
        if (budget >= group.l) continue;
        INFO(shape.name << ", " << rule.policy.name << ", page " << rule.page << ", budget " << budget);
        const ReadRequest asked{&rule, budget};
        const PagesRead got =
            rows_read(group, {&asked, 1}, all_rows(group), all_rows(group), workers).front();
        REQUIRE(std::ssize(got.read) == group.T_q());
        for (Index i = group.first_query(); i < group.T_all(); ++i) {
          INFO("position " << i);
          REQUIRE(got.read[i - got.first_row] == reference.read(rule, i, budget));
        }
      }
    }
  }
}

TEST_CASE("top_p reads the fewest tokens that reach one share, and no more than the budget on average",
          "[retrieval]") {
  Workers workers(2);
  for (const Shape& shape : shapes()) {
    const HeadGroup<double> group = random_group(shape.spec);
    const Reference reference(group);
    const RowRange judged = future_rows(group.l, group.T_all(), group.first_query());
    const EvictionRule rule = rule_for(EvictionBase::top_p);
    for (const Index budget : {Index{1}, Index{6}, Index{15}}) {
      if (budget >= group.l) continue;
      INFO(shape.name << ", budget " << budget);
      const ReadRequest asked{&rule, budget};
      const PagesRead got = rows_read(group, {&asked, 1}, all_rows(group), judged, workers).front();
      // Between what the rows would have with a token less, and what they have, lies the share of them all.
      double more_than = 0, at_most = 1;
      bool could_read_more = false;
      for (Index i = group.first_query(); i < group.T_all(); ++i) {
        const std::vector<double> weights = reference.weights(i);
        const std::vector<Index> order = largest_first(weights);
        const Index begin = group.first_visible(i), end = std::min(group.end_visible(i), group.l);
        const double heads = static_cast<double>(group.G());
        double mass = 1 - std::accumulate(weights.begin(), weights.end(), 0.0) / heads;
        Index n = 0;
        std::vector<std::uint8_t> want(weights.size(), 0);
        for (const Index p : order) {
          if (got.read[i - got.first_row][p] == 0) break;
          want[p] = 1;
          more_than = std::max(more_than, mass);
          mass += weights[p] / heads;
          ++n;
        }
        CHECK(got.read[i - got.first_row] == want);  // the largest weights, none left out in between
        if (n == end - begin) continue;
        at_most = std::min(at_most, mass);
        could_read_more = could_read_more || i >= judged.begin;
      }
      CHECK(more_than <= at_most + 1e-12);
      CHECK(mean_tokens_read(group, got, judged) <= static_cast<double>(budget));
      // One more token of the row that is nearest to the share would be too many.
      const double read = mean_tokens_read(group, got, judged) * static_cast<double>(judged.count());
      if (could_read_more) CHECK(read + 1 > static_cast<double>(budget * judged.count()));
    }
  }
}

TEST_CASE("who reads everything loses nothing", "[retrieval]") {
  Workers workers(1);
  const HeadGroup<double> group = random_group({.l = 50, .T = 56, .G = 2, .d = 8, .d_v = 5});
  for (EvictionRule rule : rules()) {
    const ReadRequest whole{&rule, group.l}, most{&rule, group.l - 1};
    const PagesRead all = rows_read(group, {&whole, 1}, all_rows(group), all_rows(group), workers).front();
    CHECK(all == PagesRead{});
    CHECK(change_sq(group, all_rows(group), all) == 0);
    rule.dense = 1;  // the group is of layer 0
    CHECK(rows_read(group, {&most, 1}, all_rows(group), all_rows(group), workers).front() == PagesRead{});
  }
}

TEST_CASE("threads and what else is asked for change nothing of what is read", "[retrieval]") {
  Workers alone(1), four(4);
  const HeadGroup<float> group = to_float(random_group({.l = 90, .T = 96, .G = 3, .d = 9, .d_v = 5}));
  const RowRange rows{0, 96};
  for (const EvictionRule& rule : rules()) {
    const ReadRequest one{&rule, 20}, other{&rule, 50};
    const PagesRead want = rows_read(group, {&one, 1}, rows, rows, alone).front();
    CHECK(rows_read(group, std::vector{other, one}, rows, rows, four)[1] == want);
    const PagesRead later = rows_read(group, {&one, 1}, {70, 96}, rows, four).front();
    for (Index i = 70; i < 96; ++i) CHECK(later.read[i - 70] == want.read[i]);
  }
}

TEST_CASE(
    "on average the largest weights cost less than pages of largest bound, and these less than pages at "
    "random",
    "[retrieval]") {
  Workers workers(1);
  const EvictionRule top_k = rule_for(EvictionBase::top_k);
  EvictionRule quest = rule_for(EvictionBase::quest);
  quest.page = 4;
  double of_top_k = 0, of_quest = 0, of_random = 0;
  for (std::uint64_t seed = 1; seed <= 20; ++seed) {
    const HeadGroup<double> group =
        random_group({.l = 64, .T = 72, .G = 2, .d = 8, .d_v = 6, .logit_std = 2, .seed = seed});
    const RowRange rows{64, 72};
    const ReadRequest tokens{&top_k, 16}, pages{&quest, 16};
    of_top_k += change_sq(group, rows, rows_read(group, {&tokens, 1}, rows, rows, workers).front());
    PagesRead read = rows_read(group, {&pages, 1}, rows, rows, workers).front();
    of_quest += change_sq(group, rows, read);
    for (auto& row : read.read)
      for (std::size_t n = 0; n < row.size(); ++n) row[n] = (n + seed) % 4 == 0 ? 1 : 0;
    of_random += change_sq(group, rows, read);
  }
  CHECK(of_top_k < 0.7 * of_quest);
  CHECK(of_quest < 0.9 * of_random);
}

TEST_CASE("a page's bound is above every logit of its tokens, and that of a page of one token is the logit",
          "[retrieval]") {
  Workers workers(1);
  const HeadGroup<double> group = random_group({.l = 40, .T = 44, .G = 2, .d = 7, .d_v = 4});
  EvictionRule rule = rule_for(EvictionBase::quest);
  for (const Index page : {1, 16}) {
    rule.page = page;
    const Matrix<double> scores = row_scores(group, rule, {40, 44}, workers);
    REQUIRE(scores.cols() == (page == 1 ? 40 : 3));
    for (Index r = 0; r < 4; ++r)
      for (Index p = 0; p < 40; ++p) {
        double logit = 0;
        for (const auto& q : group.q) logit += q.row(40 + r).dot(group.k.row(p));
        CHECK(scores(r, p / page) >= logit - 1e-12);
        if (page == 1) CHECK(scores(r, p) == Approx(logit).margin(1e-12));
      }
  }
}

TEST_CASE("what is read to choose, by hand", "[retrieval]") {
  EvictionRule rule = rule_for(EvictionBase::quest);
  CHECK(read_index(rule, 33, 8).held == 2 * 8 * 3);  // 3 pages
  CHECK(read_index(rule, 33, 8).read == 2 * 8 * 3);
  rule = rule_for(EvictionBase::sparq);
  CHECK(read_index(rule, 33, 8).held == 0);
  CHECK(read_index(rule, 33, 8).read == 2 * 33);
  CHECK(read_index(rule, 33, 3).read == 1 * 33);
  rule = rule_for(EvictionBase::double_sparsity);
  rule.r = 5;
  CHECK(read_index(rule, 33, 8).held == 5 * 33);
  CHECK(read_index(rule, 33, 8).read == 5 * 33);
  CHECK(read_index(rule_for(EvictionBase::top_p), 33, 8).read == 0);
  // Rows at positions 2 and 5 of a prompt of 4 tokens, which they see 3 and 4 of.
  const HeadGroup<double> group = random_group({.l = 4, .T = 6, .G = 1, .d = 4, .d_v = 4});
  CHECK(mean_tokens_read(group, {2, 2, {{1, 1}}}, {2, 3}) == 3);
  CHECK(mean_tokens_read(group, {2, 2, {{0, 1}, {}, {}, {0, 1}}}, {2, 3}) == 1);
  CHECK(mean_tokens_read(group, {1, 4, {{1, 0, 0, 1}, {1, 1, 1, 1}}}, {4, 6}) == 3);
  CHECK(mean_tokens_read(group, {}, {2, 6}) == 3.75);
}

TEST_CASE("what a budget comes to in tokens that are read", "[retrieval]") {
  Policy quest = policy_of(EvictionBase::quest);
  const Policy top_k = policy_of(EvictionBase::top_k);
  CHECK(tokens_within(quest, 47, 100) == 32);
  CHECK(tokens_within(quest, 15, 100) == 0);
  CHECK(tokens_within(quest, 100, 100) == 100);
  CHECK(tokens_within(top_k, 47, 100) == 47);
  quest.own.page = 5;
  CHECK(tokens_within(quest, 47, 100) == 45);
}

TEST_CASE("numbers beyond the type are an input error", "[retrieval]") {
  Workers workers(1);
  HeadGroup<float> group = to_float(random_group({.l = 40, .T = 44, .G = 1, .d = 4, .d_v = 4}));
  group.k.row(7).setConstant(3e38F);
  group.q[0].row(42).setConstant(3e38F);
  for (const EvictionRule& rule : rules()) {
    const ReadRequest asked{&rule, 8};
    CHECK_THROWS_AS(rows_read(group, {&asked, 1}, {40, 44}, {40, 44}, workers), InputError);
  }
}
