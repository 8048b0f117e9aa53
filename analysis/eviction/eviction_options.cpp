#include "analysis/eviction/eviction_options.hpp"

#include "analysis/results/csv.hpp"
#include "analysis/results/figures.hpp"
#include "analysis/results/kept_text.hpp"
#include "analysis/results/map_name.hpp"
#include "sim/eviction/prompt_eviction.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>

namespace kvreplay {

namespace {

/// The budget that a word states under an option; nothing if it states none.
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
  if (const auto tokens = index_in(word, kNoLimit); tokens && *tokens >= 1) return Budget{tokens, 0};
  return option.name == keep.name ? kept(number(word)) : std::nullopt;
}

const std::vector<std::string> kPoolWords = {"max", "avg", "none"};
constexpr const char* kPoolings = "max:N or avg:N with an odd N, or none";

/// The policies, whose scores may be the user's.
BoundOption bound_policies(EvictionOptions& options) {
  BoundOption policies = bind_option(evict_option::policy, options.policies).keyed("policies");
  policies.words =
      fmt::format(". Bases: {}; scores: {}, and yours",
                  fmt::join(kBases.names_where([](const auto& facts) { return !facts.alone; }), ", "),
                  fmt::join(kTokenMetrics.names(), ", "));
  policies.last = true;
  policies.read = [&options](const std::vector<std::string>& words) {
    options.policies.clear();
    for (const std::string& word : words) {
      if (same_name(word, "none"))
        options.policies.emplace_back();
      else
        for (const std::string& each : with_each_alternative(word))
          options.policies.emplace_back(parse_policy(each, names_of(options.scores)));
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
    for (const std::string& word : words)
      place_in(options.semantics, OptionValue<Semantics>::parse(evict_option::diff, word));
    if (options.semantics.size() < 2)
      throw OptionError(evict_option::diff,
                        fmt::format("two or more of {}", fmt::join(kSemantics.names(), ", ")),
                        fmt::format("{}", fmt::join(words, ",")));
  };
  return diff;
}

}  // namespace

std::array<BoundOption, 3> bound_budgets(std::vector<Budget>& budgets, std::string key,
                                         const OptionFacts& sigma, const OptionFacts& keep,
                                         const OptionFacts& tokens) {
  std::array all = {bind_option(sigma, budgets).keyed(std::move(key)),
                    bind_option(keep, budgets).keyed("").excluding(sigma),
                    bind_option(tokens, budgets).keyed("").excluding(sigma).excluding(keep)};
  for (BoundOption& one : all)
    one.read = [&option = *one.facts, read = one.read, &budgets](const std::vector<std::string>& words) {
      const auto is_whole = [](const std::string& word) { return index_in(word).has_value(); };
      for (std::size_t i = 0; i + 1 < words.size(); ++i)
        if (is_whole(words[i]) && words[i + 1].ends_with('%') &&
            is_whole(words[i + 1].substr(0, words[i + 1].size() - 1)))
          throw OptionError(option, "shares before tokens, and a decimal point as in 20.5%",
                            fmt::format("'{},{}'", words[i], words[i + 1]));
      read(words);
      for (Budget& budget : budgets) budget.asked_by = &option;
    };
  all[1].initial.clear();
  all[2].initial.clear();
  return all;
}

namespace {

/// One format in JSON is not a list.
BoundOption bound_formats(CacheFormatOptions& stored) {
  BoundOption bound = bind_option(evict_option::bits, stored.formats)
                          .saying(fmt::format(". Formats: {}", fmt::join(kNumberFormats.names(), ", ")));
  bound.write = [&stored, write = bound.write]() -> std::optional<Json> {
    if (stored.formats.empty()) return std::nullopt;
    return stored.formats.size() == 1 ? OptionValue<CacheFormat>::json(stored.formats.front()) : write();
  };
  bound.read_json = [read = bound.read_json](const Json& json, const std::string& where) {
    read(json.is_array() ? json : Json::array({json}), where);
  };
  return bound;
}

}  // namespace

BoundOptions bound(CacheFormatOptions& stored) {
  using namespace evict_option;
  BoundOptions all = {bound_formats(stored),
                      bind_option(rotate, stored.rotations).needing(bits),
                      bind_option(center, stored.centerings).needing(bits),
                      bind_option(scales, stored.scales).needing(bits),
                      bind_option(keys, stored.keys).needing(bits),
                      bind_option(group, stored.group).needing(bits),
                      bind_option(residual, stored.residual).needing(bits)};
  for (BoundOption& option : all)
    if (option.needs == &bits)
      option.write = [&stored, write = option.write] {
        return stored.formats.empty() ? std::nullopt : write();
      };
  return all;
}

BoundOptions bound(EvictionOptions& options) {
  using namespace evict_option;
  BoundOption one_semantics = bind_option(semantics, options.semantics);
  one_semantics.list = false;
  one_semantics.words = fmt::format(": {}", fmt::join(kSemantics.names(), ", "));
  const auto [ratios, shares, tokens] = bound_budgets(options.budgets, "budgets", sigma, keep, budget);
  BoundOptions all = {
      bound_policies(options), ratios, shares, tokens, one_semantics, bound_diff(options),
      bind_option(phase, options.phases).keyed("phases"), bind_option(decode_window, options.decode_window),
      bind_option(prompt, options.prompt), bind_option(window, options.window),
      bind_option(sinks, options.sinks), bind_option(recent, options.recent), bind_option(pool, options.pool),
      bind_option(on, options.on), bind_option(by, options.by), bind_option(seed, options.seed),
      bind_option(per_query_head, options.per_query_head), bind_option(ties, options.ties),
      bind_option(channels, options.channels), bound_protection(protect, options.protect),
      bind_option(compensate, options.compensate)
          .saying(fmt::format(": {}", fmt::join(kCompensations.names(), ", "))),
      bind_option(reference, options.reference).needing(compensate),
      bind_option(reference_positions, options.reference_rows).needing(compensate),
      // Files are left out of the JSON: their contents count, not their names.
      bind_option(score, options.scores).keyed(""), bind_option(kept, options.kept).keyed("")};
  BoundOption recipes = bind_option(recipe, options.recipes).keyed("");
  for (const BoundOption& option : all) recipes.excludes.push_back(option.facts);
  all.push_back(std::move(recipes));
  all.push_back(bind_option(window_bytes, options.windows));
  const BoundOptions formats = bound(options.stored);
  all.insert(std::ranges::find(all, &protect, &BoundOption::facts) + 1, formats.begin(), formats.end());
  for (BoundOption& option : all)
    if (option.facts == &protect)  // results without it do not state it either
      option.write = [&options, write = option.write] { return options.protect ? write() : std::nullopt; };
    else if (option.facts == &prompt)
      option.write = [&options, write = option.write] {
        return options.prompt == PromptCache::cut ? std::nullopt : write();
      };
    else if (option.facts == &ties)
      option.write = [&options, write = option.write] { return options.ties ? write() : std::nullopt; };
    else if (option.needs == &compensate || option.facts == &compensate)
      option.write = [&options, write = option.write] {
        return options.compensate.empty() ? std::nullopt : write();
      };
  return all;
}

std::string Phase::name() const {
  switch (kind) {
    case Kind::prefill:
      return "prefill";
    case Kind::blockwise:
      return fmt::format("blockwise:{}", block);
    case Kind::decode:
      return block > 0 ? fmt::format("decode:{}", block) : "decode";
    case Kind::append_only:
      return "append-only";
  }
  return "";
}

std::string Phase::file_name() const { return file_word(name()); }

Phase OptionValue<Phase>::parse(const OptionFacts& option, const std::string& given) {
  const std::string word = in_known_spelling(given, {"prefill", "blockwise", "decode", "append-only"});
  for (const auto kind : {Phase::Kind::prefill, Phase::Kind::decode, Phase::Kind::append_only})
    if (const Phase phase{kind}; word == phase.name()) return phase;
  for (const auto& [kind, before] : {std::pair(Phase::Kind::blockwise, std::string_view("blockwise:")),
                                     std::pair(Phase::Kind::decode, std::string_view("decode:"))}) {
    if (!word.starts_with(before)) continue;
    const auto block = index_in(std::string_view(word).substr(before.size()), kNoLimit);
    if (block && *block >= 1) return {kind, *block};
  }
  throw OptionError(option, "prefill, blockwise:N or decode:N with N of at least 1, decode or append-only",
                    fmt::format("'{}'", word));
}

std::optional<Budget> budget_labelled(const std::string& label) {
  if (const auto tokens = index_in(label, kNoLimit)) return Budget{tokens, 0};
  if (!OptionValue<double>::complaint(evict_option::sigma, label).empty()) return std::nullopt;
  return Budget{std::nullopt, OptionValue<double>::parse(evict_option::sigma, label)};
}

double tokens_kept(const std::string& budget, const std::string& kept, Index l) {
  if (!kept.empty()) return std::strtod(kept.c_str(), nullptr);
  if (budget.empty()) return kNan;
  const auto asked = budget_labelled(budget);
  return asked ? static_cast<double>(asked->kept(l, Semantics::paper)) : kNan;
}

std::string OptionValue<Budget>::complaint(const OptionFacts& option, const std::string& word) {
  if (budget_in(option, word)) return "";
  const char* const expected = option.name == evict_option::sigma.name ? "a number"
                               : option.name == evict_option::keep.name
                                   ? "a share between 0 and 1, as 20% or 0.2, or at least 1 token"
                                   : "a whole number of at least 1, or a share as 20%";
  const char* const comma =
      word == "0" ? "; a comma separates budgets, a decimal point is written as in 0.2" : "";
  return fmt::format("expected {}, found '{}'{}", expected, word, comma);
}
Budget OptionValue<Budget>::parse(const OptionFacts& option, const std::string& word) {
  if (const auto budget = budget_in(option, word)) return *budget;
  throw OptionError(option_text("{}: {}", option, complaint(option, word)));
}

Pooling OptionValue<Pooling>::parse(const OptionFacts& option, const std::string& given) {
  const std::string word = in_known_spelling(given, kPoolWords);
  if (word == "none") return {};
  const auto colon = word.find(':');
  const bool bare = colon == std::string::npos;
  const std::string kind = bare ? "max" : word.substr(0, colon);
  const Index width = index_in(std::string_view(word).substr(bare ? 0 : colon + 1), kNoLimit).value_or(0);
  if ((kind != "max" && kind != "avg") || width < 1 || width % 2 == 0)
    throw OptionError(option, kPoolings, fmt::format("'{}'", word));
  return {kind == "max" ? Pooling::Kind::max : Pooling::Kind::avg, width};
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
    if (same_name(word, text(rows))) return rows;
  throw OptionError(option, "window or future", fmt::format("'{}'", word));
}

SearchBy OptionValue<SearchBy>::parse(const OptionFacts& option, const std::string& word) {
  const auto swaps = [](const SearchByFacts& facts) { return facts.swaps; };
  if (const auto by = kSearchBy.named(in_known_spelling(word, kSearchBy.names()));
      by && swaps(kSearchBy[*by]))
    return *by;
  throw OptionError(option, fmt::format("{}", fmt::join(kSearchBy.names_where(swaps), " or ")),
                    fmt::format("'{}'", word));
}

void check_sigma(const OptionFacts& option, double sigma) {
  if (!(sigma > 0 && sigma < 1))
    throw OptionError(option, "compression ratios between 0 and 1, both excluded", shortest(sigma));
}

// Policies as they are written: snapkv+joint[window=64,pool=7], score:mine.

namespace {

[[noreturn]] void fail(const OptionFacts& named_by, const std::string& policy, const std::string& what) {
  throw OptionError(option_text("{}: '{}': {}", named_by, policy, what));
}

/// A hint for a score that no policy ranks by: the policies that would use it.
std::string use_of(const std::string& score) {
  return fmt::format("a score is used as {}, or {}", policy_name(name_of(EvictionBase::score), score),
                     policy_name(name_of(EvictionBase::snapkv), score));
}

/// The metric that a policy ranks by, as far as its name determines it.
std::optional<TokenMetric> metric_of(const Policy& policy) {
  return policy.metric || policy.given ? policy.metric : kBases[policy.start.value_or(policy.base)].metric;
}

bool is_of_pages(const OptionFacts& option) {
  using namespace evict_option;
  return &option == &page || &option == &page_by || &option == &page_heads || &option == &chunk;
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
  if (&option == &seed || &option == &heads)
    return facts.draws ? std::nullopt : std::optional<std::string>("it draws nothing");
  const bool by_channels = facts.reads == ReadBy::query_channels || facts.reads == ReadBy::heavy_channels;
  if (&option == &r && !by_channels) return "it does not choose by some channels";
  if (&option == &dense && !facts.reads) return "it reads all that it keeps";
  if (facts.reads && &option == &page && facts.reads != ReadBy::page_bounds) return "it reads single tokens";
  if (facts.reads && &option != &page && (&option == &pool || is_of_pages(option)))
    return "it pools no scores";
  if (facts.reads)
    return &option == &evict_option::window ? "it scores each row alone" : std::optional<std::string>();
  if (is_of_pages(option)) {
    if (facts.searches) return "it searches token by token";
    if (facts.two_stages) return "it ranks twice, token by token";
    if (&option != &page && !policy.given && !metric_of(policy))
      return "it goes by position, and not by scores";
    return std::nullopt;
  }
  if (&option == &threshold) {
    if (facts.searches) return "it searches token by token";
    if (facts.two_stages) return "it ranks twice, by its budget";
    return policy.given || metric_of(policy)
               ? std::nullopt
               : std::optional<std::string>("it goes by position, and not by scores");
  }
  if (only_searches(policy)) return "it searches, and neither ranks nor pins";
  if (&option != &evict_option::window || kBases[base].pins_window || base == EvictionBase::h2o)
    return std::nullopt;
  const std::optional<TokenMetric> metric = metric_of(policy);
  return metric && on_window(*metric) ? std::nullopt
                                      : std::optional<std::string>("it ranks by nothing of window rows");
}

/// All words that may occur in a policy's name, except numbers and the names of user scores.
std::vector<std::string> policy_words() {
  std::vector<std::string> words = kBases.names();
  const auto add = [&](const std::vector<std::string>& more) {
    words.insert(words.end(), more.begin(), more.end());
  };
  for (const auto& names :
       {kTokenMetrics.names(), kSearchBy.names(), kPageScores.names(), kPageHeads.names(), kChunkBy.names()})
    add(names);
  PolicyOverrides own;
  for (const BoundOption& option : bound(own)) words.emplace_back(option.facts->name);
  add(kPoolWords);
  return words;
}

void read_score(Policy& policy, const std::string& score, const std::vector<std::string>& scores,
                const OptionFacts& named_by) {
  const auto given = std::ranges::find(scores, score);
  if (given != scores.end())
    policy.given = static_cast<std::size_t>(given - scores.begin());
  else if (const auto metric = kTokenMetrics.named(score))
    policy.metric = *metric;
  else if (const auto start = kBases.named(score); policy.base == EvictionBase::exchange && start &&
                                                   *start != EvictionBase::exchange &&
                                                   !kBases[*start].alone && !kBases[*start].reads)
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
          bind_option(epsilon, overrides.epsilon),
          bind_option(page, overrides.page),
          bind_option(page_by, overrides.page_by),
          bind_option(page_heads, overrides.page_heads),
          bind_option(chunk, overrides.chunk),
          bind_option(r, overrides.r),
          bind_option(dense, overrides.dense),
          bind_option(threshold, overrides.threshold),
          bind_option(seed, overrides.seed),
          bind_option(heads, overrides.heads)};
}

std::vector<PolicyChoice> policies_named(const std::vector<std::string>& names) {
  std::vector<PolicyChoice> policies;
  for (const std::string& name : names) policies.emplace_back(parse_policy(name, {}));
  return policies;
}

Policy parse_policy(const std::string& given, const std::vector<std::string>& scores,
                    const OptionFacts& named_by) {
  std::vector<std::string> known = policy_words();
  known.insert(known.end(), scores.begin(), scores.end());
  const std::string text = in_known_spelling(given, known);
  const std::size_t bracket = text.find('[');
  const std::string name = text.substr(0, bracket);
  const std::size_t mark = name.find_first_of("+:");
  const std::string base_name = name.substr(0, mark);
  const auto base = kBases.named(base_name);
  if (!base)
    throw OptionError(option_text(
        "{}: unknown policy '{}'{}", named_by, base_name,
        is_in(scores, base_name) ? "; " + use_of(base_name) : alternatives(base_name, kBases.names())));
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
  for (const auto& [given, option] : {std::pair(found.own.page_by.has_value(), &evict_option::page_by),
                                      std::pair(found.own.page_heads.has_value(), &evict_option::page_heads)})
    if (given && !found.own.page && !found.own.chunk)
      fail(named_by, text,
           fmt::format("{} has no effect without {} or {}", option->name, evict_option::page.name,
                       evict_option::chunk.name));
  if (found.own.page && found.own.chunk)
    fail(named_by, text, fmt::format("{} excludes {}", evict_option::chunk.name, evict_option::page.name));
  if (found.own.threshold && (found.own.page || found.own.chunk))
    fail(named_by, text,
         fmt::format("expected {} or {}", found.own.page ? evict_option::page.name : evict_option::chunk.name,
                     evict_option::threshold.name));
  return found;
}

}  // namespace kvreplay
