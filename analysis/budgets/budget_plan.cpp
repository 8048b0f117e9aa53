#include "analysis/budgets/budget_plan.hpp"

#include "analysis/given/given_arrays.hpp"
#include "analysis/results/kept_text.hpp"
#include "data/error.hpp"
#include "sim/eviction/prompt_eviction.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <utility>

namespace kvreplay {
namespace {

/// Whether nothing but the semantics asks for pins and a floor, which a small budget then cuts.
bool keeps_by_default(const BudgetOptions& options) {
  return !options.sinks && !options.recent && !options.floor &&
         std::none_of(options.orders.begin(), options.orders.end(), [](const BudgetOrder& order) {
           return order.policy.own.sinks || order.policy.own.recent;
         });
}

CandidateOrder order_of(const BudgetOrder& asked, const BudgetOptions& options, Index l, bool has_wo) {
  const BudgetSemanticsFacts& setting = kBudgetSemantics[options.semantics];
  CandidateOrder order{asked.name, rule_of(asked.policy, Semantics::paper, {}, l, l, has_wo)};
  EvictionRule& rule = order.rule;
  // Over the whole prompt at once: whatever is pinned, nothing is kept out of the pool.
  rule.block = 0;
  rule.pool_window = 0;
  const auto chosen = [&](const std::optional<Positions>& own, const std::optional<Positions>& of_all,
                          Index usual) {
    return own ? own->of(l) : of_all ? of_all->of(l) : usual;
  };
  rule.sinks = chosen(asked.policy.own.sinks, options.sinks, std::min(setting.sinks, l));
  rule.recent = chosen(
      asked.policy.own.recent, options.recent,
      setting.keeps_window
          ? std::min(kBases[asked.policy.base].pins_window ? rule.window : 1, l - std::min(rule.sinks, l))
          : 0);
  const double floor = options.floor.value_or(setting.floor);
  order.lower =
      std::max(static_cast<Index>(std::floor(floor * static_cast<double>(l) + 0.5)), order.pinned());
  return order;
}

constexpr std::string_view kOrderPlace = "{order}";

/// The mean of the files' profiles under every order of the plan.
void read_profiles(BudgetPlan& plan, const std::vector<std::string>& files, Index layers, Index n_kv) {
  const auto has_place = [](const std::string& file) { return file.find(kOrderPlace) != std::string::npos; };
  plan.profiles_by_order = std::any_of(files.begin(), files.end(), has_place);
  for (const CandidateOrder& order : plan.orders) {
    if (!plan.profiles.empty() && !plan.profiles_by_order) {
      plan.profiles.push_back(plan.profiles.front());
      continue;
    }
    std::vector<BudgetProfile> profiles;
    for (std::string file : files) {
      if (file.empty()) throw OptionError(budget_option::profile, "names of files", "''");
      if (has_place(file)) file.replace(file.rfind(kOrderPlace), kOrderPlace.size(), order.file_name());
      profiles.push_back(load_profile(file, layers, n_kv));
    }
    plan.profiles.push_back(mean_profile(profiles));
  }
}

}  // namespace

AllocationInput allocation_input(const BudgetPlan& plan, std::size_t order, const BudgetFrame& frame,
                                 const LossCurves& curves, const HullGreedy& greedy,
                                 std::span<const double> scores) {
  return {frame,
          plan.divides,
          plan.orders[order].pinned(),
          curves,
          greedy,
          scores,
          plan.profiles.empty() ? nullptr : &plan.profiles.at(order)};
}

BudgetPlan budget_plan(const Dump& dump, const BudgetOptions& options, const std::vector<Index>& layers) {
  using budget_option::floor, budget_option::profile, budget_option::recent, budget_option::score,
      budget_option::semantics, budget_option::sinks;
  const DumpShape& shape = dump.shape();
  BudgetPlan plan;
  plan.future = future_rows(shape.l, shape.T, shape.first_query());
  plan.losses = LossRows::of(dump, {}, plan.future);
  plan.left_out = losses_left_out(dump, {}, plan.future);
  for (const std::string& note : loss_notes(dump, {}, plan.future)) plan.notes.push_back(note);
  if (plan.future.count() == 0)
    throw InputError("budget: the loss of a head is what the decoding steps miss, and the dump has none");
  plan.curve = kCurveLosses[options.loss.value_or(CurveLoss::importance)].metric;
  if (const auto why = why_unavailable(plan.curve, dump))
    throw OptionError(option_text("{} {}: {} is unavailable: {}", budget_option::loss,
                                  name_of(options.loss.value_or(CurveLoss::importance)), name_of(plan.curve),
                                  *why));
  const BudgetSemanticsFacts& setting = kBudgetSemantics[options.semantics];
  plan.divides = setting.divides;
  // Nats of different layers compare as they are.
  const Normalise own = plan.curve == TokenMetric::oracle_importance ? setting.normalise : Normalise::none;
  plan.normalise_by_layer = options.normalise.value_or(own) == Normalise::layer;
  if (options.floor && !(*options.floor >= 0 && *options.floor < 1))
    throw OptionError(floor, "a share of the prompt from 0 to below 1", fmt::format("{}", *options.floor));

  plan.scores = read_given_scores(score, options.scores, dump);
  for (std::size_t s = 0; s < plan.scores.size(); ++s)
    if (std::none_of(options.orders.begin(), options.orders.end(),
                     [&](const BudgetOrder& asked) { return asked.policy.given == s; }))
      throw OptionError(option_text("{} {}: no order uses it: {} {}", score, plan.scores[s].name,
                                    budget_option::order, plan.scores[s].name));
  const std::vector<BudgetOrder> usual = BudgetOptions{}.orders;
  const bool by_default =
      options.orders.size() >= usual.size() &&
      std::equal(usual.begin(), usual.end(), options.orders.begin()) &&
      std::all_of(options.orders.begin() + std::ssize(usual), options.orders.end(),
                  [](const BudgetOrder& order) { return order.policy.given.has_value(); });
  for (const BudgetOrder& asked : options.orders) {
    CandidateOrder order = order_of(asked, options, shape.l, dump.has(Tensor::wo));
    if (order.pinned() > shape.l)
      throw OptionError(option_text("{} and {}", sinks, recent),
                        fmt::format("at most the prompt's {} tokens", shape.l),
                        fmt::format("{}", order.pinned()));
    if (order.rule.metric)
      if (const auto why = why_unavailable(*order.rule.metric, dump)) {
        // What nobody asked for by name is left out, not refused.
        if (!by_default)
          throw OptionError(option_text("{}: {} is unavailable: {}", budget_option::order, asked.name, *why));
        plan.left_out.push_back({"budgets under the order " + asked.name, *why});
        continue;
      }
    const bool there = std::any_of(plan.orders.begin(), plan.orders.end(),
                                   [&](const CandidateOrder& other) { return other.name == asked.name; });
    if (!there) plan.orders.push_back(std::move(order));
  }
  for (const CandidateOrder& order : plan.orders) {
    const Index asked = order.rule.window, rows = window_rows(shape.l, shape.first_query(), asked).count();
    const OptionText note = fmt::format(
        "window {} clipped to {}: the dump holds the queries of {} prompt positions", asked, rows, rows);
    const auto is_said = [&](const OptionText& other) { return other.plain() == note.plain(); };
    if (rows > 0 && rows < asked && std::none_of(plan.notes.begin(), plan.notes.end(), is_said))
      plan.notes.push_back(note);
  }
  const Index lower =
      std::accumulate(plan.orders.begin(), plan.orders.end(), Index{0},
                      [](Index most, const CandidateOrder& order) { return std::max(most, order.lower); });
  if (plan.divides != Semantics::paper)
    plan.notes.push_back(option_text("{} {}: pyramid and ada share out what that code makes of sigma{}",
                                     semantics, name_of(options.semantics),
                                     lower > 0 ? ", and take no floor" : ""));
  if (plan.orders.empty()) throw OptionError(budget_option::order, "names of orders", "none");

  std::vector<BudgetDivision> methods;
  for (const BudgetDivision& method : options.methods)
    if (std::find(methods.begin(), methods.end(), method) == methods.end()) methods.push_back(method);
  if (!options.profiles.empty()) {
    read_profiles(plan, options.profiles, std::ssize(layers), shape.n_kv);
    methods.emplace_back(BudgetMethod::profile);
    const auto is_profile = [](const CandidateOrder& o) { return o.name == name_of(BudgetMethod::profile); };
    if (!plan.profiles_by_order && std::any_of(plan.orders.begin(), plan.orders.end(), is_profile))
      throw OptionError(score, option_text("another name beside {}, which is exported as it", profile),
                        "'profile'");
  }
  if (methods.empty()) throw OptionError(budget_option::method, "names of methods", "none");

  std::vector<std::pair<double, std::string>> sigmas;  // and their labels
  for (const Budget& asked : options.sigmas) {
    if (asked.tokens && (*asked.tokens < 1 || *asked.tokens >= shape.l))
      throw OptionError(budget_option::budget,
                        fmt::format("1 to {} tokens of the prompt's {}", shape.l - 1, shape.l),
                        fmt::format("{}", *asked.tokens));
    const double sigma = asked.tokens
                             ? rest_of(static_cast<double>(*asked.tokens) / static_cast<double>(shape.l))
                             : asked.sigma;
    check_sigma(budget_option::sigma, sigma);
    const Index heads = std::ssize(layers) * shape.n_kv;
    const Index total = total_budget(sigma, shape.l, heads);
    const double mean = static_cast<double>(total) / static_cast<double>(heads);
    if (lower * heads > total && !keeps_by_default(options))
      throw OptionError(
          option_text("{}, {} and {}", floor, sinks, recent),
          fmt::format("at most the mean budget of {:.1f} tokens a head at sigma {}", mean, sigma),
          fmt::format("{} tokens", lower));
    if (lower * heads > total)
      plan.notes.push_back(fmt::format(
          "more stays in every head ({}) than the mean budget of {:.1f} tokens at sigma {}, cut to it, "
          "first positions first, then the most recent",
          lower, mean, asked.label()));
    const auto is_same = [&](const auto& other) { return other.first == sigma; };
    if (std::none_of(sigmas.begin(), sigmas.end(), is_same)) sigmas.emplace_back(sigma, asked.label());
  }
  if (sigmas.empty()) throw OptionError(budget_option::sigma, "compression ratios", "none");
  for (std::size_t o = 0; o < plan.orders.size(); ++o)
    for (const BudgetDivision& method : methods)
      for (const auto& [sigma, label] : sigmas) plan.cases.push_back({o, method, sigma, label});
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

template <class T>
std::vector<RankedTokens> head_orders(const HeadGroup<T>& group, const BudgetPlan& plan, Index n_kv,
                                      const Compute& compute) {
  std::vector<EvictionRule> rules;
  for (const CandidateOrder& order : plan.orders) rules.push_back(order.rule);
  const GivenScores given = scores_of_head(plan.scores, group.layer * n_kv + group.kv_head, group.l);
  const std::vector<Vector<double>> scores = rule_scores(group, rules, given, compute);
  std::vector<RankedTokens> orders;
  for (std::size_t o = 0; o < rules.size(); ++o) orders.push_back(ranked_tokens(rules[o], scores[o]));
  return orders;
}
template std::vector<RankedTokens> head_orders(const HeadGroup<float>&, const BudgetPlan&, Index,
                                               const Compute&);
template std::vector<RankedTokens> head_orders(const HeadGroup<double>&, const BudgetPlan&, Index,
                                               const Compute&);

}  // namespace kvreplay
