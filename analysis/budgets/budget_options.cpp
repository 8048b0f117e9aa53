#include "analysis/budgets/budget_options.hpp"

#include "analysis/results/figures.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace kvreplay {
namespace {

std::vector<std::string> order_names() {
  std::vector<std::string> names = kTokenMetrics.names();
  names.insert(names.begin(), std::string(name_of(EvictionBase::snapkv)));
  return names;
}

bool is_named(const BudgetMethodFacts& facts) { return !facts.needs_profile; }

std::string listed(const std::vector<std::string>& names) {
  return fmt::format(": {}", fmt::join(names, ", "));
}

std::string settings_listed() {
  std::vector<std::string> settings;
  for (const BudgetSemanticsFacts& facts : kBudgetSemantics)
    settings.push_back(fmt::format("{}, {}", facts.name, facts.meaning));
  return fmt::format(": {}", fmt::join(settings, "; "));
}

}  // namespace

std::vector<BudgetDivision> usual_budget_methods() {
  std::vector<BudgetDivision> methods;
  for (const BudgetMethodFacts& facts : kBudgetMethods)
    if (is_named(facts) && facts.is_usual) methods.emplace_back(facts.id);
  return methods;
}

BoundOptions bound(BudgetOptions& options) {
  using namespace budget_option;
  BoundOption orders = bind_option(order, options.orders).keyed("orders");
  orders.words =
      listed(order_names()) + ", another policy's scores as snapkv+joint[window=16], or a score of yours";
  orders.last = true;
  orders.read = [&options](const std::vector<std::string>& words) {
    options.orders.clear();
    for (const std::string& word : words)
      for (const std::string& each : with_each_alternative(word))
        options.orders.push_back(parse_order(each, names_of(options.scores)));
  };
  BoundOption profiles = bind_option(profile, options.profiles).keyed("").naming_files();
  profiles.read = [&options](const std::vector<std::string>& words) {
    constexpr std::string_view kOfOthers = "leave-one-out", kOfNobody = "none";
    const bool is_word = std::ranges::any_of(
        words, [&](const std::string& word) { return word == kOfOthers || word == kOfNobody; });
    if (is_word && words.size() > 1)
      throw OptionError(profile, "files, or one word", fmt::format("'{}'", fmt::join(words, ",")));
    options.leave_one_out = words.front() == kOfOthers;
    options.profiles = is_word ? std::vector<std::string>() : words;
  };
  const auto [ratios, shares, tokens] = bound_budgets(options.sigmas, "sigmas", sigma, keep, budget);
  const BoundOption methods =
      bind_option(method, options.methods)
          .keyed("methods")
          .saying(fmt::format("{}; {}", listed(kBudgetMethods.names_where(is_named)), oracles_of_budgets()));
  return {orders, methods, ratios, shares, tokens,
          bind_option(semantics, options.semantics).saying(settings_listed()),
          bind_option(loss, options.loss), bind_option(normalise, options.normalise),
          bind_option(floor, options.floor), bind_option(sinks, options.sinks),
          bind_option(recent, options.recent),
          // The contents of a file count, not its name.
          profiles, bind_option(score, options.scores).keyed("")};
}

BudgetOptions by_profile(BudgetOptions options, const std::vector<std::string>& orders,
                         std::vector<std::string> files) {
  std::erase_if(options.orders, [&](const BudgetOrder& order) { return !is_in(orders, order.name); });
  options.methods.clear();
  options.profiles = std::move(files);
  return options;
}

BudgetOrder parse_order(const std::string& given, const std::vector<std::string>& scores) {
  std::vector<std::string> words = kTokenMetrics.names(), bases = kBases.names();
  words.insert(words.end(), bases.begin(), bases.end());
  words.insert(words.end(), scores.begin(), scores.end());
  const std::string name = in_known_spelling(given, words);
  const auto policy = [&](const std::string& text) {
    return parse_policy(text, scores, budget_option::order);
  };
  if (kTokenMetrics.named(name) || is_in(scores, name))
    return {name, policy(policy_name(name_of(EvictionBase::score), name))};
  const std::string base = name.substr(0, name.find_first_of("+:["));
  if (!kBases.named(base)) {
    std::vector<std::string> known = order_names();
    known.insert(known.end(), scores.begin(), scores.end());
    throw OptionError(
        option_text("{}: unknown order '{}'{}", budget_option::order, name, alternatives(name, known)));
  }
  BudgetOrder order{name, policy(name)};
  order.name = order.policy.name;
  if (order.policy.own.page)
    throw OptionError(option_text("{}: '{}': {} has no effect: heads share their budgets token by token",
                                  budget_option::order, name, evict_option::page.name));
  if (order.policy.own.threshold)
    throw OptionError(option_text("{}: '{}': {} has no effect: heads share a budget", budget_option::order,
                                  name, evict_option::threshold.name));
  const EvictionBaseFacts& facts = kBases[order.policy.base];
  if (facts.searches || facts.two_stages || (!facts.metric && !facts.alone))
    throw OptionError(budget_option::order, "a policy that ranks by a score",
                      fmt::format("'{}', which {}", name,
                                  facts.searches     ? "searches"
                                  : facts.two_stages ? "ranks twice, by its budget"
                                  : facts.reads      ? "evicts nothing"
                                                     : "goes by position"));
  return order;
}

BudgetDivision OptionValue<BudgetDivision>::parse(const OptionFacts& option, const std::string& given) {
  using namespace budget_option;
  std::vector<std::string> words = kBudgetMethods.names();
  words.insert(words.end(), {std::string(alpha.name), std::string(beta.name)});
  const std::string word = in_known_spelling(given, words);
  const std::string name = word.substr(0, word.find('['));
  const auto known = kBudgetMethods.named(name);
  if (!known || !is_named(kBudgetMethods[*known]))
    throw OptionError(option_text("{}: unknown method '{}'{}", option, name,
                                  alternatives(name, kBudgetMethods.names_where(is_named))));
  BudgetDivision division(*known);
  division.name = word;
  read_own_options(option, word, {bind_option(alpha, division.alpha), bind_option(beta, division.beta)},
                   [&](const OptionFacts& own) -> std::optional<std::string> {
                     const BudgetMethod of = &own == &alpha ? BudgetMethod::ada : BudgetMethod::pyramid;
                     if (*known == of) return std::nullopt;
                     return fmt::format("it is one of {}", name_of(of));
                   });
  const auto refuse = [&](const OptionFacts& own, const char* expected, double found) {
    throw OptionError(option_text("{}: '{}': {}", option, word, own), expected, fmt::format("{}", found));
  };
  if (division.alpha && !(*division.alpha >= 0 && *division.alpha <= 1))
    refuse(alpha, "a share from 0 to 1", *division.alpha);
  if (division.beta && !(*division.beta >= 1 && std::isfinite(*division.beta)))
    refuse(beta, "a finite number of at least 1", *division.beta);
  return division;
}

Normalise OptionValue<Normalise>::parse(const OptionFacts& option, const std::string& word) {
  for (const Normalise normalise : {Normalise::none, Normalise::layer})
    if (same_name(word, text(normalise))) return normalise;
  throw OptionError(option, "none or layer", fmt::format("'{}'", word));
}

}  // namespace kvreplay
