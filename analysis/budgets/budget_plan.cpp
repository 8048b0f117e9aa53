#include "analysis/budgets/budget_plan.hpp"

#include "analysis/eviction/head_evictions.hpp"
#include "analysis/given/given_arrays.hpp"
#include "analysis/results/figures.hpp"
#include "analysis/results/kept_text.hpp"
#include "data/error.hpp"
#include "sim/eviction/prompt_eviction.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <numeric>
#include <utility>

namespace kvreplay {
namespace {

/// True if pins and floor come from the semantics only: a small budget then cuts them.
bool keeps_by_default(const BudgetOptions& options) {
  return !options.sinks && !options.recent && !options.floor &&
         std::ranges::none_of(options.orders, [](const BudgetOrder& order) {
           return order.policy.own.sinks || order.policy.own.recent;
         });
}

/// The candidate order of caches that hold l tokens of the prompt, from position `first` on.
CandidateOrder order_of(const BudgetOrder& asked, const BudgetOptions& options, Index l, Index first,
                        bool has_wo) {
  const BudgetSemanticsFacts& setting = kBudgetSemantics[options.semantics];
  CandidateOrder order{asked.name, rule_of(asked.policy, Semantics::paper, {}, l, l, has_wo)};
  EvictionRule& rule = order.rule;
  // The whole prompt is ranked at once, and pooling includes pinned tokens.
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
  rule.sinks = std::max<Index>(rule.sinks - first, 0);
  const double floor = options.floor.value_or(setting.floor);
  order.lower =
      std::max(static_cast<Index>(std::floor(floor * static_cast<double>(l) + 0.5)), order.pinned());
  return order;
}

constexpr std::string_view kOrderPlace = "{order}";

BudgetProfile of_caches(const BudgetPlan& plan, const BudgetProfile& layers) {
  BudgetProfile caches{plan.caches.caches(), layers.heads, {}};
  const Index width = layers.layers * layers.heads;
  for (Index row = 0; row < BudgetProfile::kRatios; ++row) {
    const Matrix<double> all = Eigen::Map<const Matrix<double>>(layers.pruned.data() + row * width, width, 1);
    const Matrix<double> own = plan.caches.of_caches(all);
    caches.pruned.insert(caches.pruned.end(), own.data(), own.data() + own.size());
  }
  return caches;
}

/// The mean of the files' profiles under every order of the plan.
void read_profiles(BudgetPlan& plan, const std::vector<std::string>& files, Index n_kv) {
  const auto has_place = [](const std::string& file) { return file.find(kOrderPlace) != std::string::npos; };
  plan.profiles_by_order = std::ranges::any_of(files, has_place);
  for (const CandidateOrder& order : plan.orders) {
    if (!plan.profiles.empty() && !plan.profiles_by_order) {
      plan.profiles.push_back(plan.profiles.front());
      continue;
    }
    std::vector<BudgetProfile> profiles;
    for (std::string file : files) {
      if (file.empty()) throw OptionError(budget_option::profile, "names of files", "''");
      if (has_place(file)) file.replace(file.rfind(kOrderPlace), kOrderPlace.size(), order.file_name());
      profiles.push_back(of_caches(plan, load_profile(file, plan.caches.layers(), n_kv)));
    }
    plan.profiles.push_back(mean_profile(profiles));
  }
}

/// Chooses the loss that curves sum, and the division of budgets by it.
void choose_setting(BudgetPlan& plan, const Dump& dump, const BudgetOptions& options) {
  const DumpShape& shape = dump.shape();
  plan.future = future_rows(shape.l, shape.T, shape.first_query());
  plan.losses = LossRows::of(dump, {}, plan.future);
  plan.left_out = losses_left_out(dump, {}, plan.future);
  for (const std::string& note : loss_notes(dump, {}, plan.future)) plan.notes.push_back(note);
  if (plan.future.count() == 0)
    throw InputError("budget: the loss of a head is what the decoding steps miss, and the dump has none");
  const CurveLoss loss = options.loss.value_or(CurveLoss::importance);
  plan.curve = kCurveLosses[loss].metric;
  if (const auto why = why_unavailable(plan.curve, dump))
    throw OptionError(option_text("{} {}: {} is unavailable: {}", budget_option::loss, name_of(loss),
                                  name_of(plan.curve), *why));
  const BudgetSemanticsFacts& setting = kBudgetSemantics[options.semantics];
  plan.divides = setting.divides;
  // Nats of different layers compare as they are.
  const Normalise own = plan.curve == TokenMetric::oracle_importance ? setting.normalise : Normalise::none;
  plan.normalise_by_layer = options.normalise.value_or(own) == Normalise::layer;
  if (options.floor && !(*options.floor >= 0 && *options.floor < 1))
    throw OptionError(budget_option::floor, "a share of the prompt from 0 to below 1",
                      fmt::format("{}", *options.floor));
}

void read_scores(BudgetPlan& plan, const Dump& dump, const BudgetOptions& options) {
  plan.scores = read_given<double>(budget_option::score, options.scores, dump);
  join_readers(plan.scores, dump);
  for (std::size_t s = 0; s < plan.scores.size(); ++s)
    if (std::ranges::none_of(options.orders,
                             [&](const BudgetOrder& asked) { return asked.policy.given == s; }))
      throw OptionError(option_text("{} {}: no order uses it: {} {}", budget_option::score,
                                    plan.scores[s].name, budget_option::order, plan.scores[s].name));
}

/// True for the default orders, followed by any number of the user's scores.
bool by_default(const std::vector<BudgetOrder>& orders) {
  const std::vector<BudgetOrder> usual = BudgetOptions{}.orders;
  return orders.size() >= usual.size() && std::equal(usual.begin(), usual.end(), orders.begin()) &&
         std::all_of(orders.begin() + std::ssize(usual), orders.end(),
                     [](const BudgetOrder& order) { return order.policy.given.has_value(); });
}

/// Groups the caches that hold equally many tokens. `layers`: the layers of the run.
void find_equal_caches(BudgetPlan& plan, const Dump& dump, const std::vector<Index>& layers) {
  const Index l = dump.shape().l;
  for (Index at = 0; at < std::ssize(layers); ++at) {
    if (!plan.caches.is_first(at)) continue;
    const Index held = dump.rule(layers[static_cast<std::size_t>(at)]).held(l);
    auto equal = std::ranges::find(plan.equal, held, &EqualCaches::held);
    if (equal == plan.equal.end()) equal = plan.equal.insert(equal, {held, {}, {}});
    equal->caches.push_back(plan.caches.cache(at));
  }
  std::ranges::sort(plan.equal, std::greater<>(), &EqualCaches::held);
}

void add_orders(BudgetPlan& plan, const Dump& dump, const BudgetOptions& options) {
  const DumpShape& shape = dump.shape();
  const auto of_caches_that_hold = [&](const BudgetOrder& asked, Index held) {
    return order_of(asked, options, held, shape.l - held, dump.projects_values());
  };
  const Index most = plan.equal.front().held;
  for (const BudgetOrder& asked : options.orders) {
    CandidateOrder order = of_caches_that_hold(asked, most);
    if (order.pinned() > most)
      throw OptionError(option_text("{} and {}", budget_option::sinks, budget_option::recent),
                        fmt::format("at most the prompt's {} tokens", most),
                        fmt::format("{}", order.pinned()));
    if (order.rule.metric)
      if (const auto why = why_unavailable(*order.rule.metric, dump)) {
        // Orders that nobody named are left out; named ones throw.
        if (!by_default(options.orders))
          throw OptionError(option_text("{}: {} is unavailable: {}", budget_option::order, asked.name, *why));
        plan.left_out.push_back({"budgets under the order " + asked.name, *why});
        continue;
      }
    const bool there = std::ranges::any_of(
        plan.orders, [&](const CandidateOrder& other) { return other.name == asked.name; });
    if (there) continue;
    plan.orders.push_back(std::move(order));
    for (EqualCaches& equal : plan.equal) equal.orders.push_back(of_caches_that_hold(asked, equal.held));
  }
  for (const CandidateOrder& order : plan.orders) {
    const Index asked = order.rule.window, rows = window_rows(shape.l, shape.first_query(), asked).count();
    const OptionText note = fmt::format(
        "window {} clipped to {}: the dump holds the queries of {} prompt positions", asked, rows, rows);
    const auto is_said = [&](const OptionText& other) { return other.plain() == note.plain(); };
    if (rows > 0 && rows < asked && std::ranges::none_of(plan.notes, is_said)) plan.notes.push_back(note);
  }
}

/// Divisions that are asked for, each once, those by files of profiles, which it reads, among them.
std::vector<BudgetDivision> methods_of(BudgetPlan& plan, const BudgetOptions& options, Index n_kv) {
  std::vector<BudgetDivision> methods;
  for (const BudgetDivision& method : options.methods) place_in(methods, method);
  if (!options.profiles.empty()) {
    read_profiles(plan, options.profiles, n_kv);
    methods.emplace_back(BudgetMethod::profile);
    const auto is_profile = [](const CandidateOrder& o) { return o.name == name_of(BudgetMethod::profile); };
    if (!plan.profiles_by_order && std::ranges::any_of(plan.orders, is_profile))
      throw OptionError(
          budget_option::score,
          option_text("another name beside {}, which is exported as it", budget_option::profile),
          "'profile'");
  }
  if (methods.empty()) throw OptionError(budget_option::method, "names of methods", "none");
  return methods;
}

struct AskedRatio {
  double sigma;
  std::optional<Index> tokens;
  std::string label;
};

/// Compression ratios of caches of l tokens, each once; `lower` tokens stay in every one of the `heads`.
std::vector<AskedRatio> sigmas_of(BudgetPlan& plan, const BudgetOptions& options, Index l, Index lower,
                                  Index heads) {
  std::vector<AskedRatio> sigmas;
  for (const Budget& asked : options.sigmas) {
    if (l < 2) throw InputError("prompt length", "at least 2 tokens to divide", std::to_string(l));
    if (asked.tokens && (*asked.tokens < 1 || *asked.tokens >= l))
      throw OptionError(asked.asked_by != nullptr ? *asked.asked_by : budget_option::budget,
                        fmt::format("1 to {} tokens of the prompt's {}", l - 1, l),
                        fmt::format("{}", *asked.tokens));
    const double sigma = asked.ratio(l);
    check_sigma(budget_option::sigma, sigma);
    const Index total = total_budget(sigma, l, heads);
    const double mean = static_cast<double>(total) / static_cast<double>(heads);
    if (lower * heads > total && !keeps_by_default(options))
      throw OptionError(
          option_text("{}, {} and {}", budget_option::floor, budget_option::sinks, budget_option::recent),
          fmt::format("at most the mean budget of {:.1f} tokens a head at sigma {}", mean, sigma),
          fmt::format("{} tokens", lower));
    if (lower * heads > total)
      plan.notes.push_back(fmt::format(
          "more stays in every head ({}) than the mean budget of {:.1f} tokens at sigma {}, cut to it, "
          "first positions first, then the most recent",
          lower, mean, asked.label()));
    const auto is_same = [&](const AskedRatio& other) { return other.sigma == sigma; };
    if (std::ranges::none_of(sigmas, is_same)) sigmas.push_back({sigma, asked.tokens, asked.label()});
  }
  if (sigmas.empty()) throw OptionError(budget_option::sigma, "compression ratios", "none");
  return sigmas;
}

}  // namespace

BudgetPlan budget_plan(const Dump& dump, const BudgetOptions& options, const std::vector<Index>& layers) {
  const DumpShape& shape = dump.shape();
  BudgetPlan plan;
  plan.caches = CacheRows(dump, layers);
  find_equal_caches(plan, dump, layers);
  choose_setting(plan, dump, options);
  read_scores(plan, dump, options);
  add_orders(plan, dump, options);
  Index lower = 0;
  for (const CandidateOrder& order : plan.orders) lower = std::max(lower, order.lower);
  if (plan.divides != Semantics::paper)
    plan.notes.push_back(option_text("{} {}: pyramid and ada share out what that code makes of sigma{}",
                                     budget_option::semantics, name_of(options.semantics),
                                     lower > 0 ? ", and take no floor" : ""));
  if (plan.orders.empty()) throw OptionError(budget_option::order, "names of orders", "none");
  const auto methods = methods_of(plan, options, shape.n_kv);
  const EqualCaches& most = plan.equal.front();
  const auto sigmas = sigmas_of(plan, options, most.held, lower, std::ssize(most.caches) * shape.n_kv);
  if (plan.equal.size() > 1 || most.held < shape.l)
    plan.notes.push_back(
        "sliding windows: a budget is shared between the layers that hold equally many tokens, "
        "as a share of these");
  for (std::size_t o = 0; o < plan.orders.size(); ++o)
    for (const BudgetDivision& method : methods)
      for (const auto& [sigma, tokens, label] : sigmas)
        plan.cases.push_back({o, method, sigma, tokens, label});
  return plan;
}

namespace {

/// The curves of the group's heads, over the tokens that its caches hold.
LossCurves part_of(const LossCurves& curves, const EqualCaches& equal, Index n_kv) {
  LossCurves part(std::ssize(equal.caches) * n_kv, equal.held);
  std::vector<std::int32_t> as_they_stand(equal.held);
  std::iota(as_they_stand.begin(), as_they_stand.end(), 0);
  for (Index at = 0; at < part.all_heads(); ++at)
    part.set(at, as_they_stand,
             curves.gain(equal.caches[static_cast<std::size_t>(at / n_kv)] * n_kv + at % n_kv)
                 .first(static_cast<std::size_t>(equal.held)));
  return part;
}

/// The group's rows of [caches n_kv, l], over the positions that its caches hold; empty if there are none.
Matrix<double> part_of(const Matrix<double>& scores, const EqualCaches& equal, Index n_kv) {
  if (scores.size() == 0) return {};
  Matrix<double> part(std::ssize(equal.caches) * n_kv, equal.held);
  for (Index at = 0; at < part.rows(); ++at)
    part.row(at) =
        scores.row(equal.caches[static_cast<std::size_t>(at / n_kv)] * n_kv + at % n_kv).head(equal.held);
  return part;
}

/// The group's rows of a profile, [ratios][caches n_kv].
BudgetProfile part_of(const BudgetProfile& profile, const EqualCaches& equal) {
  BudgetProfile part{std::ssize(equal.caches), profile.heads, {}};
  const Index width = profile.layers * profile.heads;
  for (Index row = 0; row < BudgetProfile::kRatios; ++row)
    for (const Index cache : equal.caches) {
      const auto from = profile.pruned.begin() + row * width + cache * profile.heads;
      part.pruned.insert(part.pruned.end(), from, from + profile.heads);
    }
  return part;
}

BudgetFrame frame_of(const EqualCaches& equal, std::size_t order, Index n_kv, double sigma) {
  return budget_frame(std::ssize(equal.caches), n_kv, equal.held, sigma, equal.orders[order].lower);
}

/// Copies a group's rows, [rows][its caches n_kv], to their places in [rows][caches n_kv].
template <class T>
void place(const std::vector<T>& part, const EqualCaches& equal, Index rows, Index n_kv,
           std::vector<T>& all) {
  const Index width = std::ssize(all) / rows;
  auto from = part.begin();
  for (Index row = 0; row < rows; ++row)
    for (const Index cache : equal.caches) {
      std::copy_n(from, n_kv, all.begin() + row * width + cache * n_kv);
      from += n_kv;
    }
}

}  // namespace

OrderCurves::OrderCurves(const BudgetPlan& plan, std::size_t order, Index n_kv, LossCurves all)
    : n_kv_(n_kv), all_(std::move(all)) {
  if (plan.equal.size() > 1 || plan.equal.front().held < all_.l())
    for (const EqualCaches& equal : plan.equal) parts_.push_back(part_of(all_, equal, n_kv));
  for (std::size_t group = 0; group < plan.equal.size(); ++group)
    greedy_.emplace_back(curves(group), plan.equal[group].orders[order].lower);
}

std::size_t OrderCurves::bytes() const {
  std::size_t bytes = 0;
  for (const HullGreedy& greedy : greedy_) bytes += greedy.blocks() * sizeof(HullBlock);
  for (const LossCurves& part : parts_)
    bytes += static_cast<std::size_t>(part.all_heads() * (2 * part.l() + 1)) * sizeof(double);
  return bytes;
}

Allocation allocate(const BudgetPlan& plan, const BudgetCase& which, const OrderCurves& curves,
                    const Matrix<double>& scores) {
  const Index n_kv = curves.n_kv();
  const Matrix<double> of_caches = plan.caches.of_caches(scores);
  Allocation all{Budgets(curves.all().all_heads()), std::vector<double>(curves.all().all_heads())};
  for (std::size_t group = 0; group < plan.equal.size(); ++group) {
    const EqualCaches& equal = plan.equal[group];
    const Matrix<double> ranked = part_of(of_caches, equal, n_kv);
    BudgetProfile profile;
    if (!plan.profiles.empty()) profile = part_of(plan.profiles.at(which.order), equal);
    const double sigma =
        which.tokens && equal.held > 0
            ? 1 - static_cast<double>(std::min(*which.tokens, equal.held)) / static_cast<double>(equal.held)
            : which.sigma;
    const Allocation found =
        allocate(which.division, {frame_of(equal, which.order, n_kv, sigma),
                                  plan.divides,
                                  equal.orders[which.order].pinned(),
                                  curves.curves(group),
                                  curves.greedy(group),
                                  {ranked.data(), static_cast<std::size_t>(ranked.size())},
                                  plan.profiles.empty() ? nullptr : &profile});
    place(found.budgets, equal, 1, n_kv, all.budgets);
    place(found.loss, equal, 1, n_kv, all.loss);
  }
  return {plan.caches.of_layers<Index>(all.budgets, false), plan.caches.of_layers<double>(all.loss, false)};
}

BudgetProfile lu_profile(const BudgetPlan& plan, std::size_t order, const OrderCurves& curves) {
  const Index n_kv = curves.n_kv();
  BudgetProfile all{plan.caches.caches(), n_kv,
                    std::vector<double>(BudgetProfile::kRatios * curves.all().all_heads())};
  for (std::size_t group = 0; group < plan.equal.size(); ++group) {
    const EqualCaches& equal = plan.equal[group];
    BudgetFrame every_sigma = frame_of(equal, order, n_kv, 0.5);
    every_sigma.lower = equal.orders[order].lower;  // each sigma caps `lower` at its own total
    place(lu_profile(every_sigma, curves.curves(group), curves.greedy(group)).pruned, equal,
          BudgetProfile::kRatios, n_kv, all.pruned);
  }
  return of_layers(plan, all);
}

BudgetProfile of_layers(const BudgetPlan& plan, const BudgetProfile& caches) {
  BudgetProfile all{plan.caches.layers(), caches.heads, {}};
  const std::size_t width = static_cast<std::size_t>(caches.layers * caches.heads);
  for (std::size_t row = 0; row < caches.pruned.size(); row += width)
    for (const double ratio :
         plan.caches.of_layers<double>(std::span(caches.pruned).subspan(row, width), true))
      all.pruned.push_back(ratio);
  return all;
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
  std::ranges::stable_sort(rest, [&](std::int32_t a, std::int32_t b) { return by_pool[a] > by_pool[b]; });

  RankedTokens ranked{pinned, {}, {}};
  ranked.order.insert(ranked.order.end(), rest.begin(), rest.end());
  ranked.scores.assign(pinned.size(), std::numeric_limits<double>::infinity());
  for (const std::int32_t p : rest) ranked.scores.push_back(by_pool[p]);
  return ranked;
}

template <class T>
std::vector<RankedTokens> head_orders(const HeadGroup<T>& group, const BudgetPlan& plan, Index n_kv,
                                      const Compute& compute) {
  const Index first = group.first_held(), held = group.held();
  std::vector<EvictionRule> rules;
  for (const CandidateOrder& order : std::ranges::find(plan.equal, held, &EqualCaches::held)->orders)
    rules.push_back(order.rule);
  const GivenScores given = scores_of_head(plan.scores, group.layer * n_kv + group.kv_head, group.l);
  const std::vector<Vector<double>> scores = rule_scores(group, rules, given, compute);
  std::vector<RankedTokens> orders;
  for (std::size_t o = 0; o < rules.size(); ++o) {
    RankedTokens& ranked = orders.emplace_back(ranked_tokens(rules[o], scores[o].tail(held)));
    for (std::int32_t& p : ranked.order) p += static_cast<std::int32_t>(first);
    for (Index p = first; p-- > 0;) ranked.order.push_back(static_cast<std::int32_t>(p));
    ranked.scores.resize(ranked.order.size(), -std::numeric_limits<double>::infinity());
  }
  return orders;
}
template <class T>
std::vector<RankedTokens> head_worths(const HeadGroup<T>& group, const BudgetPlan& plan, Index n_kv,
                                      const Compute& compute) {
  const Vector<double> worth = future_importance(group, compute, plan.curve);
  std::vector<RankedTokens> orders = head_orders(group, plan, n_kv, compute);
  for (RankedTokens& ranked : orders)
    for (const std::int32_t p : ranked.order) ranked.worth.push_back(worth[p]);
  return orders;
}

// NOLINTBEGIN(bugprone-macro-parentheses): T is a type
#define KVREPLAY_ORDERS(T)                                                                      \
  template std::vector<RankedTokens> head_orders(const HeadGroup<T>&, const BudgetPlan&, Index, \
                                                 const Compute&);                               \
  template std::vector<RankedTokens> head_worths(const HeadGroup<T>&, const BudgetPlan&, Index, \
                                                 const Compute&);
KVREPLAY_ORDERS(float)
KVREPLAY_ORDERS(double)
#undef KVREPLAY_ORDERS
// NOLINTEND(bugprone-macro-parentheses)

}  // namespace kvreplay
