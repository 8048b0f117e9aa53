#include "viewer/questions/token_card.hpp"

#include "sim/attention.hpp"
#include "tests/analysis/kvreplay_program.hpp"
#include "tests/support/catch.hpp"
#include "tests/support/random_group.hpp"
#include "tests/viewer/on_queue.hpp"
#include "viewer/questions/run.hpp"
#include "viewer/questions/state.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <limits>
#include <memory>
#include <numeric>
#include <random>
#include <vector>

using namespace kvreplay;
using namespace kvreplay::test;
using namespace kvreplay::viewer;

namespace {

TokenReadings readings_of(const HeadGroup<double>& group, std::optional<Index> query_head, Index token,
                          Index window) {
  return on_queue([&](JobControl& job) { return token_readings(group, query_head, token, window, job); });
}

bool sees(const HeadGroup<double>& group, Index row, Index token) {
  return token >= group.first_visible(row) && token < group.end_visible(row);
}

/// A change of outputs near 1: the judge's own have that many digits.
Approx judged(double change) { return Approx(change).epsilon(1e-9).margin(1e-18); }

const std::vector<GroupSpec> kUnkind = {
    {.l = 40, .T = 48},
    {.l = 40, .T = 48, .T_q = 12, .G = 3, .d = 7, .d_v = 5, .seed = 2},
    {.l = 33, .T = 33, .logit_std = 20, .seed = 3},
    {.l = 40, .T = 48, .attention_sink = 0, .seed = 4},
    {.l = 40, .T = 48, .sliding_window = 6, .seed = 5},
    {.l = 40, .T = 48, .causal = false, .seed = 6},
    {.l = 40, .T = 48, .softcap = 3.0, .sink_logit = 0.5, .seed = 7},
    {.l = 1, .T = 1, .T_q = 1, .G = 1, .seed = 8},
};

/// The setting's kept set, asked as What if asks.
KeptSet kept_of(PanelContext& context, WhatIfSettings settings, Index budget) {
  settings.sigma_budget = false;
  settings.budget = budget;
  for (;;) {
    const auto answer = ask_kept_set(context, settings, 3, 1, Urgency::now, {});
    INFO(answer.error);
    REQUIRE((answer || answer.pending));
    if (answer) return answer->kept;
    REQUIRE(context.queue.wait_idle(std::chrono::minutes(5)));
  }
}

std::optional<Index> least_of(PanelContext& context, const WhatIfSettings& settings, Index token) {
  for (;;) {
    const auto answer = ask_least_budget(context, settings, 3, 1, token, Urgency::now);
    INFO(answer.error);
    REQUIRE((answer || answer.pending));
    if (answer) return answer->tokens;
    REQUIRE(context.queue.wait_idle(std::chrono::minutes(5)));
  }
}

struct SampleCard {
  AppState state;
  JobQueue queue{{2, std::size_t{1} << 30, {}}};
  PanelContext context{state, queue};
  SampleCard() {
    state.runs = {Run::open(sample_dump(), 1)};
    Selection selection;
    selection.layer = 3;
    selection.kv_head = 1;
    state.select(selection);
  }
  TokenCard card(std::optional<Index> row, std::optional<Index> token, std::optional<Index> query_head = {}) {
    Selection selection = state.selection();
    selection.query_head = query_head;
    selection.row = row;
    selection.token = token;
    state.select(selection);
    TokenCard card;
    for (card.ask(context); card.pending; card.ask(context))
      REQUIRE(queue.wait_idle(std::chrono::minutes(5)));
    for (const std::string& error : card.errors) FAIL_CHECK(error);
    return card;
  }
};

}  // namespace

TEST_CASE("readers of a token are what the judge says, row by row", "[token_card]") {
  for (const GroupSpec& spec : kUnkind) {
    const HeadGroup<double> group = random_group(spec);
    for (const Index token : {Index{0}, group.l / 2, group.l - 1}) {
      for (const std::optional<Index> head : {std::optional<Index>(), std::optional(group.G() - 1)}) {
        INFO("seed " << spec.seed << ", token " << token);
        const TokenReadings found = readings_of(group, head, token, 9);
        const RowRange rows = window_rows(group.l, group.first_query(), 9);
        CHECK(found.window == rows.count());
        std::size_t n = 0;
        double sum = 0;
        for (Index row = rows.begin; row < rows.end; ++row) {
          if (!sees(group, row, token)) continue;
          REQUIRE(n < found.rows.size());
          const TokenReading& one = found.rows[n++];
          CHECK(one.row == row);
          double cost = 0, weight = 0;
          for (Index g = head.value_or(0); g < (head ? *head + 1 : group.G()); ++g) {
            cost += brute_force_errors(group, g, row, TokenChange::remove, {token})[0];
            weight += attention_weights(group, g, attention_logits(group, g, row).z)[token];
          }
          CHECK(std::sqrt(one.cost) == judged(std::sqrt(cost)));
          CHECK(one.weight == Approx(head ? weight : weight / static_cast<double>(group.G())).epsilon(1e-9));
          sum += cost;
        }
        CHECK(n == found.rows.size());
        CHECK(found.cost() == Approx(sum).epsilon(1e-9));
      }
    }
  }
}

TEST_CASE("readings add up to the token's exact_remove", "[token_card]") {
  const HeadGroup<double> group = random_group({.l = 40, .T = 48});
  const Matrix<double> exact = token_metrics_reference(
      group, {.window = 7, .metrics = {TokenMetric::exact_remove}})[TokenMetric::exact_remove];
  for (Index token = 0; token < 40; ++token)
    CHECK(readings_of(group, {}, token, 7).cost() == Approx(exact(0, token)).epsilon(1e-9));
}

TEST_CASE("what makes a token dear multiplies to what it costs", "[token_card]") {
  for (const GroupSpec& spec : kUnkind) {
    const HeadGroup<double> group = random_group(spec);
    const Index row = group.l - 1;
    for (const Index token : {Index{0}, group.l / 2, group.l - 1}) {
      INFO("seed " << spec.seed << ", token " << token);
      const auto found = reading_factors(group, {}, row, token);
      REQUIRE(found.has_value() == sees(group, row, token));
      if (!found) continue;
      const Index g = found->query_head;
      CHECK(std::sqrt(found->cost) ==
            judged(std::sqrt(brute_force_errors(group, g, row, TokenChange::remove, {token})[0])));
      for (Index other = 0; other < group.G(); ++other)
        CHECK(found->cost >=
              brute_force_errors(group, other, row, TokenChange::remove, {token})[0] * (1 - 1e-9));
      if (group.T_all() == 1) {
        CHECK(std::isinf(found->odds));
        CHECK(found->weight == 1);
        continue;
      }
      CHECK(std::pow(found->odds * found->distance, 2) == Approx(found->cost).epsilon(1e-9));
      const Vector<double> a = attention_weights(group, g, attention_logits(group, g, row).z);
      const Vector<double> o = attention_output(group, g, row);
      CHECK(found->weight == Approx(a[token]).epsilon(1e-9));
      std::vector<double> distances;
      for (Index p = group.first_visible(row); p < group.end_visible(row); ++p)
        distances.push_back((group.v.row(p).transpose() - o).norm());
      std::sort(distances.begin(), distances.end());
      CHECK(found->median_distance == Approx(distances[distances.size() / 2]).epsilon(1e-6));
    }
  }
  CHECK_FALSE(reading_factors(random_group({}), {}, 10, 11));
}

TEST_CASE("a sink that takes nearly all of a row keeps its digits", "[token_card]") {
  const HeadGroup<double> group = random_group({.l = 40, .T = 48, .attention_sink = 0});
  const auto found = reading_factors(group, 0, 39, 0);
  REQUIRE(found);
  CHECK(found->odds > 1e7);
  CHECK(std::isfinite(found->odds));
  CHECK(found->odds * found->distance == Approx(std::sqrt(found->cost)).epsilon(1e-9));
}

TEST_CASE("the substitute is the token whose key and value in the place change least", "[token_card]") {
  for (const GroupSpec& spec : kUnkind) {
    const HeadGroup<double> group = random_group(spec);
    const Index token = group.l / 2;
    INFO("seed " << spec.seed);
    const TokenReadings found = readings_of(group, {}, token, 5);
    std::optional<Substitute> best;
    for (Index j = 0; j < group.l; ++j) {
      if (j == token || found.rows.empty()) continue;
      HeadGroup<double> changed = group;
      changed.k.row(token) = group.k.row(j);
      changed.v.row(token) = group.v.row(j);
      double cost = 0;
      bool seen = true;
      for (const TokenReading& one : found.rows) {
        seen = seen && sees(group, one.row, j);
        for (Index g = 0; g < group.G(); ++g)
          cost += (attention_output(changed, g, one.row) - attention_output(group, g, one.row)).squaredNorm();
      }
      if (seen && (!best || cost < best->cost)) best = {j, cost};
    }
    REQUIRE(found.substitute.has_value() == best.has_value());
    if (!best) continue;
    CHECK(found.substitute->token == best->token);
    CHECK(found.substitute->cost == Approx(best->cost).epsilon(1e-7));
  }
  // A token that is there twice.
  HeadGroup<double> twice = random_group({.l = 40, .T = 48});
  twice.k.row(7) = twice.k.row(20);
  twice.v.row(7) = twice.v.row(20);
  const TokenReadings found = readings_of(twice, {}, 20, 5);
  CHECK(found.substitute->token == 7);
  CHECK(found.substitute->cost < 1e-24 * found.cost());
}

TEST_CASE("the dearest rows' share and the largest readers are those of a sort", "[token_card]") {
  TokenReadings readings;
  readings.rows = {{10, 0.1, 1}, {11, 0.3, 5}, {12, 0.3, 2}, {13, 0.0, 2}};
  const auto most = readings.largest(&TokenReading::weight, 3);
  REQUIRE(most.size() == 3);
  CHECK(most[0].row == 11);
  CHECK(most[1].row == 12);
  CHECK(most[2].row == 10);
  CHECK(readings.share_of_dearest(2) == Approx(0.7));
  CHECK(readings.share_of_dearest(9) == 1);
  CHECK(readings.largest(&TokenReading::cost, 9).size() == 4);
  CHECK(std::isnan(TokenReadings{}.share_of_dearest(5)));
  CHECK(TokenReadings{}.largest(&TokenReading::cost, 5).empty());
}

TEST_CASE("rows before the token do not read it", "[token_card]") {
  const HeadGroup<double> group = random_group({.l = 40, .T = 48});
  const TokenReadings last = readings_of(group, {}, 39, 8);
  CHECK(last.window == 8);
  REQUIRE(last.rows.size() == 1);
  CHECK(last.rows[0].row == 39);
  REQUIRE(last.substitute);
  // Nobody in the window looks back so far.
  const TokenReadings none = readings_of(random_group({.l = 40, .T = 48, .sliding_window = 6}), {}, 3, 8);
  CHECK(none.rows.empty());
  CHECK_FALSE(none.substitute);
  CHECK(none.cost() == 0);
}

TEST_CASE("the least budget is found whatever it is", "[token_card]") {
  for (const Index l : {1, 2, 3, 50, 896}) {
    for (const std::size_t looks : {2, 48}) {
      for (Index least = 1; least <= l; least += std::max<Index>(1, l / 37)) {
        int asked = 0;
        const auto found = least_budget(l, looks, [&](Index k) {
          CHECK((k >= 1 && k <= l));
          ++asked;
          return k >= least;
        });
        CHECK(found.tokens == least);
        CHECK(asked <= static_cast<int>(looks) + 12);
      }
      CHECK_FALSE(least_budget(l, looks, [](Index) { return false; }).tokens);
    }
  }
  CHECK_FALSE(least_budget(0, 48, [](Index) { return true; }).tokens);
}

TEST_CASE("a policy keeps the token at its least budget and not at one token less", "[token_card]") {
  SampleCard sample;
  std::vector<WhatIfSettings> all;
  for (const char* base :
       {"snapkv", "h2o", "streaming", "tova", "keydiff", "expected_attention", "criticalkv"})
    all.emplace_back().base = base;
  all.emplace_back().recent = 50;  // reserved, besides the window that snapkv pins
  all.back().sinks = 4;
  all.emplace_back().semantics = Semantics::kvpress;
  all.emplace_back().block = 256;
  all.emplace_back().base = "score";
  all.back().score = "exact_remove";
  all.emplace_back().painted = "pin 300-309; evict 17";
  std::mt19937 random(3);
  for (const WhatIfSettings& settings : all) {
    for (const Index token : {Index{0}, Index{17}, Index{300}, static_cast<Index>(random() % 896), Index{840},
                              Index{894}, Index{895}}) {
      INFO(settings.policy() << ", token " << token << " " << settings.painted);
      const std::optional<Index> least = least_of(sample.context, settings, token);
      if (settings.painted.find(fmt::format("evict {}", token)) != std::string::npos) {
        CHECK_FALSE(least);
        continue;
      }
      REQUIRE(least);
      if (*least > 54 || !settings.recent) CHECK(kept_of(sample.context, settings, *least)[token] != 0);
      if (*least > 1 && (*least > 55 || !settings.recent))
        CHECK(kept_of(sample.context, settings, *least - 1)[token] == 0);
    }
  }
}

TEST_CASE("the least budget does not depend on the setting's own", "[token_card]") {
  SampleCard sample;
  WhatIfSettings settings;
  const auto least = least_of(sample.context, settings, 379);
  settings.sigma = 0.35;
  CHECK(least_of(sample.context, settings, 379) == least);
  settings.sigma_budget = false;
  settings.budget = 7;
  CHECK(least_of(sample.context, settings, 379) == least);
  // An exchange searches anew at every budget.
  settings.base = "exchange";
  CHECK(ask_least_budget(sample.context, settings, 3, 1, 379, Urgency::now).error.find("anew") !=
        std::string::npos);
}

TEST_CASE("the card has the numbers of the panels that it speaks of", "[token_card]") {
  SampleCard sample;
  const TokenCard card = sample.card(890, 379);
  const auto summary = on_queue([&](JobControl& job) {
    return summarise_head(*sample.state.run()->head(3, 1),
                          {.metrics = metrics_of(*sample.state.run()->dump())}, job.workers());
  });
  const Matrix<double>& exact = (*summary.tokens)[TokenMetric::exact_remove];
  REQUIRE(card.cost);
  CHECK(card.cost->value == exact(0, 379));
  CHECK(card.cost->largest == exact.maxCoeff());
  Index rank = 1;
  for (Index p = 0; p < 896; ++p) rank += exact(0, p) > exact(0, 379) ? 1 : 0;
  CHECK(card.cost->rank == rank);
  REQUIRE(card.readings);
  CHECK(card.readings->cost() == Approx(card.cost->value).epsilon(1e-4));
  REQUIRE(card.factors);
  CHECK(card.of_selected_row);
  CHECK(card.factors->row == 890);
  // The exact order first: its rank is its budget.
  REQUIRE(card.policies.size() >= 9);
  CHECK(card.policies[0].name == "exact order");
  CHECK(card.policies[0].least == rank);
  CHECK(card.policies[1].name == "A: snapkv");
  for (const KeptDownTo& one : card.policies) {
    INFO(one.name << " " << one.why);
    CHECK(one.least.has_value());
  }
  CHECK(card.scores.size() >= 8);

  // A query that comes before it gives way to the dearest.
  const TokenCard before = sample.card(100, 379);
  CHECK(before.row_is_blind);
  REQUIRE(before.factors);
  CHECK(before.factors->row == before.readings->largest(&TokenReading::cost, 1)[0].row);
  // One query head: its own cost; budgets stay those of the group's cache.
  const TokenCard own = sample.card(890, 379, 1), other = sample.card(890, 379, 0);
  CHECK(own.cost->value + other.cost->value == Approx(card.cost->value).epsilon(1e-4));
  CHECK(own.factors->query_head == 1);
  CHECK(own.policies[0].least == card.policies[0].least);
  // Nothing selected, nothing asked.
  const TokenCard none = sample.card(890, {});
  CHECK_FALSE(none.cost);
  CHECK(none.policies.empty());
  CHECK(none.lines().empty());
}

TEST_CASE("a token's cost stands NaN, ties and what is no candidate", "[token_card]") {
  HeadSummary summary;
  summary.l = 4;
  summary.metrics = {TokenMetric::exact_remove};
  auto tokens = std::make_shared<TokenMetrics>();
  (*tokens)[TokenMetric::exact_remove] = Matrix<double>(1, 4);
  (*tokens)[TokenMetric::exact_remove] << std::nan(""), 2, 2, 1;
  summary.tokens = tokens;
  CHECK_FALSE(token_cost(summary, TokenMetric::exact_remove, 0));
  CHECK_FALSE(token_cost(summary, TokenMetric::exact_remove, 4));
  CHECK_FALSE(token_cost(summary, TokenMetric::exact_remove, -1));
  CHECK_FALSE(token_cost(summary, TokenMetric::attn, 1));
  CHECK_FALSE(token_cost({}, TokenMetric::attn, 0));
  CHECK(token_cost(summary, TokenMetric::exact_remove, 1)->rank == 1);
  CHECK(token_cost(summary, TokenMetric::exact_remove, 2)->rank == 2);
  const auto last = token_cost(summary, TokenMetric::exact_remove, 3);
  CHECK(last->rank == 3);
  CHECK(last->dearest == 1);
  CHECK(last->share() == 0.5);
  CHECK(token_costs(summary, 3).size() == 1);
}
