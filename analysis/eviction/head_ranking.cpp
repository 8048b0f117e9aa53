#include "analysis/eviction/head_ranking.hpp"

#include "analysis/results/agreement.hpp"
#include "sim/backend.hpp"
#include "sim/head_group.hpp"
#include "sim/tokens/leverage.hpp"

#include <algorithm>
#include <limits>

namespace kvreplay {
namespace {

const RowGradients<double>& gradients_of(const HeadGroup<double>& group, const EvictionPlan& plan) {
  return plan.on_future ? group.g_future : group.g_window;
}

GreedyPath greedy_path(const HeadGroup<double>& group, const EvictionPlan& plan, SearchBy by, Index keep,
                       const Compute& compute) {
  if (by == SearchBy::leverage) return greedy_leverage(group, keep, compute.workers);
  const RowRange rows = plan.search_rows(by);
  if (by == SearchBy::loss) return greedy_loss(group, gradients_of(group, plan), rows, keep, compute.workers);
  return compute.backend.greedy_exact(group, rows, keep, compute.workers);
}

KeptSet exchanged(const HeadGroup<double>& group, const EvictionPlan& plan, SearchBy by, KeptSet start,
                  const Compute& compute) {
  const RowRange rows = plan.search_rows(by);
  if (by == SearchBy::loss)
    return exchange_loss(group, gradients_of(group, plan), rows, std::move(start), compute.workers);
  return compute.backend.exchange(group, rows, std::move(start), compute.workers);
}

double loss(const Vector<double>& importance, const KeptSet& kept) {
  std::vector<double> lost;
  for (Index p = 0; p < importance.size(); ++p)
    if (kept[p] == 0) lost.push_back(importance[p]);
  return compensated_sum(lost);
}

}  // namespace

template <class T>
LayerScores layer_scores(const EvictionPlan& plan, const DumpShape& shape,
                         const std::function<std::shared_ptr<const HeadGroup<T>>(Index)>& head,
                         const std::function<GivenScores(Index)>& given, const Compute& compute) {
  LayerScores layer(plan.runs.size());
  std::vector<std::size_t> shared;
  std::vector<EvictionRule> rules;
  for (std::size_t r = 0; r < plan.runs.size(); ++r)
    if (plan.runs[r].rules.front().shared_by_layer) {
      shared.push_back(r);
      rules.push_back(plan.runs[r].rules.front());
    }
  if (shared.empty()) return layer;
  for (Index g = 0; g < shape.n_kv; ++g) {
    const std::vector<Vector<double>> scores = rule_scores(*head(g), rules, given(g), compute);
    for (std::size_t s = 0; s < shared.size(); ++s) {
      Vector<double>& sum = layer[shared[s]];
      if (sum.size() == 0) sum = Vector<double>::Zero(shape.l);
      sum += scores[s] / static_cast<double>(shape.n_q);
    }
  }
  return layer;
}

template <class T>
HeadRanking head_ranking(const HeadGroup<T>& group, const EvictionPlan& plan, const LayerScores& layer,
                         const GivenScores& given, std::optional<Index> least, const Compute& compute) {
  HeadRanking ranking;
  ranking.scores = layer;
  std::vector<std::size_t> own;
  std::vector<EvictionRule> rules;
  for (std::size_t r = 0; r < plan.runs.size(); ++r) {
    if (layer[r].size() > 0) continue;
    own.push_back(r);
    rules.push_back(plan.runs[r].rules.front());
  }
  std::vector<Vector<double>> scores = rule_scores(group, rules, given, compute);
  for (std::size_t r = 0; r < own.size(); ++r) ranking.scores[own[r]] = std::move(scores[r]);

  bool exchanges = false;
  std::map<SearchBy, Index> smallest;  // of what a greedy search leaves
  for (const EvictionCase& which : plan.cases) {
    if (!which.run) continue;
    const EvictionRule& rule = plan.runs[*which.run].rules[which.budget];
    exchanges = exchanges || rule.exchanges();
    if (const auto by = rule.greedy_by()) {
      Index& least_kept = smallest.try_emplace(*by, group.l).first->second;
      least_kept = std::min(least_kept, *which.kept);
    }
  }
  if (smallest.empty() && !exchanges) return ranking;
  auto wide = std::make_shared<const HeadGroup<double>>(converted<double>(group));
  for (const auto& [by, keep] : smallest)
    ranking.paths[by] = greedy_path(*wide, plan, by, least.value_or(keep), compute);
  if (exchanges) ranking.wide = std::move(wide);
  return ranking;
}

template <class T>
KeptSet prompt_kept(const HeadGroup<T>& group, const EvictionPlan& plan, const EvictionCase& which,
                    const HeadRanking& ranking, const Compute& compute) {
  const EvictionRule& rule = plan.runs[*which.run].rules[which.budget];
  const Index keep = *which.kept;
  KeptSet kept;
  const Index block = which.phase.kind == Phase::Kind::blockwise ? which.phase.block : rule.block;
  if (const auto by = rule.greedy_by())
    kept = kept_by(ranking.paths.at(*by), group.l, keep);
  else if (block > 0)
    kept = evict_in_blocks(group, rule, keep, block, compute);
  else
    kept = keep_by(rule, ranking.scores[*which.run], keep);
  if (rule.exchanges()) return exchanged(*ranking.wide, plan, *rule.by, std::move(kept), compute);
  return kept;
}

DecodeOptions decode_options(const EvictionPlan& plan, const EvictionCase& which) {
  const bool append_only = which.phase.kind == Phase::Kind::append_only;
  // A new token has one row: append-only compares it with the cache on that row.
  return {append_only && !plan.decode_window ? 1 : plan.decode_window, append_only};
}

template <class T>
Vector<double> future_importance(const HeadGroup<T>& group, const Compute& compute, TokenMetric oracle) {
  if (future_rows(group.l, group.T_all(), group.first_query()).count() == 0) return {};
  const TokenMetrics metrics = compute.backend.token_metrics(group, {.metrics = {oracle}}, compute.workers);
  return metrics[oracle].row(0).transpose();
}

OracleFigures oracle_figures(const Vector<double>& importance, const KeptSet& oracle, const KeptSet& kept) {
  Index common = 0;
  for (std::size_t p = 0; p < oracle.size(); ++p) common += oracle[p] & kept[p];
  OracleFigures figures{loss(importance, kept), 0, std::numeric_limits<double>::quiet_NaN()};
  figures.optimality_gap = figures.eviction_loss - loss(importance, oracle);
  const Index keep = count(kept);
  if (keep > 0) figures.oracle_recall = static_cast<double>(common) / static_cast<double>(keep);
  return figures;
}

// NOLINTBEGIN(bugprone-macro-parentheses): T is a type
#define KVREPLAY_RANKING(T)                                                                           \
  template LayerScores layer_scores(const EvictionPlan&, const DumpShape&,                            \
                                    const std::function<std::shared_ptr<const HeadGroup<T>>(Index)>&, \
                                    const std::function<GivenScores(Index)>&, const Compute&);        \
  template HeadRanking head_ranking(const HeadGroup<T>&, const EvictionPlan&, const LayerScores&,     \
                                    const GivenScores&, std::optional<Index>, const Compute&);        \
  template KeptSet prompt_kept(const HeadGroup<T>&, const EvictionPlan&, const EvictionCase&,         \
                               const HeadRanking&, const Compute&);                                   \
  template Vector<double> future_importance(const HeadGroup<T>&, const Compute&, TokenMetric);
KVREPLAY_RANKING(float)
KVREPLAY_RANKING(double)
#undef KVREPLAY_RANKING
// NOLINTEND(bugprone-macro-parentheses)

}  // namespace kvreplay
