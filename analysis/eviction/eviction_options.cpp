#include "analysis/eviction/eviction_options.hpp"

#include "analysis/results/csv.hpp"
#include "analysis/results/kept_text.hpp"

#include <fmt/format.h>

#include <algorithm>

namespace kvreplay {
namespace {

/// What a word says under an option; nothing where it says no budget.
std::optional<Budget> budget_in(const OptionFacts& option, const std::string& word) {
  using namespace evict_option;
  const auto number = [](const std::string& text) -> std::optional<double> {
    if (!OptionValue<double>::complaint(sigma, text).empty()) return std::nullopt;
    return OptionValue<double>::parse(sigma, text);
  };
  const auto kept = [](std::optional<double> share) -> std::optional<Budget> {
    if (!share || !(*share > 0 && *share < 1)) return std::nullopt;
    return Budget{std::nullopt, rest_of(*share)};
  };
  if (option.name == sigma.name) {
    const auto ratio = number(word);
    return ratio ? std::optional(Budget{std::nullopt, *ratio}) : std::nullopt;
  }
  if (word.ends_with('%')) {
    const auto hundredths = number(word.substr(0, word.size() - 1));
    return kept(hundredths ? std::optional(*hundredths / 100) : std::nullopt);
  }
  if (const auto tokens = index_in(word, kNoLimit); tokens && *tokens >= 0) return Budget{tokens, 0};
  return option.name == keep.name ? kept(number(word)) : std::nullopt;
}

constexpr const char* kPoolings = "max:N or avg:N with an odd N, or none";

std::vector<std::string> names_taking_a_score() {
  return kBases.names_where([](const EvictionBaseFacts& facts) { return facts.takes_score; });
}

/// The policies, whose scores may be the user's.
BoundOption bound_policies(EvictionOptions& options) {
  BoundOption policies = bind_option(evict_option::policy, options.policies).keyed("policies");
  policies.words = fmt::format(". Bases: {}; scores: {}, and yours", fmt::join(kBases.names(), ", "),
                               fmt::join(kTokenMetrics.names(), ", "));
  policies.last = true;
  policies.read = [&options](const std::vector<std::string>& words) {
    options.policies.clear();
    for (const std::string& word : words) {
      if (word == "none")
        options.policies.emplace_back();
      else
        options.policies.emplace_back(parse_policy(word, names_of(options.scores)));
    }
  };
  return policies;
}

BoundOption bound_diff(EvictionOptions& options) {
  BoundOption diff =
      bind_option(evict_option::diff, options.semantics).keyed("").excluding(evict_option::semantics);
  diff.initial.clear();
  diff.read = [&options](const std::vector<std::string>& words) {
    options.semantics.clear();
    for (const std::string& word : words) {
      const Semantics one = OptionValue<Semantics>::parse(evict_option::diff, word);
      const auto known = std::find(options.semantics.begin(), options.semantics.end(), one);
      if (known == options.semantics.end()) options.semantics.push_back(one);
    }
    if (options.semantics.size() < 2)
      throw OptionError(evict_option::diff,
                        fmt::format("two or three of {}", fmt::join(kSemantics.names(), ", ")),
                        fmt::format("{}", fmt::join(words, ",")));
  };
  return diff;
}

}  // namespace

BoundOptions bound(EvictionOptions& options) {
  using namespace evict_option;
  BoundOption one_semantics = bind_option(semantics, options.semantics);
  one_semantics.list = false;
  one_semantics.words = fmt::format(": {}", fmt::join(kSemantics.names(), ", "));
  BoundOption kept_budgets = bind_option(keep, options.budgets).keyed("").excluding(sigma);
  BoundOption tokens = bind_option(budget, options.budgets).keyed("").excluding(sigma).excluding(keep);
  kept_budgets.initial.clear();
  tokens.initial.clear();
  BoundOptions all = {
      bound_policies(options), bind_option(sigma, options.budgets).keyed("budgets"), kept_budgets, tokens,
      one_semantics, bound_diff(options), bind_option(phase, options.phases).keyed("phases"),
      bind_option(decode_window, options.decode_window), bind_option(window, options.window),
      bind_option(sinks, options.sinks), bind_option(recent, options.recent), bind_option(pool, options.pool),
      bind_option(on, options.on), bind_option(per_query_head, options.per_query_head),
      bind_option(channels, options.channels), bind_option(bits, options.bits),
      bind_option(group, options.group).needing(bits), bind_option(residual, options.residual).needing(bits),
      // What a file holds counts, not its name.
      bind_option(score, options.scores).keyed(""), bind_option(kept, options.kept).keyed("")};
  for (BoundOption& option : all)
    if (option.needs == &bits)
      option.write = [&options, write = option.write] { return options.bits ? write() : std::nullopt; };
  return all;
}

std::vector<std::string> names_of(const std::vector<NamedFile>& files) {
  std::vector<std::string> names;
  for (const NamedFile& file : files) names.push_back(file.name);
  return names;
}

NamedFile OptionValue<NamedFile>::parse(const OptionFacts& option, const std::string& word) {
  const auto equals = word.find('=');
  if (equals == std::string::npos || equals == 0 || equals + 1 == word.size())
    throw OptionError(option, "name=FILE.npy", fmt::format("'{}'", word));
  return {word.substr(0, equals), word.substr(equals + 1)};
}

std::string Phase::name() const {
  switch (kind) {
    case Kind::prefill:
      return "prefill";
    case Kind::blockwise:
      return fmt::format("blockwise:{}", block);
    case Kind::decode:
      return "decode";
    case Kind::append_only:
      return "append-only";
  }
  return "";
}

std::string Phase::file_name() const {
  std::string text = name();
  std::replace(text.begin(), text.end(), ':', '_');
  return text;
}

Phase OptionValue<Phase>::parse(const OptionFacts& option, const std::string& word) {
  for (const auto kind : {Phase::Kind::prefill, Phase::Kind::decode, Phase::Kind::append_only})
    if (const Phase phase{kind}; word == phase.name()) return phase;
  constexpr std::string_view kBlockwise = "blockwise:";
  if (word.starts_with(kBlockwise)) {
    const auto block = index_in(std::string_view(word).substr(kBlockwise.size()), kNoLimit);
    if (block && *block >= 1) return {Phase::Kind::blockwise, *block};
  }
  throw OptionError(option, "prefill, blockwise:N with N of at least 1, decode or append-only",
                    fmt::format("'{}'", word));
}

std::string Budget::label() const { return tokens ? fmt::format("{}", *tokens) : shortest(sigma); }

std::optional<Budget> budget_labelled(const std::string& label) {
  if (const auto tokens = index_in(label, kNoLimit)) return Budget{tokens, 0};
  if (!OptionValue<double>::complaint(evict_option::sigma, label).empty()) return std::nullopt;
  return Budget{std::nullopt, OptionValue<double>::parse(evict_option::sigma, label)};
}

std::string OptionValue<Budget>::complaint(const OptionFacts& option, const std::string& word) {
  if (budget_in(option, word)) return "";
  const char* const expected = option.name == evict_option::sigma.name ? "a number"
                               : option.name == evict_option::keep.name
                                   ? "a share between 0 and 1, as 20% or 0.2, or whole tokens"
                                   : "a whole number of at least 0, or a share as 20%";
  return fmt::format("expected {}, found '{}'", expected, word);
}
Budget OptionValue<Budget>::parse(const OptionFacts& option, const std::string& word) {
  return *budget_in(option, word);
}

std::vector<PolicyChoice> policies_named(const std::vector<std::string>& names) {
  std::vector<PolicyChoice> policies;
  for (const std::string& name : names) policies.emplace_back(parse_policy(name, {}));
  return policies;
}

Policy parse_policy(const std::string& text, const std::vector<std::string>& scores) {
  using evict_option::policy;
  const auto plus = text.find('+');
  const std::string base_name = text.substr(0, plus);
  Policy found;
  found.name = text;
  const auto base = kBases.named(base_name);
  if (!base)
    throw OptionError(option_text("{}: unknown policy '{}'{}", policy, base_name,
                                  std::find(scores.begin(), scores.end(), base_name) != scores.end()
                                      ? fmt::format("; a score is used as BASE+{}", base_name)
                                      : alternatives(base_name, kBases.names())));
  found.base = *base;
  if (plus == std::string::npos) return found;
  const std::string score = text.substr(plus + 1);
  if (!kBases[*base].takes_score)
    throw OptionError(option_text("{}: {} ranks by what it is named after and takes no score; {} do", policy,
                                  base_name, fmt::join(names_taking_a_score(), ", ")));
  const auto given = std::find(scores.begin(), scores.end(), score);
  if (given != scores.end())
    found.given = static_cast<std::size_t>(given - scores.begin());
  else if (const auto metric = kTokenMetrics.named(score))
    found.metric = *metric;
  else if (const auto start = kBases.named(score);
           *base == EvictionBase::exchange && start && *start != EvictionBase::exchange)
    found.start = *start;
  else {
    std::vector<std::string> known = kTokenMetrics.names();
    known.insert(known.end(), scores.begin(), scores.end());
    throw OptionError(option_text("{}: unknown score '{}'{}", policy, score, alternatives(score, known)));
  }
  return found;
}

Pooling OptionValue<Pooling>::parse(const OptionFacts& option, const std::string& word) {
  if (word == "none") return {};
  const auto colon = word.find(':');
  const std::string kind = word.substr(0, colon);
  const Index width = colon == std::string::npos
                          ? 0
                          : index_in(std::string_view(word).substr(colon + 1), kNoLimit).value_or(0);
  if ((kind != "max" && kind != "avg") || width < 1)
    throw OptionError(option, kPoolings, fmt::format("'{}'", word));
  const Pooling pool{kind == "max" ? Pooling::Kind::max : Pooling::Kind::avg, width};
  check_pooling(option, pool);
  return pool;
}

void check_pooling(const OptionFacts& option, const Pooling& pool) {
  if (pool.kind != Pooling::Kind::none && pool.width % 2 == 0)
    throw OptionError(option, kPoolings, fmt::format("'{}'", OptionValue<Pooling>::text(pool)));
}

std::string OptionValue<Pooling>::text(const Pooling& pool) {
  if (pool.kind == Pooling::Kind::none) return "none";
  return fmt::format("{}:{}", pool.kind == Pooling::Kind::max ? "max" : "avg", pool.width);
}

SearchRows OptionValue<SearchRows>::parse(const OptionFacts& option, const std::string& word) {
  for (const SearchRows rows : {SearchRows::window, SearchRows::future})
    if (word == text(rows)) return rows;
  throw OptionError(option, "window or future", fmt::format("'{}'", word));
}

void check_sigma(const OptionFacts& option, double sigma) {
  if (!(sigma > 0 && sigma < 1))
    throw OptionError(option, "compression ratios between 0 and 1, both excluded", shortest(sigma));
}

}  // namespace kvreplay
