#include "viewer/questions/token_card.hpp"

#include "analysis/results/agreement.hpp"
#include "sim/attention.hpp"
#include "viewer/model/numbers.hpp"
#include "viewer/questions/exact_head.hpp"
#include "viewer/questions/inspector_facts.hpp"
#include "viewer/questions/usual_policies.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <iterator>
#include <limits>
#include <numeric>
#include <utility>

namespace kvreplay::viewer {
namespace {

std::span<const double> values_of(const HeadSummary& summary, TokenMetric metric) {
  const Matrix<double>& values = (*summary.tokens)[metric];
  return {values.data(), static_cast<std::size_t>(values.size())};
}

Answer<std::vector<TokenCost>> ask_token_costs(PanelContext& context, const Answer<HeadSummary>& head,
                                               const Key& of, Index token) {
  if (!head) return {nullptr, head.pending, false, head.error};
  return context.queue.ask<std::vector<TokenCost>>(
      {.key = {context.run()->key(), "token_costs", of, token},
       .title =
           fmt::format("Ranks of token {}, {}", token, context.run()->head_text(head->layer, head->kv_head))},
      [summary = head.value, token](JobControl&) { return token_costs(*summary, token); });
}

std::optional<TokenCost> find(const std::vector<TokenCost>& costs, TokenMetric metric) {
  const auto found = std::ranges::find(costs, metric, &TokenCost::metric);
  return found == costs.end() ? std::nullopt : std::optional(*found);
}

/// Keeping the k largest keeps whatever ranks k-th or better.
KeptDownTo kept_by_order(const TokenCost& cost, std::string name) {
  return {std::move(name),
          fmt::format("{}\n{}\nRank {} of {}", name_of(cost.metric), kTokenMetrics[cost.metric].meaning,
                      cost.rank, cost.of),
          cost.rank,
          {}};
}

/// An optional answer, so that the queue can keep that there is none.
struct Factors {
  std::optional<ReadingFactors> found;
};

}  // namespace

std::optional<TokenCost> token_cost(const HeadSummary& summary, TokenMetric metric, Index token) {
  if (!summary.tokens || !summary.metrics.contains(metric) || token < 0 || token >= summary.l)
    return std::nullopt;
  const std::span<const double> values = values_of(summary, metric);
  if (std::isnan(values[token])) return std::nullopt;
  TokenCost cost{metric, values[token], rank_of(values, token), summary.l};
  for (Index p = 0; p < summary.l; ++p)
    if (values[p] > values[cost.dearest] || std::isnan(values[cost.dearest])) cost.dearest = p;
  cost.largest = values[cost.dearest];
  return cost;
}

std::vector<TokenCost> token_costs(const HeadSummary& summary, Index token) {
  std::vector<TokenCost> costs;
  for (const TokenMetric metric : kTokenMetrics.all())
    if (const auto cost = token_cost(summary, metric, token)) costs.push_back(*cost);
  return costs;
}

template <class R>
bool TokenCard::take(const Answer<R>& answer) {
  pending |= answer.pending;
  if (!answer.error.empty()) errors.push_back(answer.error);
  return static_cast<bool>(answer);
}

void TokenCard::ask(PanelContext& context) {
  *this = {};
  token = context.state.selection().token;
  if (!token) return;
  const Run& run = *context.run();
  prompt = run.shape().l;
  ask_costs(context);
  if (run.dump() == nullptr)
    why_no_dump = run.why_no_dump();
  else
    ask_readings(context);
  ask_budgets(context);
}

void TokenCard::ask_costs(PanelContext& context) {
  const ComparedHead head = ask_compared_head(context);
  whose = head.whose;
  const auto costs = ask_token_costs(context, head.summary, head.key, *token);
  if (!take(costs)) return;
  cost = find(*costs, TokenMetric::exact_remove);
  nats = find(*costs, TokenMetric::exact_loss);
}

void TokenCard::ask_readings(PanelContext& context) {
  const Selection& selection = context.state.selection();
  const std::shared_ptr<const Run>& run = context.run();
  const Index window = context.state.comparison.window, layer = selection.layer, kv_head = selection.kv_head;
  const auto query_head = selection.query_head;
  const std::string of = fmt::format("token {} of {}", *token, run->head_text(layer, kv_head));
  const auto read = ask_of_exact_head(
      context.queue, run, layer, kv_head,
      {.key = {run->key(), "token_readings", layer, kv_head, query_head, window, *token},
       .title = "Readers of " + of,
       .all_cores = true},
      [query_head, token = *token, window](const HeadGroup<double>& group, JobControl& job) {
        return token_readings(group, query_head, token, window, job);
      });
  if (!take(read)) return;
  readings = read.value;

  const auto ask_factors = [&](Index row) {
    return ask_of_exact_head(context.queue, run, layer, kv_head,
                             {.key = {run->key(), "reading_factors", layer, kv_head, query_head, row, *token},
                              .title = fmt::format("Query {} about {}", row, of)},
                             [query_head, row, token = *token](const HeadGroup<double>& group, JobControl&) {
                               return Factors{reading_factors(group, query_head, row, token)};
                             });
  };
  if (selection.row) {
    const auto own = ask_factors(*selection.row);
    if (!take(own)) return;
    factors = own->found;
    of_selected_row = factors.has_value();
    row_is_blind = !of_selected_row;
  }
  if (factors || readings->rows.empty()) return;
  const auto dearest = ask_factors(readings->largest(&TokenReading::cost, 1).front().row);
  if (take(dearest)) factors = dearest->found;
}

void TokenCard::ask_budgets(PanelContext& context) {
  AppState& state = context.state;
  const Index layer = state.selection().layer, kv_head = state.selection().kv_head;
  const auto group =
      ask_token_costs(context, ask_summary(context, layer, kv_head, Urgency::soon),
                      {state.comparison.window, layer, kv_head, std::optional<Index>()}, *token);
  if (take(group)) {
    if (const auto exact = find(*group, TokenMetric::exact_remove))
      policies.push_back(kept_by_order(*exact, "exact order"));
    for (const TokenCost& one : *group)
      if (kTokenMetrics[one.metric].kind == MetricKind::score)
        scores.push_back(kept_by_order(one, std::string(name_of(one.metric))));
  }
  if (context.run()->dump() == nullptr) return;
  const auto add = [&](const WhatIfSettings& settings, std::string name, std::string about, bool usual) {
    const Answer<LeastBudget> answer = ask_least_budget(context, settings, layer, kv_head, *token,
                                                        usual ? Urgency::background : Urgency::soon);
    pending |= answer.pending;
    // Usual policies for which this dump has no metric are left out.
    if (usual && !answer && !answer.pending) return;
    policies.push_back({std::move(name), std::move(about), answer ? answer->tokens : std::nullopt,
                        answer.error, answer.pending});
  };
  const std::array<WhatIfSettings, 2> set = state.settings();
  for (std::size_t s = 0; s < set.size(); ++s)
    add(set[s], fmt::format("{}: {}", s == 0 ? 'A' : 'B', set[s].policy()),
        "This setting of What if at other budgets", false);
  for (const EvictionBase base : kUsualPolicies)
    add(state.as_linked(at_budget_of(state.setting(), base)), std::string(name_of(base)),
        std::string(kBases[base].meaning), true);
}

std::vector<TokenCard::Line> TokenCard::lines() const {
  std::vector<Line> lines;
  if (!token) return lines;
  if (readings) {
    for (const TokenReading& reading : readings->rows) {
      lines.push_back({"reader", reading.row, token, "weight", reading.weight});
      lines.push_back({"reader", reading.row, token, "exact_remove", reading.cost});
    }
    if (const auto& other = readings->substitute)
      lines.push_back({"substitute",
                       {},
                       other->token,
                       "squared change in its place",
                       other->cost,
                       readings->cost() > 0 ? std::optional(other->cost / readings->cost()) : std::nullopt});
  }
  if (factors) {
    lines.push_back({"factor", factors->row, token, "a/(1-a)", factors->odds});
    lines.push_back({"factor", factors->row, token, "|v-o|", factors->distance});
  }
  for (const std::vector<KeptDownTo>* all : {&policies, &scores})
    for (const KeptDownTo& one : *all)
      if (one.least)
        lines.push_back({all == &policies ? "kept down to" : "score alone down to",
                         {},
                         token,
                         one.name,
                         static_cast<double>(*one.least),
                         static_cast<double>(*one.least) / static_cast<double>(prompt)});
  return lines;
}

namespace {

constexpr double kInf = std::numeric_limits<double>::infinity();

/// A row of one query head apart from one of the tokens that it sees: everything about the token follows
/// without a difference of nearly equal numbers, however near 1 its weight is.
struct RowWithout {
  Index first = 0;        ///< of the tokens that the row sees
  double odds = 0;        ///< a / (1 - a)
  Vector<double> others;  ///< the weights that all others would have without it; its own place holds 0
  Vector<double> output;  ///< o', theirs
  Vector<double> change;  ///< o - o' = a (v - o')
  double distance = 0;    ///< ||v - o||
  bool alone = false;     ///< the row reads nothing else

  double weight() const { return alone ? 1 : odds == kInf ? 1 : odds / (1 + odds); }
};

RowWithout row_without(const HeadGroup<double>& group, Index g, Index row, Index token) {
  RowWithout result;
  result.first = group.first_visible(row);
  const Index n = group.end_visible(row) - result.first, at = token - result.first;
  Vector<double> z = attention_logits(group, g, row).z.segment(result.first, n);
  const double own = z[at], sink = group.sink(g);
  z[at] = -kInf;
  const double largest = std::max(z.maxCoeff(), sink);
  result.alone = largest == -kInf;
  const auto values = group.v.middleRows(result.first, n);
  if (result.alone) {
    result.odds = kInf;
    result.others = Vector<double>::Zero(n);
    result.output = Vector<double>::Zero(group.d_v());
    result.change = group.v.row(token).transpose();
    return result;
  }
  result.others = (z.array() - largest).exp();
  const double sum = result.others.sum() + std::exp(sink - largest);
  result.others /= sum;
  result.odds = std::exp(own - largest - std::log(sum));
  result.output = values.transpose() * result.others;
  const Vector<double> apart = group.v.row(token).transpose() - result.output;
  result.change = result.weight() * apart;
  result.distance = apart.norm() / (1 + result.odds);
  return result;
}

/// Squared changes of the row's output where a token of [begin, end) stands in this one's place, added.
void add_substitutes(const HeadGroup<double>& group, const RowWithout& row, Index begin,
                     Vector<double>& sums) {
  for (Index j = 0; j < sums.size(); ++j) {
    const double share = row.others[begin + j - row.first];
    // The row has token j twice then: its output is o' + share / (1 + share) (v_j - o').
    sums[j] +=
        (share / (1 + share) * (group.v.row(begin + j).transpose() - row.output) - row.change).squaredNorm();
  }
}

RowRange heads_of(const HeadGroup<double>& group, std::optional<Index> query_head) {
  return query_head ? RowRange{*query_head, *query_head + 1} : RowRange{0, group.G()};
}

double median(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return values.empty() ? kNone : *middle;
}

bool sees(const HeadGroup<double>& group, Index row, Index token) {
  return token >= group.first_visible(row) && token < group.end_visible(row);
}

}  // namespace

double TokenReadings::cost() const {
  std::vector<double> costs;
  for (const TokenReading& reading : rows) costs.push_back(reading.cost);
  return compensated_sum(costs);
}

std::vector<TokenReading> TokenReadings::largest(double TokenReading::*figure, std::size_t most) const {
  std::vector<TokenReading> found = rows;
  std::stable_sort(found.begin(), found.end(),
                   [&](const TokenReading& a, const TokenReading& b) { return a.*figure > b.*figure; });
  found.resize(std::min(most, found.size()));
  return found;
}

double TokenReadings::share_of_dearest(std::size_t most) const {
  const double all = cost();
  if (!(all > 0)) return kNone;
  double dearest = 0;
  for (const TokenReading& reading : largest(&TokenReading::cost, most)) dearest += reading.cost;
  return std::min(dearest / all, 1.0);
}

TokenReadings token_readings(const HeadGroup<double>& group, std::optional<Index> query_head, Index token,
                             Index window, JobControl& job) {
  const RowRange rows = window_rows(group.l, group.first_query(), window);
  const RowRange heads = heads_of(group, query_head);
  TokenReadings result;
  result.window = rows.count();
  Index begin = 0, end = group.l;  // seen by all
  for (Index row = rows.begin; row < rows.end; ++row) {
    if (!sees(group, row, token)) continue;
    result.rows.push_back({row});
    begin = std::max(begin, group.first_visible(row));
    end = std::min(end, group.end_visible(row));
  }
  // Rows in turn, a few side by side, so that the sums are the same for any number of threads.
  constexpr Index kAtOnce = 16;
  Vector<double> sums = Vector<double>::Zero(std::max<Index>(end - begin, 0));
  std::vector<Vector<double>> parts(kAtOnce);
  const Index n = std::ssize(result.rows);
  for (Index from = 0; from < n; from += kAtOnce) {
    const Index count = std::min(kAtOnce, n - from);
    job.progress(static_cast<double>(from) / static_cast<double>(n));
    job.workers().parallel_for(count, [&](Index r) {
      TokenReading& reading = result.rows[from + r];
      parts[r] = Vector<double>::Zero(sums.size());
      for (Index g = heads.begin; g < heads.end; ++g) {
        const RowWithout seen = row_without(group, g, reading.row, token);
        reading.weight += seen.weight() / static_cast<double>(heads.count());
        reading.cost += seen.change.squaredNorm();
        add_substitutes(group, seen, begin, parts[r]);
      }
    });
    for (Index r = 0; r < count; ++r) sums += parts[r];
  }
  if (n == 0) return result;
  for (Index j = 0; j < sums.size(); ++j)
    if (begin + j != token && (!result.substitute || sums[j] < result.substitute->cost))
      result.substitute = {begin + j, sums[j]};
  return result;
}

std::optional<ReadingFactors> reading_factors(const HeadGroup<double>& group, std::optional<Index> query_head,
                                              Index row, Index token) {
  if (!sees(group, row, token)) return std::nullopt;
  const RowRange heads = heads_of(group, query_head);
  ReadingFactors factors;
  RowWithout dearest;
  for (Index g = heads.begin; g < heads.end; ++g) {
    RowWithout seen = row_without(group, g, row, token);
    const double cost = seen.change.squaredNorm();
    if (g != heads.begin && cost <= factors.cost) continue;
    factors = {row, g, seen.weight(), seen.odds, seen.distance, cost};
    dearest = std::move(seen);
  }
  const Vector<double> output = dearest.output + dearest.change;
  std::vector<double> odds, distances;
  for (Index j = 0; j < dearest.others.size(); ++j) {
    const bool itself = dearest.first + j == token;
    // The others' weights with it there are (1 - a) times those without it.
    const double a = dearest.others[j] / (1 + dearest.odds);
    odds.push_back(itself ? factors.odds : a / (1 - a));
    distances.push_back(itself ? factors.distance
                               : (group.v.row(dearest.first + j).transpose() - output).norm());
  }
  factors.median_odds = median(std::move(odds));
  factors.median_distance = median(std::move(distances));
  return factors;
}

}  // namespace kvreplay::viewer
