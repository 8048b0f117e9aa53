#include "sim/eviction/policy.hpp"

#include "tests/support/catch.hpp"

#include <algorithm>
#include <cmath>
#include <initializer_list>
#include <limits>
#include <numeric>
#include <random>
#include <string>
#include <vector>

using namespace kvreplay;

namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr Pooling kNoPool{};
constexpr Pooling kMax7{Pooling::Kind::max, 7};
constexpr Pooling kAvg5{Pooling::Kind::avg, 5};
constexpr Semantics kAllSemantics[] = {Semantics::paper, Semantics::official, Semantics::kvpress,
                                       Semantics::kvpress_0_5_5};

Vector<double> vec(std::initializer_list<double> values) {
  Vector<double> v(std::ssize(values));
  Index n = 0;
  for (const double x : values) v[n++] = x;
  return v;
}

EvictionRule made(EvictionBase base, Semantics semantics, const PolicyOverrides& overrides = {},
                  Index l = 1000, Index budget = 101, bool has_wo = true) {
  Policy policy;
  policy.base = base;
  return rule_of(policy, semantics, overrides, l, budget, has_wo);
}

/// What is kept of `scores`, as positions.
std::vector<Index> kept_of(const EvictionRule& rule, const Vector<double>& scores, Index budget) {
  return positions(keep_by(rule, scores, budget));
}

EvictionRule pinning(Index sinks, Index recent) {
  EvictionRule rule;
  rule.sinks = sinks;
  rule.recent = recent;
  return rule;
}

using Places = std::vector<Index>;

}  // namespace

TEST_CASE("bases and semantics have their published names", "[policy]") {
  CHECK(kBases.size() == 27);
  std::string names;
  for (const EvictionBase base : kBases.all()) {
    CHECK(kBases.named(name_of(base)) == base);
    names += std::string(name_of(base)) + " ";
  }
  CHECK(
      names ==
      "streaming h2o tova snapkv knorm keydiff expected_attention leverage kvzip rkv triattention score "
      "random oracle "
      "oracle_exact oracle_loss greedy_exact greedy_loss greedy_leverage exchange defensive criticalkv top_k "
      "top_p quest sparq double_sparsity ");
  for (const Semantics semantics : kAllSemantics) CHECK(kSemantics.named(name_of(semantics)) == semantics);
  CHECK(name_of(Semantics::kvpress) == "kvpress");
  CHECK(!kBases.named("H2O"));
  CHECK(!kBases.named(""));
  CHECK(!kSemantics.named("Paper"));
  for (const EvictionBase base : kBases.all())
    CHECK(kBases[base].takes_score == (base == EvictionBase::h2o || base == EvictionBase::tova ||
                                       base == EvictionBase::snapkv || base == EvictionBase::exchange ||
                                       base == EvictionBase::criticalkv));
}

// The table of bases, for l = 1000, a budget of 101 and a dump with wo.
TEST_CASE("every base makes its own choices under every semantics", "[policy]") {
  using M = TokenMetric;
  struct Row {
    EvictionBase base;
    Semantics semantics;
    std::optional<M> metric;
    Index window;
    Pooling pool;
    Index sinks, recent, block;
    bool per_visible_row, shared_by_layer, project_values;
    double epsilon;
  };
  using S = Semantics;
  constexpr Index kAny = -1;  // no row counts
  std::vector<Row> table{
      {EvictionBase::h2o, S::paper, M::attn, 1000, kNoPool, 0, 51, 0, false, false, false, 0.02},
      {EvictionBase::h2o, S::official, M::attn, 1000, kNoPool, 0, 51, 0, false, false, false, 0.02},
      {EvictionBase::h2o, S::kvpress, M::attn, 1000, kNoPool, 0, 0, 0, true, false, false, 0.02},
      {EvictionBase::tova, S::paper, M::attn, 1, kNoPool, 0, 0, 0, false, false, false, 0.02},
      {EvictionBase::tova, S::official, M::attn, 1, kNoPool, 0, 0, 0, false, true, false, 0.02},
      {EvictionBase::tova, S::kvpress, M::attn, 1, kNoPool, 0, 1, 0, false, true, false, 0.02},
      {EvictionBase::snapkv, S::paper, M::attn, 32, kMax7, 0, 32, 0, false, false, false, 0.02},
      {EvictionBase::snapkv, S::official, M::attn, 32, kAvg5, 0, 32, 0, false, false, false, 0.02},
      {EvictionBase::snapkv, S::kvpress, M::attn, 64, kAvg5, 0, 64, 0, false, false, false, 0.02},
      {EvictionBase::criticalkv, S::paper, M::attn, 32, kMax7, 0, 32, 0, false, false, false, 0.02},
      {EvictionBase::criticalkv, S::official, M::attn, 32, kAvg5, 0, 32, 0, false, false, false, 0.02},
      {EvictionBase::criticalkv, S::kvpress, M::attn, 64, kAvg5, 0, 64, 0, false, false, false, 0.02},
      {EvictionBase::keydiff, S::paper, M::keydiff, kAny, kNoPool, 0, 0, 128, false, false, false, 0.02},
      {EvictionBase::keydiff, S::official, M::keydiff, kAny, kNoPool, 0, 0, 128, false, false, false, 0.02},
      {EvictionBase::keydiff, S::kvpress, M::keydiff, kAny, kNoPool, 0, 0, 0, false, false, false, 0.02},
      {EvictionBase::expected_attention, S::paper, M::expected_attention, kAny, kNoPool, 0, 0, 0, false,
       false, true, 0.02},
      {EvictionBase::expected_attention, S::official, M::expected_attention, kAny, kNoPool, 0, 0, 0, false,
       false, true, 0.02},
      {EvictionBase::expected_attention, S::kvpress, M::expected_attention, kAny, kNoPool, 0, 0, 0, false,
       false, false, 0.0},
  };
  for (std::size_t n = 0, named = table.size(); n < named; ++n)  // versions differ in budgets alone
    if (table[n].semantics == S::kvpress) {
      table.push_back(table[n]);
      table.back().semantics = S::kvpress_0_5_5;
    }
  for (const S s : kAllSemantics) {
    table.push_back({EvictionBase::streaming, s, {}, kAny, kNoPool, 4, 97, 0, false, false, false, 0.02});
    table.push_back({EvictionBase::random, s, {}, kAny, kNoPool, 0, 0, 0, false, false, false, 0.02});
    table.push_back({EvictionBase::score, s, {}, 32, kNoPool, 0, 0, 0, false, false, false, 0.02});
    table.push_back({EvictionBase::knorm, s, M::knorm, kAny, kNoPool, 0, 0, 0, false, false, false, 0.02});
    table.push_back({EvictionBase::rkv, s, M::rkv, 8, kNoPool, 0, 8, 0, false, false, false, 0.02});
    table.push_back(
        {EvictionBase::triattention, s, M::triattention, kAny, kNoPool, 0, 0, 0, false, false, false, 0.02});
    const Index kept_first = s == S::kvpress_0_5_5 ? 4 : 0;
    table.push_back(
        {EvictionBase::kvzip, s, M::kvzip, kAny, kNoPool, kept_first, 0, 0, false, false, false, 0.02});
    table.push_back(
        {EvictionBase::oracle, s, M::oracle_importance, kAny, kNoPool, 0, 0, 0, false, false, false, 0.02});
    table.push_back(
        {EvictionBase::oracle_exact, s, M::oracle_future, kAny, kNoPool, 0, 0, 0, false, false, false, 0.02});
    table.push_back(
        {EvictionBase::oracle_loss, s, M::oracle_loss, kAny, kNoPool, 0, 0, 0, false, false, false, 0.02});
    table.push_back({EvictionBase::greedy_exact, s, {}, kAny, kNoPool, 0, 0, 0, false, false, false, 0.02});
    table.push_back({EvictionBase::greedy_loss, s, {}, kAny, kNoPool, 0, 0, 0, false, false, false, 0.02});
    table.push_back(
        {EvictionBase::greedy_leverage, s, {}, kAny, kNoPool, 0, 0, 0, false, false, false, 0.02});
    table.push_back(
        {EvictionBase::leverage, s, M::leverage, kAny, kNoPool, 0, 0, 0, false, false, false, 0.02});
    table.push_back(
        {EvictionBase::defensive, s, M::defensive, 32, kNoPool, 0, 32, 0, false, false, false, 0.02});
    table.push_back({EvictionBase::exchange, s, {}, kAny, kNoPool, 0, 0, 0, false, false, false, 0.02});
    for (const EvictionBase base :
         {EvictionBase::top_k, EvictionBase::top_p, EvictionBase::quest, EvictionBase::double_sparsity})
      table.push_back({base, s, {}, kAny, kNoPool, 0, 0, 0, false, false, false, 0.02});
    table.push_back({EvictionBase::sparq, s, {}, kAny, kNoPool, 0, 25, 0, false, false, false, 0.02});
  }
  CHECK(table.size() == kBases.size() * 4);
  for (const Row& row : table) {
    INFO(name_of(row.base) << ", " << name_of(row.semantics));
    const EvictionRule rule = made(row.base, row.semantics);
    CHECK(rule.metric == row.metric);
    CHECK(!rule.given);
    if (row.window != kAny) CHECK(rule.window == row.window);
    CHECK(rule.pool_window == rule.window);
    CHECK(rule.pool == row.pool);
    CHECK(rule.sinks == row.sinks);
    CHECK(rule.recent == row.recent);
    CHECK(rule.block == row.block);
    CHECK(rule.per_visible_row == row.per_visible_row);
    CHECK(rule.shared_by_layer == row.shared_by_layer);
    CHECK(rule.expected.project_values == row.project_values);
    CHECK(rule.expected.epsilon == row.epsilon);
  }
}

TEST_CASE("what reads less of a whole prompt, and by what", "[policy]") {
  const auto rule = [](EvictionBase base, Semantics semantics = Semantics::paper) {
    return made(base, semantics);
  };
  CHECK(!rule(EvictionBase::snapkv).reads);
  CHECK(rule(EvictionBase::top_k).reads == ReadBy::weight);
  CHECK(rule(EvictionBase::top_p).reads == ReadBy::weight_share);
  CHECK(rule(EvictionBase::quest).reads == ReadBy::page_bounds);
  CHECK(rule(EvictionBase::quest).page == 16);
  CHECK(rule(EvictionBase::sparq).page == 1);
  CHECK_FALSE(rule(EvictionBase::sparq).reads_by_logits);
  CHECK(rule(EvictionBase::sparq, Semantics::official).reads_by_logits);
  CHECK(rule(EvictionBase::double_sparsity).dense == 0);
  for (const char* name : {"quest", "quest[page=4]", "top_p", "sparq~4+hadamard"})
    CHECK(evicts_nothing(name));
  for (const char* name : {"snapkv", "score:quest", "none", "", "quests"}) CHECK_FALSE(evicts_nothing(name));
}

TEST_CASE("a threshold keeps what reaches it, and what is pinned", "[policy]") {
  EvictionRule rule = pinning(1, 1);
  rule.threshold = 3;
  const Vector<double> scores = vec({0, 3, 2.9, 7, -1, 1});
  for (const Index budget : {0, 2, 6}) CHECK(kept_of(rule, scores, budget) == Places{0, 1, 3, 5});
  rule.threshold = 8;
  CHECK(kept_of(rule, scores, 3) == Places{0, 5});
  rule.sinks = rule.recent = 0;
  CHECK(kept_of(rule, scores, 3).empty());
  rule.threshold = -kInfinity;
  CHECK(kept_of(rule, scores, 3).size() == 6);
  rule.threshold = 3;  // of pooled scores
  rule.pool = {Pooling::Kind::max, 3};
  CHECK(kept_of(rule, scores, 3) == Places{0, 1, 2, 3, 4});
}

TEST_CASE("tokens that tie at the cut are counted by the numbers that scores are in", "[policy]") {
  const EvictionRule plain = pinning(0, 0);
  const auto tied = [&](const EvictionRule& rule, const Vector<double>& scores, Index budget, Dtype numbers) {
    return tied_at_cut(rule, scores, keep_by(rule, scores, budget), numbers);
  };
  const Vector<double> scores = vec({5, 1, 1, 1, 0});
  CHECK(tied(plain, scores, 1, Dtype::f64) == 0);
  CHECK(tied(plain, scores, 2, Dtype::f64) == 3);
  CHECK(tied(plain, scores, 3, Dtype::f64) == 3);
  CHECK(tied(plain, scores, 4, Dtype::f64) == 0);  // all three are kept
  CHECK(tied(plain, scores, 0, Dtype::f64) == 0);
  CHECK(tied(plain, scores, 5, Dtype::f64) == 0);
  CHECK(tied(pinning(2, 0), scores, 3, Dtype::f64) == 2);  // what is pinned is chosen by nobody
  const Vector<double> near = vec({1, 1 + 1.0 / 512, 1 - 1.0 / 1024, 0});  // 10 bits tell, 7 do not
  CHECK(tied(plain, near, 1, Dtype::f64) == 0);
  CHECK(tied(plain, near, 1, Dtype::f16) == 0);
  CHECK(tied(plain, near, 1, Dtype::bf16) == 3);
}

TEST_CASE("windows are clipped to the prompt, and pins with them", "[policy]") {
  for (const Index l : {1, 5, 31, 32}) {
    const EvictionRule rule = made(EvictionBase::snapkv, Semantics::paper, {}, l, 3);
    CHECK(rule.window == l);
    CHECK(rule.recent == l);
    CHECK(rule.pool_window == l);
    // Of a window that takes the whole prompt the most recent stay.
    const Index keep = std::min<Index>(3, l);
    Places last;
    for (Index p = l - keep; p < l; ++p) last.push_back(p);
    CHECK(kept_of(rule, Vector<double>::LinSpaced(l, 1, 0), 3) == last);
  }
  CHECK(made(EvictionBase::snapkv, Semantics::paper, {}, 33).window == 32);
  CHECK(made(EvictionBase::snapkv, Semantics::kvpress, {}, 40).recent == 40);
  CHECK(made(EvictionBase::h2o, Semantics::paper, {}, 7).window == 7);
  CHECK(made(EvictionBase::tova, Semantics::paper, {}, 1).window == 1);
}

TEST_CASE("what depends on the budget or on the dump", "[policy]") {
  CHECK(made(EvictionBase::h2o, Semantics::paper, {}, 1000, 0).recent == 0);
  CHECK(made(EvictionBase::h2o, Semantics::paper, {}, 1000, 1).recent == 1);
  CHECK(made(EvictionBase::h2o, Semantics::paper, {}, 1000, 4).recent == 2);
  CHECK(made(EvictionBase::h2o, Semantics::paper, {}, 1000, 5).recent == 3);
  CHECK(made(EvictionBase::streaming, Semantics::paper, {}, 1000, 4).recent == 0);
  CHECK(made(EvictionBase::streaming, Semantics::paper, {}, 1000, 3).recent == 0);
  CHECK(made(EvictionBase::streaming, Semantics::kvpress, {}, 1000, 5).recent == 1);
  CHECK(!made(EvictionBase::expected_attention, Semantics::paper, {}, 1000, 100, false)
             .expected.project_values);
}

TEST_CASE("overrides replace a base's own choices", "[policy]") {
  PolicyOverrides overrides;
  overrides.window = 16;
  EvictionRule rule = made(EvictionBase::snapkv, Semantics::kvpress, overrides);
  CHECK(rule.window == 16);
  CHECK(rule.recent == 16);  // the window is what snapkv pins
  CHECK(rule.pool_window == 16);
  CHECK(rule.pool == kAvg5);
  CHECK(made(EvictionBase::h2o, Semantics::paper, overrides).window == 16);
  CHECK(made(EvictionBase::h2o, Semantics::paper, overrides).recent == 51);
  CHECK(made(EvictionBase::tova, Semantics::paper, overrides).window == 16);
  overrides.window = 5000;
  CHECK(made(EvictionBase::snapkv, Semantics::paper, overrides).recent == 1000);

  overrides = {};
  overrides.recent = 7;
  rule = made(EvictionBase::snapkv, Semantics::paper, overrides);
  CHECK(rule.window == 32);
  CHECK(rule.recent == 7);
  CHECK(rule.pool_window == 32);
  overrides.recent = 0;
  CHECK(made(EvictionBase::h2o, Semantics::paper, overrides).recent == 0);
  CHECK(made(EvictionBase::tova, Semantics::kvpress, overrides).recent == 0);

  overrides = {};
  overrides.sinks = 10;
  rule = made(EvictionBase::streaming, Semantics::paper, overrides);
  CHECK(rule.sinks == 10);
  CHECK(rule.recent == 91);
  CHECK(made(EvictionBase::h2o, Semantics::paper, overrides).sinks == 10);

  overrides = {};
  overrides.pool = Pooling{Pooling::Kind::max, 3};
  CHECK(made(EvictionBase::snapkv, Semantics::official, overrides).pool == *overrides.pool);
  CHECK(made(EvictionBase::h2o, Semantics::paper, overrides).pool == *overrides.pool);
  overrides.pool = Pooling{};
  CHECK(made(EvictionBase::snapkv, Semantics::paper, overrides).pool == kNoPool);
}

TEST_CASE("windows and pins may be a share of the prompt", "[policy]") {
  CHECK(Positions::share(5).of(896) == 45);  // 44.8
  CHECK(Positions::share(5).of(10) == 1);    // half a token rounds up
  CHECK(Positions::share(5).of(9) == 1);     // never none
  CHECK(Positions::share(100).of(77) == 77);
  CHECK(Positions(7).of(3) == 7);
  PolicyOverrides share, number;
  share.window = Positions::share(5);
  share.recent = Positions::share(2.5);
  share.sinks = Positions::share(1);
  number.window = 50;
  number.recent = 25;
  number.sinks = 10;
  for (const char* name : {"h2o", "snapkv", "streaming"}) {
    Policy policy{name, *kBases.named(name), {}, {}, {}};
    const EvictionRule a = rule_of(policy, Semantics::paper, share, 1000, 300, false),
                       b = rule_of(policy, Semantics::paper, number, 1000, 300, false);
    CHECK(a.window == b.window);
    CHECK(a.recent == b.recent);
    CHECK(a.sinks == b.sinks);
  }
}

TEST_CASE("a score replaces the attention sum and nothing else", "[policy]") {
  Policy policy;
  policy.base = EvictionBase::snapkv;
  policy.metric = TokenMetric::joint;
  EvictionRule rule = rule_of(policy, Semantics::kvpress, {}, 1000, 101, false);
  CHECK(rule.metric == TokenMetric::joint);
  CHECK(!rule.given);
  CHECK(rule.window == 64);
  CHECK(rule.recent == 64);
  CHECK(rule.pool == kAvg5);
  policy.metric = std::nullopt;
  policy.given = 3;
  rule = rule_of(policy, Semantics::paper, {}, 1000, 101, false);
  CHECK(!rule.metric);
  CHECK(rule.given == std::size_t{3});
  CHECK(rule.recent == 32);
}

TEST_CASE("a score alone pins and pools nothing, under every semantics", "[policy]") {
  Policy policy;
  policy.base = EvictionBase::score;
  policy.metric = TokenMetric::joint;
  for (const Semantics semantics : kAllSemantics) {
    const EvictionRule rule = rule_of(policy, semantics, {}, 1000, 101, true);
    CHECK(rule.metric == TokenMetric::joint);
    CHECK(rule.window == 32);
    CHECK(rule.sinks == 0);
    CHECK(rule.recent == 0);
    CHECK(rule.pool == kNoPool);
    CHECK(rule.block == 0);
    CHECK_FALSE(rule.shared_by_layer);
    CHECK_FALSE(rule.per_visible_row);
  }
  CHECK(policy_name("score", "joint") == "score:joint");
  CHECK(policy_name("snapkv", "joint") == "snapkv+joint");
  CHECK(policy_name("snapkv", "") == "snapkv");
}

TEST_CASE("a policy's own options go before those of all policies", "[policy]") {
  Policy policy;
  policy.base = EvictionBase::snapkv;
  policy.own.window = 64;
  policy.own.pool = kAvg5;
  PolicyOverrides of_all;
  of_all.window = 16;
  of_all.sinks = 4;
  const EvictionRule rule = rule_of(policy, Semantics::paper, of_all, 1000, 101, false);
  CHECK(rule.window == 64);
  CHECK(rule.recent == 64);
  CHECK(rule.pool_window == 64);
  CHECK(rule.sinks == 4);
  CHECK(rule.pool == kAvg5);
  policy.base = EvictionBase::streaming;
  policy.own.sinks = 10;
  CHECK(rule_of(policy, Semantics::paper, of_all, 1000, 101, false).recent == 91);
}

TEST_CASE("what knows the future is known by its name", "[policy]") {
  for (const char* name : {"oracle", "oracle_exact", "snapkv+oracle_next", "score:oracle_future",
                           "exchange+oracle", "oracle_loss", "snapkv+oracle_loss", "oracle[sinks=4]",
                           "h2o+oracle_importance[window=8,recent=2]", "top_k", "top_p[sinks=4]"})
    CHECK(knows_the_future(name));
  for (const char* name : {"snapkv", "score:mine", "score:joint[window=3]", "snapkv[window=64]", "oracles",
                           "", "quest", "sparq"})
    CHECK_FALSE(knows_the_future(name));
}

TEST_CASE("exchange starts as the base or score behind it", "[policy]") {
  Policy policy;
  policy.base = EvictionBase::exchange;
  CHECK(only_searches(policy));
  policy.start = EvictionBase::greedy_exact;
  CHECK(only_searches(policy));
  policy.start = EvictionBase::snapkv;
  CHECK(!only_searches(policy));
  EvictionRule rule = rule_of(policy, Semantics::kvpress, {}, 1000, 101, true);
  CHECK(rule.metric == TokenMetric::attn);
  CHECK(rule.recent == 64);
  CHECK(rule.pool == kAvg5);
  CHECK(rule.exchanges());
  CHECK(!rule.greedy_by());
  policy.start = EvictionBase::expected_attention;
  CHECK(rule_of(policy, Semantics::paper, {}, 1000, 101, true).expected.project_values);
  policy.start = std::nullopt;
  policy.metric = TokenMetric::caote;
  CHECK(!only_searches(policy));
  CHECK(rule_of(policy, Semantics::paper, {}, 1000, 101, true).metric == TokenMetric::caote);
}

TEST_CASE("a search is by error or by loss, and so is the greedy one that exchange starts from", "[policy]") {
  const auto rule_with = [](EvictionBase base, std::optional<EvictionBase> start, std::optional<SearchBy> own,
                            std::optional<SearchBy> of_all) {
    Policy policy;
    policy.base = base;
    policy.start = start;
    policy.own.by = own;
    PolicyOverrides overrides;
    overrides.by = of_all;
    return rule_of(policy, Semantics::paper, overrides, 1000, 101, true);
  };
  constexpr auto kError = SearchBy::error, kLoss = SearchBy::loss;
  using B = EvictionBase;
  EvictionRule rule = rule_with(B::exchange, {}, {}, {});
  CHECK(rule.by == kError);
  CHECK(rule.greedy_by() == kError);
  rule = rule_with(B::exchange, {}, {}, kLoss);
  CHECK(rule.by == kLoss);
  CHECK(rule.greedy_by() == kLoss);
  CHECK(rule.exchanges());
  CHECK(rule_with(B::exchange, {}, kError, kLoss).by == kError);
  rule = rule_with(B::exchange, B::greedy_exact, kLoss, {});
  CHECK(rule.by == kLoss);
  CHECK(rule.greedy_by() == kError);
  for (const std::optional<SearchBy> of_all : {std::optional<SearchBy>(), std::optional(kError)}) {
    rule = rule_with(B::greedy_loss, {}, {}, of_all);
    CHECK(rule.by == kLoss);
    CHECK(rule.greedy_by() == kLoss);
    CHECK(!rule.exchanges());
  }
  rule = rule_with(B::greedy_exact, {}, {}, kLoss);
  CHECK(rule.by == kError);
  CHECK(rule.greedy_by() == kError);
  rule = rule_with(B::snapkv, {}, {}, kLoss);
  CHECK(!rule.by);
  CHECK(!rule.greedy_by());
  CHECK(!rule.exchanges());
}

TEST_CASE("a compression ratio keeps as many tokens as its semantics counts", "[policy]") {
  CHECK(kept_tokens(0.9, 1000, Semantics::kvpress) == 99);
  CHECK(kept_tokens(0.8, 1000, Semantics::kvpress) == 199);
  CHECK(kept_tokens(0.5, 1000, Semantics::kvpress) == 500);
  CHECK(kept_tokens(0.5, 7, Semantics::kvpress) == 3);
  CHECK(kept_tokens(0.99, 50, Semantics::kvpress) == 0);
  CHECK(kept_tokens(0.99, 50, Semantics::kvpress_0_5_5) == 1);
  CHECK(kept_tokens(0.9, 1000, Semantics::kvpress_0_5_5) == 99);
  for (const Semantics semantics : {Semantics::paper, Semantics::official}) {
    CHECK(kept_tokens(0.9, 1000, semantics) == 100);
    CHECK(kept_tokens(0.8, 1000, semantics) == 200);
    CHECK(kept_tokens(0.5, 7, semantics) == 4);  // halves go up
    CHECK(kept_tokens(0.9, 5, semantics) == 1);  // 0.5, though (1 - 0.9) * 5 is below it
    CHECK(kept_tokens(0.9, 4, semantics) == 0);
    CHECK(kept_tokens(0.7, 45, semantics) == 14);
    CHECK(kept_tokens(0.001, 100, semantics) == 100);
  }
}

TEST_CASE("pooling takes the positions before the window only", "[policy]") {
  const Vector<double> scores = vec({3, -1, -5, -2, 8, 100, -7});
  CHECK(pooled(scores, kNoPool, 2) == scores);
  // max: what lies outside is not there, be all scores below 0
  CHECK(pooled(scores, {Pooling::Kind::max, 3}, 2) == vec({3, 3, -1, 8, 8, 100, -7}));
  CHECK(pooled(vec({-3, -4, -5}), {Pooling::Kind::max, 3}, 0) == vec({-3, -3, -4}));
  CHECK(pooled(vec({-3, -4, -5}), {Pooling::Kind::max, 9}, 0) == vec({-3, -3, -3}));
  // avg: what lies outside is 0
  CHECK(pooled(vec({3, 6, 9, 12, 99}), {Pooling::Kind::avg, 3}, 1) == vec({3, 6, 9, 7, 99}));
  CHECK(pooled(vec({5, 10}), {Pooling::Kind::avg, 5}, 0) == vec({3, 3}));
  CHECK(pooled(scores, {Pooling::Kind::avg, 1}, 0) == scores);
  for (const Index window : {7, 8, 1000}) CHECK(pooled(scores, kMax7, window) == scores);
  const Vector<double> infinite = pooled(vec({1, kInfinity, 2, 3, 4}), {Pooling::Kind::avg, 3}, 1);
  CHECK(infinite == vec({kInfinity, kInfinity, kInfinity, 5.0 / 3, 4}));
}

TEST_CASE("equal neighbourhoods pool to equal numbers, wherever they lie", "[policy]") {
  for (const Index width : {3, 5, 7, 9, 11}) {
    Vector<double> scores(200);
    for (Index p = 0; p < scores.size(); ++p) scores[p] = std::exp(-0.37 * static_cast<double>(p % 13));
    const Vector<double> result = pooled(scores, {Pooling::Kind::avg, width}, 0);
    for (Index p = 13; p + 13 <= scores.size(); ++p) CHECK(result[p] == result[p % 13 + 13]);
  }
}

TEST_CASE("the largest scores are kept, equal ones from the front", "[policy]") {
  const EvictionRule plain = pinning(0, 0);
  CHECK(kept_of(plain, vec({2, 5, 1, 5, 5, 3}), 2) == Places{1, 3});
  CHECK(kept_of(plain, vec({2, 5, 1, 5, 5, 3}), 4) == Places{1, 3, 4, 5});
  CHECK(kept_of(plain, Vector<double>::Zero(6), 3) == Places{0, 1, 2});
  CHECK(kept_of(plain, vec({0.0, -0.0, 0.0}), 2) == Places{0, 1});
  CHECK(kept_of(plain, vec({-kInfinity, kInfinity, 0, kInfinity}), 3) == Places{1, 2, 3});
  CHECK(kept_of(plain, vec({1, 2, 3}), 0).empty());
  CHECK(kept_of(plain, vec({1, 2, 3}), 3) == Places{0, 1, 2});
  CHECK(kept_of(plain, vec({1, 2, 3}), 9) == Places{0, 1, 2});
  CHECK(kept_of(plain, vec({7}), 1) == Places{0});
  CHECK(count(keep_by(plain, vec({1, 2, 3}), 2)) == 2);
}

TEST_CASE("pinned tokens rank above any score, within the budget", "[policy]") {
  const Vector<double> scores = vec({-kInfinity, 1, kInfinity, 9, kInfinity, 2, 0, -3});
  CHECK(kept_of(pinning(1, 2), scores, 5) == Places{0, 2, 4, 6, 7});
  CHECK(kept_of(pinning(1, 2), scores, 4) == Places{0, 2, 6, 7});
  CHECK(kept_of(pinning(1, 2), scores, 3) == Places{0, 6, 7});
  CHECK(kept_of(pinning(0, 1), scores, 2) == Places{2, 7});
  // Too many: sinks first, then the most recent.
  CHECK(kept_of(pinning(2, 3), scores, 4) == Places{0, 1, 6, 7});
  CHECK(kept_of(pinning(2, 3), scores, 3) == Places{0, 1, 7});
  CHECK(kept_of(pinning(2, 3), scores, 2) == Places{0, 1});
  CHECK(kept_of(pinning(2, 3), scores, 1) == Places{0});
  CHECK(kept_of(pinning(2, 3), scores, 0).empty());
  CHECK(kept_of(pinning(0, 100), scores, 3) == Places{5, 6, 7});
  CHECK(kept_of(pinning(100, 0), scores, 3) == Places{0, 1, 2});
  // Pinned twice counts once.
  CHECK(kept_of(pinning(6, 6), scores, 8) == Places{0, 1, 2, 3, 4, 5, 6, 7});
  CHECK(kept_of(pinning(5, 5), scores, 7) == Places{0, 1, 2, 3, 4, 6, 7});
  CHECK(kept_of(pinning(2, 1), vec({1, 2}), 2) == Places{0, 1});
}

TEST_CASE("keep_by pools before it pins and cuts", "[policy]") {
  EvictionRule rule = pinning(0, 2);
  rule.pool = {Pooling::Kind::max, 3};
  rule.pool_window = 2;
  // The window's 50 does not spread; 9 does, and of its equals the front wins.
  CHECK(kept_of(rule, vec({0, 9, 0, 4, 3, 50, 0}), 4) == Places{0, 1, 5, 6});
  CHECK(kept_of(rule, vec({0, 9, 0, 4, 3, 50, 0}), 6) == Places{0, 1, 2, 3, 5, 6});
  rule.pool.kind = Pooling::Kind::none;
  CHECK(kept_of(rule, vec({0, 9, 0, 4, 3, 50, 0}), 4) == Places{1, 3, 5, 6});
}

TEST_CASE("the largest scores are those that sorting finds first", "[policy]") {
  std::mt19937 engine(5);
  std::normal_distribution<double> normal;
  for (const Index n : {1, 2, 60, 61, 1000, 5000})
    for (const int ties : {0, 1, 2, 3}) {  // few different scores, or all the same
      Vector<double> scores(n);
      for (double& score : scores)
        score = ties == 0 || ties == 3 ? normal(engine) : ties == 1 ? 0.0 : std::round(normal(engine));
      // What a sample of every so many of them sees tells nothing of the others.
      for (Index i = 0; ties == 3 && i < 256; ++i) scores[(2 * i + 1) * n / 512] += 1000;
      if (n > 10) {
        scores[7] = kInfinity;
        scores[9] = -kInfinity;
        scores[5] = -0.0;
      }
      std::vector<Index> order(static_cast<std::size_t>(n));
      std::iota(order.begin(), order.end(), Index{0});
      std::stable_sort(order.begin(), order.end(), [&](Index a, Index b) { return scores[a] > scores[b]; });
      for (const Index keep : {Index{0}, Index{1}, n / 3, n / 2, n - 1, n}) {
        KeptSet want(static_cast<std::size_t>(n), 0);
        for (Index k = 0; k < keep; ++k)
          want[static_cast<std::size_t>(order[static_cast<std::size_t>(k)])] = 1;
        INFO(n << " scores, ties " << ties << ", keep " << keep);
        CHECK(largest(scores, keep) == want);
      }
    }
}
