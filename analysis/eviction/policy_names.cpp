#include "analysis/eviction/eviction_options.hpp"
#include "sim/eviction/prompt_eviction.hpp"

#include <fmt/format.h>

#include <algorithm>

// Policies as they are written: snapkv+joint[window=64,pool=7], score:mine.

namespace kvreplay {
namespace {

[[noreturn]] void fail(const OptionFacts& named_by, const std::string& policy, const std::string& what) {
  throw OptionError(option_text("{}: '{}': {}", named_by, policy, what));
}

/// How a score that nothing ranks by yet is used.
std::string use_of(const std::string& score) {
  return fmt::format("a score is used as {}, or {}", policy_name(name_of(EvictionBase::score), score),
                     policy_name(name_of(EvictionBase::snapkv), score));
}

/// What ranks, as far as the name tells.
std::optional<TokenMetric> metric_of(const Policy& policy) {
  return policy.metric || policy.given ? policy.metric : kBases[policy.start.value_or(policy.base)].metric;
}

/// Why one of the policy's own options would do nothing, as one clause.
std::optional<std::string> why_no_effect(const Policy& policy, const OptionFacts& option) {
  const EvictionBaseFacts& facts = kBases[policy.base];
  if (&option == &evict_option::by) {
    if (!facts.searches) return "it does not search";
    if (facts.greedy) return "its name says what it makes small";
    return std::nullopt;
  }
  const EvictionBase base = policy.start.value_or(policy.base);
  using namespace evict_option;
  if (&option == &n_sink || &option == &n_future || &option == &epsilon)
    return base == EvictionBase::expected_attention
               ? std::nullopt
               : std::optional<std::string>("it is one of expected_attention");
  if (only_searches(policy)) return "it searches, and neither ranks nor pins";
  if (&option != &evict_option::window || kBases[base].pins_window || base == EvictionBase::h2o)
    return std::nullopt;
  const std::optional<TokenMetric> metric = metric_of(policy);
  return metric && on_window(*metric) ? std::nullopt
                                      : std::optional<std::string>("it ranks by nothing of window rows");
}

void read_score(Policy& policy, const std::string& score, const std::vector<std::string>& scores,
                const OptionFacts& named_by) {
  const auto given = std::find(scores.begin(), scores.end(), score);
  if (given != scores.end())
    policy.given = static_cast<std::size_t>(given - scores.begin());
  else if (const auto metric = kTokenMetrics.named(score))
    policy.metric = *metric;
  else if (const auto start = kBases.named(score); policy.base == EvictionBase::exchange && start &&
                                                   *start != EvictionBase::exchange && !kBases[*start].alone)
    policy.start = *start;
  else {
    std::vector<std::string> known = kTokenMetrics.names();
    known.insert(known.end(), scores.begin(), scores.end());
    throw OptionError(option_text("{}: unknown score '{}'{}", named_by, score, alternatives(score, known)));
  }
}

}  // namespace

BoundOptions bound(PolicyOverrides& overrides) {
  using namespace evict_option;
  return {bind_option(window, overrides.window),
          bind_option(sinks, overrides.sinks),
          bind_option(recent, overrides.recent),
          bind_option(pool, overrides.pool),
          bind_option(by, overrides.by),
          bind_option(n_sink, overrides.n_sink),
          bind_option(n_future, overrides.n_future),
          bind_option(epsilon, overrides.epsilon)};
}

std::vector<PolicyChoice> policies_named(const std::vector<std::string>& names) {
  std::vector<PolicyChoice> policies;
  for (const std::string& name : names) policies.emplace_back(parse_policy(name, {}));
  return policies;
}

Policy parse_policy(const std::string& text, const std::vector<std::string>& scores,
                    const OptionFacts& named_by) {
  const std::size_t bracket = text.find('[');
  const std::string name = text.substr(0, bracket);
  const std::size_t mark = name.find_first_of("+:");
  const std::string base_name = name.substr(0, mark);
  const auto base = kBases.named(base_name);
  if (!base)
    throw OptionError(option_text("{}: unknown policy '{}'{}", named_by, base_name,
                                  std::find(scores.begin(), scores.end(), base_name) != scores.end()
                                      ? "; " + use_of(base_name)
                                      : alternatives(base_name, kBases.names())));
  Policy found;
  found.name = text;
  found.base = *base;
  const EvictionBaseFacts& facts = kBases[*base];
  const bool has_score = mark != std::string::npos;
  const std::string score = has_score ? name.substr(mark + 1) : "";
  if (facts.alone && (!has_score || name[mark] != ':'))
    fail(named_by, text,
         fmt::format("expected {}, a score alone",
                     policy_name(base_name, score.empty() ? std::string("NAME") : score)));
  if (!facts.alone && has_score) {
    if (!facts.takes_score)
      throw OptionError(
          option_text("{}: {} ranks by what it is named after and takes no score; {} do", named_by, base_name,
                      fmt::join(kBases.names_where([](const auto& one) { return one.takes_score; }), ", ")));
    if (name[mark] != '+') fail(named_by, text, fmt::format("expected {}", policy_name(base_name, score)));
  }
  if (has_score) read_score(found, score, scores, named_by);
  read_own_options(named_by, text, bound(found.own),
                   [&](const OptionFacts& option) { return why_no_effect(found, option); });
  return found;
}

}  // namespace kvreplay
