#include "data/error.hpp"
#include "sim/backend.hpp"
#include "sim/eviction/prompt_eviction.hpp"
#include "sim/head_group.hpp"
#include "tests/sim/decode_cases.hpp"
#include "tests/support/catch.hpp"
#include "tests/support/compare.hpp"

#include <limits>
#include <memory>

using namespace kvreplay;
using namespace kvreplay::test;

namespace {

template <class T>
DecodeReplay<T> fast(const HeadGroup<T>& group, const EvictionRule& rule, const KeptSet& start, Index budget,
                     const DecodeOptions& options, int threads = 1) {
  Workers workers(threads);
  return decode_replay(group, rule, start, budget, options,
                       decode_start_scores(group, rule, options, workers),
                       decode_full_outputs(group, workers), workers);
}

}  // namespace

TEST_CASE("the float64 decoding replay decides and errs as the reference does", "[decode]") {
  for (const Unkind& unkind : unkind_groups()) {
    const HeadGroup<double> group = random_group(unkind.spec);
    const KeptSet start = spread(group.l, unkind.budget);
    for (const NamedRule& named : all_rules(group.l, unkind.budget, unkind.exact))
      for (const DecodeOptions& options : all_options()) {
        const std::string name = fmt::format("{}, {}{}", unkind.name, named.name, name_of_options(options));
        CHECK(differences(name, decode_replay_reference(group, named.rule, start, unkind.budget, options),
                          fast(group, named.rule, start, unkind.budget, options), kOfOutput64) == "");
      }
  }
}

TEST_CASE("the float32 decoding replay decides and errs as the reference does", "[decode]") {
  for (const Unkind& unkind : unkind_groups()) {
    const HeadGroup<float> group = to_float(random_group(unkind.spec));
    const KeptSet start = spread(group.l, unkind.budget);
    for (const NamedRule& named : all_rules(group.l, unkind.budget, unkind.exact)) {
      const std::string name = fmt::format("{}, {}, float32", unkind.name, named.name);
      CHECK(differences(name, decode_replay_reference(to_double(group), named.rule, start, unkind.budget, {}),
                        fast(group, named.rule, start, unkind.budget, {}), kOfOutput32) == "");
    }
  }
}

TEST_CASE("decoding at intervals decides and errs as the reference does", "[decode]") {
  std::vector<Unkind> groups = unkind_groups();
  const Rope rope = rope_of(Rope::Style::interleaved, 6, 100, 1.3);
  groups.push_back(
      Unkind{.name = "rotation", .spec = {.l = 14, .T = 30, .G = 2, .d = 8, .rope = rope}, .budget = 9});
  for (const Unkind& unkind : groups) {
    const HeadGroup<double> group = random_group(unkind.spec);
    const KeptSet start = spread(group.l, unkind.budget), whole(static_cast<std::size_t>(group.l), 1);
    for (const NamedRule& named : all_rules(group.l, unkind.budget, false, true)) {
      if (named.rule.metric == TokenMetric::triattention && (!group.rope || group.first_query() >= group.l))
        continue;
      if (needs_rows(named.rule) && group.first_query() > group.l) continue;
      for (const Index interval : {1, 3, 8})
        for (const bool from_all : {false, true}) {
          const std::string name = fmt::format("{}, {}, every {}{}", unkind.name, named.name, interval,
                                               from_all ? ", from the whole prompt" : "");
          const DecodeOptions options{.interval = interval};
          const KeptSet& from = from_all ? whole : start;
          const auto want = decode_replay_reference(group, named.rule, from, unkind.budget, options);
          CHECK(differences(name, want, fast(group, named.rule, from, unkind.budget, options), kOfOutput64) ==
                "");
          for (const DecodeMove& move : want.left)
            CHECK((group.rule.sliding_window || (move.step + want.first_step + 1 - group.l) % interval == 0));
        }
    }
  }
}

TEST_CASE("every step's relative error is right at a sink of value 0", "[decode]") {
  const auto check = [](const auto& group, const Unkind& unkind, double tolerance) {
    const auto judged = converted<double>(group);
    for (const EvictionBase base : {EvictionBase::streaming, EvictionBase::h2o}) {
      const EvictionRule rule = rule_named(base, {}, Semantics::paper, group.l, unkind.budget, pins(1, 2));
      const KeptSet start = spread(group.l, unkind.budget);
      const auto want = decode_replay_reference(judged, rule, start, unkind.budget, {});
      const auto got = fast(group, rule, start, unkind.budget, {});
      CHECK(got.left == want.left);
      for (std::size_t s = 0; s < want.full_sq.size(); ++s) {
        INFO(unkind.name << ", step " << s);
        CHECK(std::sqrt(got.full_sq[s]) == Approx(std::sqrt(want.full_sq[s])).epsilon(tolerance));
        CHECK(std::sqrt(got.change_sq[s]) == Approx(std::sqrt(want.change_sq[s])).epsilon(tolerance));
      }
    }
  };
  for (const Unkind& unkind : worthless_sinks()) {
    check(random_group(unkind.spec), unkind, 1e-9);
    check(to_float(random_group(unkind.spec)), unkind, 1e-4);
  }
}

TEST_CASE("the decoding twins decide as the reference does where a sink holds all", "[decode]") {
  for (const Unkind& unkind : worthless_sinks()) {
    const HeadGroup<double> group = random_group(unkind.spec);
    for (const TokenMetric metric : {TokenMetric::attn, TokenMetric::caote, TokenMetric::fastcaote}) {
      const EvictionRule rule =
          rule_named(EvictionBase::h2o, metric, Semantics::paper, group.l, unkind.budget, pins(0, 2));
      const KeptSet start = spread(group.l, unkind.budget);
      const auto want = decode_replay_reference(group, rule, start, unkind.budget, {});
      const auto got = fast(group, rule, start, unkind.budget, {});
      const auto single = fast(to_float(group), rule, start, unkind.budget, {});
      INFO(unkind.name << ", " << name_of(metric));
      CHECK(got.left == want.left);
      CHECK(single.left == want.left);
      for (std::size_t s = 0; s < want.change_sq.size(); ++s)
        CHECK(std::sqrt(got.change_sq[s]) == Approx(std::sqrt(want.change_sq[s])).epsilon(1e-9));
    }
  }
}

TEST_CASE("the decoding twins agree on starts of any size and on caches of caches", "[decode]") {
  const HeadGroup<double> whole =
      random_group({.l = 20, .T = 36, .G = 3, .d = 6, .d_v = 9, .sliding_window = 12, .seed = 41});
  std::vector<Index> tokens = {0, 2, 3, 7, 8, 9, 12, 13, 15, 17, 18, 19};
  for (Index p = 20; p < 36; ++p) tokens.push_back(p);
  HeadGroup<double> group = cache_group(whole, tokens, 18);  // positions with gaps, queries from 18 on
  group.l = 12;
  for (const Index keep : {0, 3, 7, 12})
    for (const NamedRule& named : all_rules(group.l, 6, true))
      for (const DecodeOptions& options : all_options()) {
        const KeptSet start = spread(group.l, keep);
        const std::string name = fmt::format("start of {}, {}{}", keep, named.name, name_of_options(options));
        CHECK(differences(name, decode_replay_reference(group, named.rule, start, 6, options),
                          fast(group, named.rule, start, 6, options), kOfOutput64) == "");
      }
}

TEST_CASE("a budget for every token leaves no error at any step", "[decode]") {
  const HeadGroup<double> group = random_group({.l = 140, .T = 175, .G = 3, .d = 16, .d_v = 5, .seed = 42});
  const auto check = [&](const auto& typed) {
    for (const NamedRule& named : all_rules(group.l, 175, true)) {
      const auto replay = fast(typed, named.rule, spread(group.l, group.l), 175, {});
      INFO(named.name);
      CHECK(replay.change_sq == std::vector<double>(35, 0.0));
      CHECK(replay.cache_size == 175);
      CHECK(count(replay.kept) == 140);
      for (const double full : replay.full_sq) CHECK(full > 0);
    }
  };
  check(group);
  check(to_float(group));
}

TEST_CASE("the tokens that left tell the cache after every step", "[decode]") {
  for (const Unkind& unkind : unkind_groups()) {
    const HeadGroup<double> group = random_group(unkind.spec);
    for (const Index keep : {std::min(unkind.budget, group.l), group.l})
      for (const NamedRule& named : all_rules(group.l, unkind.budget, true))
        for (const DecodeOptions& options : {DecodeOptions{}, DecodeOptions{.append_only = true}}) {
          const KeptSet start = spread(group.l, keep);
          const auto replay = fast(group, named.rule, start, unkind.budget, options);
          const auto sorted_by_step_and_position = [](const DecodeMove& a, const DecodeMove& b) {
            return a.step != b.step ? a.step < b.step : a.position < b.position;
          };
          const auto steps = std::ssize(replay.change_sq);
          KeptSet cached(static_cast<std::size_t>(group.T_all()), 0);
          std::copy(start.begin() + group.first_held(), start.end(), cached.begin() + group.first_held());
          std::size_t at = 0;
          bool there = true, within = true;
          for (Index step = group.l - replay.first_step; step < steps; ++step) {
            cached[replay.first_step + step] = 1;
            for (; at < replay.left.size() && replay.left[at].step == step; ++at) {
              auto& token = cached[replay.left[at].position];
              there = there && token == 1;
              token = 0;
            }
            if (!options.append_only) within = within && count(cached) <= unkind.budget;
          }
          INFO(unkind.name << ", " << named.name << name_of_options(options) << ", start of " << keep);
          CHECK(std::is_sorted(replay.left.begin(), replay.left.end(), sorted_by_step_and_position));
          CHECK(replay.first_step + steps == group.T_all());
          CHECK(at == replay.left.size());
          CHECK(there);
          CHECK(within);
          CHECK(count(cached) == replay.cache_size);
          CHECK(KeptSet(cached.begin(), cached.begin() + group.l) == replay.kept);
        }
  }
}

TEST_CASE("what comes a position at a time leaves the cache as in a whole run", "[decode]") {
  constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
  int runs = 0;
  for (const Unkind& unkind : unkind_groups()) {
    const HeadGroup<double> group = random_group(unkind.spec);
    if (group.first_query() > group.l) continue;
    const KeptSet start = spread(group.l, std::min(unkind.budget, group.l));
    for (const NamedRule& named : all_rules(group.l, unkind.budget, true))
      for (const DecodeOptions& options :
           {DecodeOptions{}, DecodeOptions{.window = 2}, DecodeOptions{.append_only = true},
            DecodeOptions{.interval = 3}}) {
        if (options.interval > 0 && why_not_at_intervals(named.rule)) continue;
        INFO(unkind.name << ", " << named.name << name_of_options(options));
        const std::vector<std::int32_t> last =
            last_rows(start, group.T_all(), fast(group, named.rule, start, unkind.budget, options));
        const auto so_far = std::make_shared<HeadGroup<double>>(group);
        for (HeadMatrix<double>* rows : {&so_far->k, &so_far->v})
          rows->bottomRows(group.T_all() - group.l).setConstant(kNan);
        for (HeadMatrix<double>& rows : so_far->q) rows.bottomRows(group.T_all() - group.l).setConstant(kNan);
        Workers workers(1);
        DecodingCache<double> cache(so_far, named.rule, start, unkind.budget, options,
                                    decode_start_scores(group, named.rule, options, workers));
        for (Index p = 0; p < group.l; ++p) CHECK((last[p] >= group.l) == (start[p] != 0));
        for (Index i = group.l; i < group.T_all(); ++i, ++runs) {
          so_far->k.row(i) = group.k.row(i);
          so_far->v.row(i) = group.v.row(i);
          const Index row = i - group.first_query();
          for (Index g = 0; g < group.G(); ++g) so_far->q[g].row(row) = group.q[g].row(row);
          std::vector<Index> expected;
          for (Index p = 0; p < group.T_all(); ++p)
            if (last[p] == i) expected.push_back(p);
          CHECK(cache.step() == expected);
        }
      }
  }
  CHECK(runs > 100);
}

TEST_CASE("append-only never drops a token of the start", "[decode]") {
  const HeadGroup<double> group = random_group({.l = 14, .T = 60, .seed = 43});
  const KeptSet start = spread(14, 8);
  Index grown = 0;
  for (const NamedRule& named : all_rules(14, 8, true)) {
    const auto replay = fast(group, named.rule, start, 8, {.append_only = true});
    INFO(named.name);
    CHECK(replay.kept == start);
    CHECK(replay.cache_size >= 8);
    CHECK(replay.cache_size <= 8 + 46);
    grown += replay.cache_size > 8 && replay.cache_size < 8 + 46 ? 1 : 0;
  }
  CHECK(grown > 5);  // some join and some leave at once
}

TEST_CASE("TOVA looks at one step, as a decoding window of 1 does", "[decode]") {
  const HeadGroup<double> group = random_group({.l = 14, .T = 40, .G = 3, .seed = 44});
  const EvictionRule tova = rule_named(EvictionBase::tova, {}, Semantics::paper, 14, 8);
  EvictionRule sums = tova;
  sums.policy.base = EvictionBase::h2o;
  const auto own = fast(group, tova, spread(14, 8), 8, {});
  const auto one = fast(group, sums, spread(14, 8), 8, {.window = 1});
  const auto all = fast(group, sums, spread(14, 8), 8, {});
  CHECK(own.change_sq == one.change_sq);
  CHECK(own.change_sq != all.change_sq);
}

TEST_CASE("the decoding replay gives the same bytes with any number of threads", "[decode]") {
  const HeadGroup<float> group = to_float(
      random_group({.l = 90, .T = 170, .G = 2, .d = 16, .d_v = 16, .attention_sink = 0, .seed = 45}));
  for (const NamedRule& named : all_rules(90, 40, true)) {
    const auto alone = fast(group, named.rule, spread(90, 40), 40, {}, 1);
    for (const int threads : {2, 3}) {
      const auto many = fast(group, named.rule, spread(90, 40), 40, {}, threads);
      INFO(named.name << ", " << threads << " threads");
      CHECK(alone.change_sq == many.change_sq);
      CHECK(alone.kept == many.kept);
      CHECK(same_bytes(alone.change[1].cast<double>(), many.change[1].cast<double>()));
    }
  }
}

// Keys of 0: every weight is 1 / (cached tokens), every output a mean.
TEST_CASE("streaming over equal weights gives the errors of means", "[decode]") {
  HeadGroup<double> group;
  group.l = 2;
  group.rule.scale = 1;
  group.k = Matrix<double>::Zero(5, 1);
  group.v.resize(5, 1);
  group.v << 1, 2, 3, 6, 8;
  group.q = {Matrix<double>::Ones(5, 1)};
  const EvictionRule rule = rule_named(EvictionBase::streaming, {}, Semantics::paper, 2, 2, pins(1, 1));
  const auto replay = fast(group, rule, KeptSet{1, 1}, 2, {});
  // caches {0, 1, 2}, {0, 2, 3}, {0, 3, 4}: means 2, 10/3, 5 in place of 2, 3, 4
  REQUIRE(replay.change_sq.size() == 3);
  CHECK(replay.change_sq[0] == Approx(0).margin(1e-15));
  CHECK(replay.change_sq[1] == Approx(1.0 / 9));
  CHECK(replay.change_sq[2] == Approx(1));
  CHECK(replay.full_sq[2] == Approx(16));
  CHECK(replay.change[0](1, 0) == Approx(1.0 / 3));
  CHECK(replay.kept == KeptSet{1, 0});
  CHECK(replay.cache_size == 2);
  CHECK(replay.left == std::vector<DecodeMove>{{0, 1}, {1, 2}, {2, 3}});
  CHECK(replay.first_step == 2);

  // Without the query of position 2 its cut comes before the first step; a start above the budget goes with
  // it.
  HeadGroup<double> late = group;
  late.q = {Matrix<double>::Ones(2, 1)};
  const EvictionRule last = rule_named(EvictionBase::streaming, {}, Semantics::paper, 2, 1, pins(0, 1));
  const auto after = fast(late, last, KeptSet{1, 1}, 1, {});
  CHECK(after.left == std::vector<DecodeMove>{{-1, 0}, {-1, 1}, {0, 2}, {1, 3}});
  CHECK(after.first_step == 3);
  CHECK(fast(group, rule, KeptSet{1, 1}, 5, {}).left.empty());

  // Equal sums but for the prompt's: attention of rows 0 and 1 is 1 + 1/2 for token 0, 1/2 for token 1; after
  // the first step token 1 has 1/2 + 1/3 and token 2 has 1/3, and so on: every new token leaves again.
  const EvictionRule sums = rule_named(EvictionBase::h2o, {}, Semantics::paper, 2, 2, pins(0, 0));
  const auto kept = fast(group, sums, KeptSet{1, 1}, 2, {});
  CHECK(kept.kept == KeptSet{1, 1});
  CHECK(kept.left == std::vector<DecodeMove>{{0, 2}, {1, 3}, {2, 4}});
  CHECK(kept.change_sq[2] == Approx(1.0 / 9));  // (1 + 2 + 8) / 3 in place of 4
}

TEST_CASE("rules that need more than a step's queries say why they cannot decode", "[decode]") {
  const auto why = [](EvictionBase base, Semantics semantics, std::optional<TokenMetric> metric = {}) {
    return why_not_in_decoding(rule_named(base, metric, semantics, 40, 20));
  };
  CHECK_FALSE(why(EvictionBase::h2o, Semantics::kvpress));
  CHECK_FALSE(why(EvictionBase::tova, Semantics::paper));
  CHECK_FALSE(why(EvictionBase::streaming, Semantics::official));
  CHECK_FALSE(why(EvictionBase::keydiff, Semantics::paper));
  CHECK(why(EvictionBase::tova, Semantics::official));
  CHECK(why(EvictionBase::expected_attention, Semantics::paper));
  CHECK(why(EvictionBase::h2o, Semantics::paper, TokenMetric::expected_attention));
  CHECK(why(EvictionBase::h2o, Semantics::paper, TokenMetric::oracle_next));
  CHECK(why(EvictionBase::oracle, Semantics::paper));
  CHECK(why(EvictionBase::greedy_exact, Semantics::paper));
  CHECK(why(EvictionBase::exchange, Semantics::paper, TokenMetric::joint));
  EvictionRule given = rule_named(EvictionBase::h2o, {}, Semantics::paper, 40, 20);
  given.metric.reset();
  given.given = 0;
  CHECK(why_not_in_decoding(given));
}

TEST_CASE("logits and values beyond the type are an input error while decoding", "[decode]") {
  const auto run = [](double queries, double values, TokenMetric metric) {
    HeadGroup<double> group = random_group({.l = 9, .T = 16, .T_q = 7, .seed = 46});
    for (HeadMatrix<double>& q : group.q) q *= queries;
    group.v *= values;
    return fast(to_float(group), rule_named(EvictionBase::h2o, metric, Semantics::paper, 9, 5), spread(9, 5),
                5, {});
  };
  CHECK_NOTHROW(run(1, 1, TokenMetric::joint));
  CHECK_THROWS_AS(run(1e38, 1, TokenMetric::attn), InputError);
  CHECK_THROWS_AS(run(1, 1e25, TokenMetric::joint), InputError);
}

TEST_CASE("a decoding replay stops where it is asked to", "[decode]") {
  const HeadGroup<double> group = random_group({});
  Workers workers(1);
  const EvictionRule rule = rule_named(EvictionBase::streaming, {}, Semantics::paper, 40, 20);
  const auto full = decode_full_outputs(group, workers);
  workers.stop();
  CHECK_THROWS_AS(decode_replay(group, rule, spread(40, 20), 20, {}, {}, full, workers), Interrupted);
}
