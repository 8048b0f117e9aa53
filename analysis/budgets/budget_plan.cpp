#include "analysis/budgets/budget_plan.hpp"

#include "analysis/eviction/eviction_names.hpp"
#include "analysis/eviction/given_arrays.hpp"
#include "analysis/options/nearest_name.hpp"
#include "data/error.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

namespace kvreplay {
namespace {

constexpr Index kOrderWindow = 32;

BudgetMethod parse_method(const std::string& name) {
  const auto method = kBudgetMethods.named(name);
  if (method && !kBudgetMethods[*method].needs_profile) return *method;
  const std::vector<std::string> names = named_budget_methods();
  throw InputError(fmt::format("--method: unknown method '{}'{}; there are: {}", name,
                               did_you_mean(name, names), fmt::join(names, ", ")));
}

Order parse_order(const std::string& name, const std::vector<Given<double>>& scores) {
  Order order;
  order.name = name;
  order.rule.window = order.rule.pool_window = kOrderWindow;
  const auto given =
      std::find_if(scores.begin(), scores.end(), [&](const auto& score) { return score.name == name; });
  if (name == name_of(Base::snapkv)) {
    // Over the whole prompt: nothing is pinned, so nothing is kept out of the pool.
    order.rule.metric = TokenMetric::attn;
    order.rule.pool = {Pooling::Kind::max, 7};
    order.rule.pool_window = 0;
  } else if (given != scores.end()) {
    order.rule.given = static_cast<std::size_t>(given - scores.begin());
  } else if (const auto metric = kTokenMetrics.named(name)) {
    order.rule.metric = *metric;
  } else {
    std::vector<std::string> names = order_names();
    for (const Given<double>& score : scores) names.push_back(score.name);
    throw InputError(fmt::format("--order: unknown order '{}'{}", name, did_you_mean(name, names)));
  }
  return order;
}

}  // namespace

std::vector<std::string> named_budget_methods() {
  return kBudgetMethods.names_where([](const BudgetMethodFacts& facts) { return !facts.needs_profile; });
}

std::vector<std::string> order_names() {
  std::vector<std::string> names = kTokenMetrics.names();
  names.insert(names.begin(), std::string(name_of(Base::snapkv)));
  return names;
}

AllocationInput allocation_input(const BudgetPlan& plan, const BudgetFrame& frame, const LossCurves& curves,
                                 const HullGreedy& greedy, std::span<const double> scores) {
  return {
      frame, plan.semantics, plan.pinned, curves, greedy, scores, plan.profile ? &*plan.profile : nullptr};
}

BudgetPlan budget_plan(const Dump& dump, const BudgetOptions& options, const std::vector<Index>& layers) {
  const DumpShape& shape = dump.shape();
  BudgetPlan plan;
  plan.future = future_rows(shape.l, shape.T, shape.first_query());
  if (plan.future.count() == 0)
    throw InputError("budget: the loss of a head is what the decoding steps miss, and the dump has none");
  plan.semantics = parse_semantics("--semantics", options.semantics);
  if (options.normalise != "none" && options.normalise != "layer")
    throw InputError("--normalise", "none or layer", fmt::format("'{}'", options.normalise));
  plan.normalise_by_layer = options.normalise == "layer";
  if (!(options.floor >= 0 && options.floor < 1))
    throw InputError("--floor", "a share of the prompt from 0 to below 1", fmt::format("{}", options.floor));
  if (options.sinks + options.recent > shape.l)
    throw InputError("--sinks and --recent", fmt::format("at most the prompt's {} tokens", shape.l),
                     fmt::format("{}", options.sinks + options.recent));
  plan.pinned = options.sinks + options.recent;
  plan.lower = std::max(static_cast<Index>(std::floor(options.floor * static_cast<double>(shape.l) + 0.5)),
                        options.sinks + options.recent);

  plan.scores = read_given_scores(options.scores, shape);
  for (const std::string& name : options.orders) {
    Order order = parse_order(name, plan.scores);
    order.rule.sinks = options.sinks;
    order.rule.recent = options.recent;
    if (order.rule.metric)
      if (const auto why = why_unavailable(*order.rule.metric, dump)) {
        // What nobody asked for by name is left out, not refused.
        if (options.orders != BudgetOptions{}.orders)
          throw InputError(fmt::format("--order: {} is unavailable: {}", name, *why));
        plan.left_out.push_back({"budgets under the order " + name, *why});
        continue;
      }
    const bool there = std::any_of(plan.orders.begin(), plan.orders.end(),
                                   [&](const Order& other) { return other.name == name; });
    if (!there) plan.orders.push_back(std::move(order));
  }
  const Index rows = window_rows(shape.l, shape.first_query(), kOrderWindow).count();
  if (rows > 0 && rows < kOrderWindow)
    plan.notes.push_back(
        fmt::format("window {} clipped to {}: the dump holds the queries of {} prompt positions",
                    kOrderWindow, rows, rows));
  if (plan.semantics != Semantics::paper)
    plan.notes.push_back(
        fmt::format("--semantics {}: pyramid and ada share out what that code makes of sigma{}",
                    name_of(plan.semantics), plan.lower > 0 ? ", and take no floor" : ""));
  if (plan.orders.empty()) throw InputError("--order", "names of orders", "none");

  std::vector<BudgetMethod> methods;
  for (const std::string& name : options.methods) {
    const BudgetMethod method = parse_method(name);
    if (std::find(methods.begin(), methods.end(), method) == methods.end()) methods.push_back(method);
  }
  if (!options.profiles.empty()) {
    std::vector<BudgetProfile> profiles;
    for (const std::string& file : options.profiles) {
      if (file.empty()) throw InputError("--profile", "names of files", "''");
      profiles.push_back(load_profile(file, static_cast<Index>(layers.size()), shape.n_kv));
    }
    plan.profile = mean_profile(profiles);
    methods.push_back(BudgetMethod::profile);
    if (std::any_of(plan.orders.begin(), plan.orders.end(),
                    [](const Order& o) { return o.name == name_of(BudgetMethod::profile); }))
      throw InputError("--score", "another name beside --profile, which is exported as it", "'profile'");
  }
  if (methods.empty()) throw InputError("--method", "names of methods", "none");

  std::vector<double> sigmas;
  for (const double sigma : options.sigmas) {
    check_sigma("--sigma", sigma);
    const Index heads = static_cast<Index>(layers.size()) * shape.n_kv;
    const Index total = total_budget(sigma, shape.l, heads);
    if (plan.lower * heads > total)
      throw InputError("--floor, --sinks and --recent",
                       fmt::format("at most the mean budget of {:.1f} tokens a head at sigma {}",
                                   static_cast<double>(total) / static_cast<double>(heads), sigma),
                       fmt::format("{} tokens", plan.lower));
    if (std::find(sigmas.begin(), sigmas.end(), sigma) == sigmas.end()) sigmas.push_back(sigma);
  }
  if (sigmas.empty()) throw InputError("--sigma", "compression ratios", "none");
  for (std::size_t o = 0; o < plan.orders.size(); ++o)
    for (const BudgetMethod method : methods)
      for (const double sigma : sigmas) plan.cases.push_back({o, method, sigma});
  return plan;
}

RankedTokens ranked_tokens(const EvictionRule& rule, const Vector<double>& scores) {
  const Index l = scores.size();
  const Vector<double> by_pool = pooled(scores, rule.pool, rule.pool_window);
  std::vector<std::int32_t> rest, pinned;
  const auto is_sink = [&](Index p) { return p < rule.sinks; };
  const auto is_recent = [&](Index p) { return p >= l - rule.recent; };
  for (Index p = 0; p < l; ++p) {
    if (is_sink(p))
      pinned.push_back(static_cast<std::int32_t>(p));
    else if (!is_recent(p))
      rest.push_back(static_cast<std::int32_t>(p));
  }
  for (Index p = l - 1; p >= 0 && is_recent(p); --p)
    if (!is_sink(p)) pinned.push_back(static_cast<std::int32_t>(p));
  std::stable_sort(rest.begin(), rest.end(),
                   [&](std::int32_t a, std::int32_t b) { return by_pool[a] > by_pool[b]; });

  RankedTokens ranked;
  ranked.order = pinned;
  ranked.order.insert(ranked.order.end(), rest.begin(), rest.end());
  ranked.scores.assign(pinned.size(), std::numeric_limits<double>::infinity());
  for (const std::int32_t p : rest) ranked.scores.push_back(by_pool[p]);
  return ranked;
}

}  // namespace kvreplay
