#include "analysis/budgets/budget_stage.hpp"
#include "analysis/channels/channel_stage.hpp"
#include "analysis/commands/commands.hpp"
#include "analysis/commands/run_command.hpp"
#include "analysis/eviction/evict_stage.hpp"
#include "analysis/options/option.hpp"
#include "analysis/results/figures.hpp"
#include "analysis/tokens/token_stage.hpp"
#include "data/error.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace kvreplay {
namespace {

// The options of a command that runs several analyses in one pass: --PART.NAME each, and --NAME where that is
// no riddle.

/// An analysis and its options.
struct OptionsOfPart {
  std::string_view name;
  BoundOptions options;

  const BoundOption* option_named(std::string_view its_name) const {
    const auto found =
        std::ranges::find_if(options, [&](const BoundOption& one) { return one.facts->name == its_name; });
    return found == options.end() ? nullptr : &*found;
  }
};

/// An option that says the same to several parts: --NAME sets it in each of them.
struct SharedOption {
  OptionFacts facts;
  std::span<const std::string_view> parts;
};

class PartOptions {
 public:
  /// Adds the options of `parts` to the command line, its help (each once, by part) and the config file. All
  /// options are available as --PART.NAME, or NAME in a section [PART]. Options that are `shared` or belong
  /// to a single part are available as --NAME too. --PART.NAME takes precedence over --NAME. The fields bound
  /// to the options must outlive the parsing.
  PartOptions(CommandLine& app, const std::vector<OptionsOfPart>& parts,
              std::span<const SharedOption> shared) {
    const auto add = [&](const std::string& name, const OptionFacts& facts, std::vector<BoundOption> bound,
                         std::vector<std::string_view> of, const std::string& group) {
      CLI::Option* const option = app.add(name, facts, std::move(bound))->group(group);
      named_.push_back({option, name, std::move(of)});
      return option;
    };
    for (const SharedOption& one : shared) {
      std::vector<BoundOption> all;
      for (const OptionsOfPart& part : parts)
        if (const BoundOption* const option = part.option_named(one.facts.name);
            option != nullptr && is_in(one.parts, part.name))
          all.push_back(BoundOption(*option).saying(""));
      add(std::string(one.facts.name), one.facts, all, {one.parts.begin(), one.parts.end()},
          "Options of several parts (--PART.NAME for one alone)");
    }
    const auto group_of = [](const OptionsOfPart& part) {
      return fmt::format("Options of {} (--{}.NAME too)", part.name, part.name);
    };
    for (const OptionsOfPart& part : parts)
      for (const BoundOption& option : part.options) {
        const std::string name(option.facts->name);
        const auto have_it = std::ranges::count_if(
            parts, [&](const OptionsOfPart& other) { return other.option_named(name) != nullptr; });
        if (find(name) == nullptr && have_it == 1)
          add(name, *option.facts, {option}, {part.name}, group_of(part));
      }
    for (const OptionsOfPart& part : parts)
      for (const BoundOption& option : part.options) {
        const Named* const plain = find(std::string(option.facts->name));
        const bool has_plain = plain != nullptr && is_in(plain->parts, part.name);
        CLI::Option* const added = add(fmt::format("{}.{}", part.name, option.facts->name), *option.facts,
                                       {option}, {part.name}, group_of(part));
        if (has_plain) app.hide(added);  // the help has each once
      }
    for (const OptionsOfPart& part : parts)
      for (const BoundOption& option : part.options)
        for (const std::string& before : {std::string(), fmt::format("{}.", part.name)}) {
          const auto there = [&](const OptionFacts* facts) {
            return facts == nullptr ? nullptr
                                    : app.get_option_no_throw(fmt::format("--{}{}", before, facts->name));
          };
          CLI::Option* const mine = there(option.facts);
          if (mine == nullptr) continue;
          for (const OptionFacts* const excluded : option.excludes)
            if (CLI::Option* const other = there(excluded)) mine->excludes(other);
          if (CLI::Option* const other = there(option.needs)) mine->needs(other);
        }
  }

  /// Throws OptionError for an option that was given though none of its parts runs.
  void require_used(const std::vector<std::string>& running) const {
    for (const Named& one : named_) {
      const bool used =
          std::ranges::any_of(running, [&](const std::string& part) { return is_in(one.parts, part); });
      if (one.option->count() > 0 && !used)
        throw OptionError(option_text("{}: an option of {}, which {} not run", OptionFacts{.name = one.name},
                                      fmt::join(one.parts, ", "), one.parts.size() == 1 ? "does" : "do"));
    }
  }
  /// True if an option of this part only was given.
  bool mention(std::string_view part) const {
    return std::ranges::any_of(named_, [&](const Named& one) {
      return one.option->count() > 0 && one.parts.size() == 1 && one.parts.front() == part;
    });
  }
  /// A part's error message, with its options under their names in this command, or under the given ones
  /// where both names exist.
  OptionText called_here(const OptionText& complaint, std::string_view part) const {
    OptionText text = complaint;
    for (const Named& one : named_) {
      if (!one.name.starts_with(fmt::format("{}.", part))) continue;
      const std::string own = one.name.substr(part.size() + 1);
      const Named* const plain = find(own);
      if (one.option->count() > 0 || plain == nullptr || !is_in(plain->parts, part))
        text = text.naming(own, one.name);
    }
    return text;
  }

 private:
  struct Named {
    const CLI::Option* option;
    std::string name;
    std::vector<std::string_view> parts;
  };
  const Named* find(const std::string& name) const {
    const auto found = std::ranges::find_if(named_, [&](const Named& one) { return one.name == name; });
    return found == named_.end() ? nullptr : &*found;
  }

  std::vector<Named> named_;
};

/// Beyond this prompt length, what needs the attention of every prompt row is left to `evict`.
constexpr Index kMostRows = 8192;
/// Beyond this one the exact search, which takes half a second a head there and four times as long at twice
/// the length.
constexpr Index kLongestSearch = 4096;

/// evict's options, and what else is of interest beside them.
EvictionOptions default_eviction() {
  EvictionOptions eviction;
  eviction.quick = {kMostRows, kLongestSearch};
  eviction.probe_keys = true;
  for (const char* base :
       {"streaming", "keydiff", "expected_attention", "oracle", "oracle_exact", "greedy_exact"})
    eviction.policies.emplace_back(parse_policy(base, {}));
  return eviction;
}

struct AnalyzeOptions {
  CommonOptions common;
  TokenStageOptions tokens;
  EvictionOptions evict = default_eviction();
  BudgetOptions budget;
  ChannelOptions channels;
};

/// An analysis that one pass over the dump can feed: a command of its own, and a name for --only.
struct StageEntry {
  const char* name;
  const char *description, *examples;  ///< of the command
  BoundOptions (*options)(AnalyzeOptions& options);
  std::unique_ptr<Stage> (*make)(const Dump& dump, const AnalyzeOptions& options, const Compute& compute);
  /// Why a dump cannot have it, as one clause; nothing where it can, null where every dump can. Asked for by
  /// name, or given options of its own, it is made all the same, and says so itself.
  std::optional<std::string> (*why_not)(const Dump& dump, const AnalyzeOptions& options);
};

std::optional<std::string> why_no_channels_of(const Dump& dump, const AnalyzeOptions& options) {
  const auto why_not = why_no_channels(dump, options.channels);
  return why_not ? std::optional(why_not->dashed()) : std::nullopt;
}

std::optional<std::string> why_no_budget(const Dump& dump, const AnalyzeOptions& options) {
  const DumpShape& shape = dump.shape();
  if (future_rows(shape.l, shape.T, shape.first_query()).count() == 0)
    return "a head's loss is what the decoding steps miss, and the dump has none";
  const auto& orders = options.budget.orders;
  const bool by_snapkv = std::ranges::any_of(
      orders, [](const BudgetOrder& order) { return order.name == name_of(EvictionBase::snapkv); });
  if (by_snapkv && window_rows(shape.l, shape.first_query(), 1).count() == 0)
    return "its order snapkv ranks by queries of the prompt, and the dump has none";
  return std::nullopt;
}

using Made = std::unique_ptr<Stage>;
constexpr StageEntry kStages[] = {
    {"tokens",
     "Computes for every token of every KV head what evicting it costs (exact single-token "
     "errors,\noracles), what each score says it costs, and how well the scores follow.",
     "kvreplay tokens data/samples/pystdlib-lm --out results/pystdlib\n"
     "kvreplay tokens DUMP --out DIR --window 8,32,5%,all --metrics attn,joint,oracle_next --reserve 0,20",
     [](AnalyzeOptions& options) { return bound(options.tokens); },
     [](const Dump& dump, const AnalyzeOptions& options, const Compute& compute) -> Made {
       return std::make_unique<TokenStage>(dump, options.tokens, compute);
     },
     nullptr},
    {"evict",
     "Evicts prompt tokens by each policy at each budget, and measures the exact error of each head's\n"
     "output: with all evictions at once, not as a sum of single ones.",
     "kvreplay evict data/samples/pystdlib-lm --out results/evict --policy h2o,snapkv+joint,greedy_exact\n"
     "kvreplay evict DUMP --out DIR --policy snapkv --diff paper,official,kvpress --budget 128,512\n"
     "kvreplay evict DUMP --out DIR --phase decode --budget 1024 --sinks 4 --recent 256\n"
     "kvreplay evict DUMP --out DIR --policy none,snapkv --channels iap:0.5 --bits 4\n"
     "kvreplay evict DUMP --out DIR --policy none --bits k16v4,k4v16,q4_0 --rotate none,hadamard\n"
     "kvreplay evict DUMP --out DIR --score mine=mine.npy --policy snapkv,snapkv+mine,score:mine\n"
     "kvreplay evict DUMP --out DIR --policy 'snapkv,snapkv[window=64,pool=7]'",
     [](AnalyzeOptions& options) { return bound(options.evict); },
     [](const Dump& dump, const AnalyzeOptions& options, const Compute& compute) -> Made {
       return std::make_unique<EvictStage>(dump, options.evict, compute);
     },
     nullptr},
    {"budget",
     "Shares one memory budget between all KV heads of all layers, by several methods, and measures what\n"
     "each loses: by the sum that the methods minimise, and exactly.",
     "kvreplay budget data/samples/pystdlib-lm --out results/budget\n"
     "kvreplay budget DUMP --out DIR --order snapkv,value --sigma 0.5,0.8,0.9 --method uniform,lu,optimal\n"
     "kvreplay budget DUMP --out DIR --profile one/curves/{order}~lu.npy,two/curves/{order}~lu.npy\n"
     "kvreplay budget DUMP DUMP DUMP --out DIR    # each takes the profile of the other two, too",
     [](AnalyzeOptions& options) { return bound(options.budget); },
     [](const Dump& dump, const AnalyzeOptions& options, const Compute& compute) -> Made {
       return std::make_unique<BudgetStage>(dump, options.budget, options.common.chosen_layers(dump),
                                            compute);
     },
     why_no_budget},
    {"channels",
     "Shows how the key channels of every KV head interact, which channels every method prunes, and "
     "measures\n"
     "exactly what that does to the logits and to the attention output, now and in the decoding steps.",
     "kvreplay channels data/samples/pystdlib-lm --out results/channels\n"
     "kvreplay channels DUMP --out DIR --method think,iap,convex,rope_pairs --ratio 0.5 --png\n"
     "kvreplay channels DUMP --out DIR --method iap,exchange+think,output --protect 5:10 --recent 128",
     [](AnalyzeOptions& options) { return bound(options.channels); },
     [](const Dump& dump, const AnalyzeOptions& options, const Compute& compute) -> Made {
       return std::make_unique<ChannelStage>(dump, options.channels, compute);
     },
     why_no_channels_of}};

constexpr OptionFacts kOnly{"only", "LIST", "Narrow it to some of: ", "all"};

constexpr std::string_view kOfWindow[] = {"tokens", "evict", "channels"},
                           kOfSemantics[] = {"evict", "budget", "channels"},
                           kOfBudgets[] = {"evict", "budget"}, kOfScores[] = {"tokens", "evict", "budget"},
                           kOfHeads[] = {"tokens", "evict"}, kOfChannels[] = {"channels"};
const SharedOption kShared[] = {
    {{"window", "N", "The last N queries of the prompt: rows of scores and errors, and what ranks channels",
      "each part's own", 1},
     kOfWindow},
    {{"semantics", "NAME", "Variant of a method: paper, official, kvpress or kvpress-0.5.5", "paper"},
     kOfSemantics},
    {{"sigma", "LIST", "Budgets as compression ratios, 0.9 keeps a tenth", "each part's own"}, kOfBudgets},
    {{"keep", "LIST", "Budgets as what stays of the prompt: 20% or 0.2, or 410 tokens of a head"},
     kOfBudgets},
    {{"budget", "LIST", "Budgets as tokens kept of a head; 20% is a share"}, kOfBudgets},
    {{"sinks", "N", "Pin the first N positions", "each part's own"}, kOfBudgets},
    {{"recent", "N", "Pin the last N positions", "each part's own"}, kOfBudgets},
    {channel_option::protect, kOfChannels},
    {{"score", "name=PATH",
      "Your score, .npy [layers, kv_heads, l]: compared with every exact error, a policy score:name, an "
      "order of budgets; {dump} in PATH is the dump's name, and a folder holds one array a dump, <dump>.npy"},
     kOfScores},
    {{"per-query-head", "", "Token arrays, and caches, for every query head, not one for its group"},
     kOfHeads}};

/// A score of the user's is looked at by every part that takes one, without being named twice.
void use_scores(AnalyzeOptions& options) {
  const std::vector<std::string> names = names_of(options.evict.scores),
                                 orders = names_of(options.budget.scores);
  for (const std::string& name : names)
    place_in(options.evict.policies,
             PolicyChoice(parse_policy(policy_name(name_of(EvictionBase::score), name), names)));
  for (const std::string& name : orders) place_in(options.budget.orders, parse_order(name, orders));
}

/// Runs what make_stages() makes on the dumps that were given.
int run_made(const char* command, const Arguments& arguments, const AnalyzeOptions& options,
             const MakeStages& make_stages) {
  for (const auto& scores : {options.tokens.scores, options.evict.scores, options.budget.scores})
    require_one_a_dump(evict_option::score, scores, options.common.dumps.size());
  require_one_a_dump(evict_option::kept, options.evict.kept, options.common.dumps.size());
  require_apart(options.common.out, options.budget.profiles);  // a run writes files of these names
  const auto by_others = [&](const Dump& dump, const Compute& compute, const std::vector<std::string>& orders,
                             const std::vector<std::string>& files) {
    return std::make_unique<BudgetStage>(dump, by_profile(options.budget, orders, files),
                                         options.common.chosen_layers(dump), compute);
  };
  return run_on_dumps({command, arguments}, options.common, make_stages,
                      {options.budget.leave_one_out, by_others});
}

/// The command of one analysis.
int run_alone(std::string_view name, const Arguments& arguments) {
  const StageEntry& entry = *std::find_if(std::begin(kStages), std::end(kStages),
                                          [&](const StageEntry& one) { return one.name == name; });
  const auto app = make_app(entry.name, entry.description, entry.examples);
  AnalyzeOptions options;
  options.evict = {};
  options.common.add_dumps(*app);
  options.common.add_results(*app);
  app->add(entry.options(options));
  options.common.add_compute(*app);
  options.common.add_output(*app);
  if (parse(*app, arguments)) return 0;
  return run_made(entry.name, arguments, options, [&](const Dump& dump, const Compute& compute) {
    ChosenStages chosen;
    chosen.stages.push_back(entry.make(dump, options, compute));
    return chosen;
  });
}

}  // namespace

int run_tokens(const Arguments& arguments) { return run_alone("tokens", arguments); }
int run_evict(const Arguments& arguments) { return run_alone("evict", arguments); }
int run_budget(const Arguments& arguments) { return run_alone("budget", arguments); }
int run_channels(const Arguments& arguments) { return run_alone("channels", arguments); }

int run_analyze(const Arguments& arguments) {
  const auto app = make_app("analyze",
                            "Runs every analysis with one pass over the dump. An option of one part is "
                            "--PART.NAME,\nor in a config file NAME in a section [PART].",
                            "kvreplay analyze data/samples/pystdlib-lm --out results/pystdlib\n"
                            "kvreplay analyze DUMP --out DIR --only tokens,evict --layers 0,3-5\n"
                            "kvreplay analyze DUMP --out DIR --sigma 0.8 --budget.method uniform,lu\n"
                            "kvreplay analyze DUMP... --out DIR --score mine=scores/{dump}.npy");
  AnalyzeOptions options;
  std::vector<std::string> only;
  options.common.add_dumps(*app);
  options.common.add_results(*app);
  std::vector<std::string> names;
  for (const StageEntry& entry : kStages) names.emplace_back(entry.name);
  app->add({bind_option(kOnly, only).saying(fmt::format("{}", fmt::join(names, ", ")))});
  options.common.add_compute(*app);
  options.common.add_output(*app);
  std::vector<OptionsOfPart> all;
  for (const StageEntry& entry : kStages) all.push_back({entry.name, entry.options(options)});
  const PartOptions parts(*app, all, kShared);
  app->option(evict_option::policy)
      ->option_text(
          "LIST [h2o, tova and snapkv as in evict, and streaming, keydiff, expected_attention, oracle, "
          "oracle_exact, "
          "greedy_exact]");
  if (parse(*app, arguments)) return 0;
  for (std::string& name : only)
    if (name = in_known_spelling(name, names); !is_in(names, name))
      throw OptionError(kOnly, fmt::format("some of {}", fmt::join(names, ", ")), fmt::format("'{}'", name));
  parts.require_used(only.empty() ? names : only);
  // Policies that were asked for by name are run or refused.
  if (options.evict.policies != default_eviction().policies) options.evict.quick.reset();
  options.evict.probe_keys = options.evict.quick.has_value();
  use_scores(options);
  return run_made("analyze", arguments, options, [&](const Dump& dump, const Compute& compute) {
    ChosenStages chosen;
    for (const StageEntry& entry : kStages) {
      const bool named = is_in(only, entry.name);
      if (!only.empty() && !named) continue;
      const bool asked = named || parts.mention(entry.name);
      const auto why_not = entry.why_not != nullptr ? entry.why_not(dump, options) : std::nullopt;
      if (why_not && !asked) {
        chosen.left_out.push_back({entry.name, *why_not});
        continue;
      }
      try {
        chosen.stages.push_back(entry.make(dump, options, compute));
      } catch (const OptionError& error) {
        throw OptionError(parts.called_here(error.line(), entry.name));
      }
    }
    return chosen;
  });
}

}  // namespace kvreplay
