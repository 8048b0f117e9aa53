#include "viewer/work/budget_view.hpp"

#include "analysis/eviction/head_evictions.hpp"
#include "analysis/results/agreement.hpp"
#include "analysis/results/scoped_figures.hpp"
#include "data/error.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <utility>

namespace kvreplay::viewer {
namespace {

Matrix<double> rows_of(const BudgetCurves& curves, const std::vector<double> HeadWorth::*numbers) {
  Matrix<double> rows(std::ssize(curves.heads), curves.l);
  for (std::size_t h = 0; h < curves.heads.size(); ++h)
    std::copy_n(((*curves.heads[h]).*numbers).data(), curves.l, rows.row(static_cast<Index>(h)).data());
  return rows;
}

}  // namespace

BoundOptions bound(BudgetSettings& settings) {
  using namespace budget_option;
  static constexpr OptionFacts linked{.name = "linked"};
  return {bind_option(order, settings.order),         bind_option(method, settings.methods).keyed("methods"),
          bind_option(semantics, settings.semantics), bind_option(sigma, settings.sigma),
          bind_option(normalise, settings.normalise), bind_option(budget_option::floor, settings.floor),
          bind_option(sinks, settings.sinks),         bind_option(recent, settings.recent),
          bind_option(linked, settings.linked)};
}

BudgetPlan budget_view_plan(const BudgetSettings& settings, const Dump& dump) {
  BudgetOptions options;
  options.orders = {settings.order};
  options.methods = settings.methods;
  options.sigmas = {{std::nullopt, settings.sigma}};
  options.semantics = settings.semantics;
  options.normalise = settings.normalise;
  options.floor = settings.floor;
  options.sinks = settings.sinks;
  options.recent = settings.recent;
  std::vector<Index> layers(dump.shape().layers);
  std::iota(layers.begin(), layers.end(), 0);
  return budget_plan(dump, options, layers);
}

Key order_key(const BudgetPlan& plan) {
  const CandidateOrder& order = plan.orders.front();
  return {order.name, order.rule.sinks, order.rule.recent};
}

Key curves_key(const BudgetPlan& plan) {
  return {order_key(plan), plan.orders.front().lower, plan.normalise_by_layer};
}

HeadWorth head_worth(const HeadGroup<float>& group, const BudgetPlan& plan, JobControl& job) {
  RankedTokens ranked = std::move(head_worths(group, plan, 1, job.compute()).front());
  return {std::move(ranked.order), std::move(ranked.worth), std::move(ranked.scores)};
}

std::vector<double> loss_of(const HeadWorth& worth) {
  const auto l = std::ssize(worth.worth);
  const Matrix<double> row = Eigen::Map<const Matrix<double>>(worth.worth.data(), 1, l);
  return loss_curves(row, 0, l, 1, false).losses();
}

BudgetCurves budget_curves(const BudgetPlan& plan, const DumpShape& shape,
                           std::vector<std::shared_ptr<const HeadWorth>> heads, JobControl& job) {
  BudgetCurves result;
  result.layers = shape.layers;
  result.n_kv = shape.n_kv;
  result.l = shape.l;
  result.heads = std::move(heads);
  result.heads.resize(shape.layers * shape.n_kv);
  result.missing = std::count(result.heads.begin(), result.heads.end(), nullptr);
  if (result.missing > 0) return result;
  job.check();
  result.curves =
      loss_curves(rows_of(result, &HeadWorth::worth), 0, result.l, result.n_kv, plan.normalise_by_layer);
  job.check();
  result.greedy.emplace(*result.curves, plan.orders.front().lower);
  job.check();
  result.profile = lu_profile(plan, 0, result.n_kv, *result.curves);
  return result;
}

std::vector<double> shares_kept(const BudgetProfile& profile, Index head) {
  std::vector<double> kept;
  const auto heads = static_cast<std::size_t>(profile.layers * profile.heads);
  for (std::size_t at = static_cast<std::size_t>(head); at < profile.pruned.size(); at += heads)
    kept.push_back(1 - profile.pruned[at]);
  return kept;
}

BudgetShare budget_share(const BudgetPlan& plan, std::size_t which, const BudgetCurves& curves,
                         JobControl& job) {
  const BudgetCase& asked = plan.cases.at(which);
  BudgetShare share;
  share.method = asked.division.name;
  share.missing = curves.missing;
  if (curves.missing > 0) return share;
  job.check();
  const Matrix<double> scores = kBudgetMethods[asked.division.method].needs_scores
                                    ? rows_of(curves, &HeadWorth::scores)
                                    : Matrix<double>();
  Allocation found = allocate(plan, asked, curves.n_kv, *curves.curves, *curves.greedy,
                              {scores.data(), static_cast<std::size_t>(scores.size())});
  share.total = std::accumulate(found.budgets.begin(), found.budgets.end(), Index{0});
  share.total_loss = compensated_sum(found.loss);
  share.budgets = std::move(found.budgets);
  share.loss = std::move(found.loss);
  return share;
}

std::size_t bytes_of(const HeadWorth& worth) {
  return sizeof(worth) + worth.order.size() * sizeof(std::int32_t) +
         (worth.worth.size() + worth.scores.size()) * sizeof(double);
}

std::size_t bytes_of(const BudgetCurves& curves) {
  std::size_t bytes = sizeof(curves) + curves.heads.size() * sizeof(std::shared_ptr<const HeadWorth>);
  if (curves.curves)
    bytes += curves.heads.size() * static_cast<std::size_t>(2 * curves.l + 1) * sizeof(double);
  if (curves.greedy) bytes += curves.greedy->blocks() * sizeof(HullBlock);
  bytes += curves.profile.pruned.size() * sizeof(double);
  return bytes;
}

std::size_t bytes_of(const BudgetShare& share) {
  return sizeof(share) + share.budgets.size() * sizeof(Index) + share.loss.size() * sizeof(double);
}

}  // namespace kvreplay::viewer
