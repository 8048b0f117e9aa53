#pragma once

#include "analysis/budgets/budget_plan.hpp"
#include "analysis/eviction/given_arrays.hpp"
#include "sim/backend.hpp"
#include "sim/eviction/prompt_eviction.hpp"

#include <vector>

namespace kvreplay {

/// Every order of the plan on one head group; `n_kv` KV heads a layer.
template <class T>
std::vector<RankedTokens> head_orders(const HeadGroup<T>& group, const BudgetPlan& plan, Index n_kv,
                                      const Compute& compute) {
  std::vector<EvictionRule> rules;
  for (const Order& order : plan.orders) rules.push_back(order.rule);
  const GivenScores given = scores_of_head(plan.scores, group.layer * n_kv + group.kv_head, group.l);
  const std::vector<Vector<double>> scores = rule_scores(group, rules, given, compute);
  std::vector<RankedTokens> orders;
  for (std::size_t o = 0; o < rules.size(); ++o) orders.push_back(ranked_tokens(rules[o], scores[o]));
  return orders;
}

}  // namespace kvreplay
