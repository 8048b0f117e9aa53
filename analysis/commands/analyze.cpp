#include "analysis/budgets/budget_stage.hpp"
#include "analysis/channels/channel_stage.hpp"
#include "analysis/commands/part_options.hpp"
#include "analysis/commands/run_command.hpp"
#include "analysis/eviction/evict_stage.hpp"
#include "analysis/tokens/token_stage.hpp"
#include "data/error.hpp"

#include <fmt/format.h>

#include <algorithm>

namespace kvreplay {
namespace {

/// Beyond this prompt length, what needs the attention of every prompt row is left to `evict`.
constexpr Index kMostRows = 8192;
/// Beyond this one the exact search, which takes half a second a head there and four times as long at twice
/// the length.
constexpr Index kLongestSearch = 4096;

/// Those of evict, and what else is of interest beside them.
EvictionOptions default_eviction() {
  EvictionOptions eviction;
  eviction.quick = {kMostRows, kLongestSearch};
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

/// The analyses that one pass over the dump can feed, by their names for --only.
struct StageEntry {
  const char* name;
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
  const bool by_snapkv = std::any_of(orders.begin(), orders.end(), [](const BudgetOrder& order) {
    return order.name == name_of(EvictionBase::snapkv);
  });
  if (by_snapkv && window_rows(shape.l, shape.first_query(), 1).count() == 0)
    return "its order snapkv ranks by queries of the prompt, and the dump has none";
  return std::nullopt;
}

using Made = std::unique_ptr<Stage>;
constexpr StageEntry kStages[] = {
    {"tokens", [](AnalyzeOptions& options) { return bound(options.tokens); },
     [](const Dump& dump, const AnalyzeOptions& options, const Compute& compute) -> Made {
       return std::make_unique<TokenStage>(dump, options.tokens, compute);
     },
     nullptr},
    {"evict", [](AnalyzeOptions& options) { return bound(options.evict); },
     [](const Dump& dump, const AnalyzeOptions& options, const Compute& compute) -> Made {
       return std::make_unique<EvictStage>(dump, options.evict, compute);
     },
     nullptr},
    {"budget", [](AnalyzeOptions& options) { return bound(options.budget); },
     [](const Dump& dump, const AnalyzeOptions& options, const Compute& compute) -> Made {
       return std::make_unique<BudgetStage>(dump, options.budget, options.common.chosen_layers(dump),
                                            compute);
     },
     why_no_budget},
    {"channels", [](AnalyzeOptions& options) { return bound(options.channels); },
     [](const Dump& dump, const AnalyzeOptions& options, const Compute& compute) -> Made {
       return std::make_unique<ChannelStage>(dump, options.channels, compute);
     },
     why_no_channels_of}};

std::vector<std::string> stage_names() {
  std::vector<std::string> names;
  for (const StageEntry& entry : kStages) names.emplace_back(entry.name);
  return names;
}

constexpr OptionFacts kOnly{"only", "LIST", "Narrow it to some of: ", "all"};

constexpr std::string_view kOfWindow[] = {"tokens", "evict", "channels"},
                           kOfSemantics[] = {"evict", "budget", "channels"},
                           kOfBudgets[] = {"evict", "budget"}, kOfScores[] = {"tokens", "evict", "budget"},
                           kOfHeads[] = {"tokens", "evict"}, kOfChannels[] = {"channels"};
const SharedOption kShared[] = {
    {{"window", "N", "The last N queries of the prompt: rows of scores and errors, and what ranks channels",
      "each part's own", 1},
     kOfWindow},
    {{"semantics", "NAME", "Whose reading of a method: paper, official or kvpress", "paper"}, kOfSemantics},
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
  const auto add = [](auto& list, auto item) {
    if (std::find(list.begin(), list.end(), item) == list.end()) list.push_back(std::move(item));
  };
  const std::vector<std::string> names = names_of(options.evict.scores),
                                 orders = names_of(options.budget.scores);
  for (const std::string& name : names)
    add(options.evict.policies,
        PolicyChoice(parse_policy(policy_name(name_of(EvictionBase::score), name), names)));
  for (const std::string& name : orders) add(options.budget.orders, parse_order(name, orders));
}

}  // namespace

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
  const std::vector<std::string> names = stage_names();
  app->add({bind_option(kOnly, only).saying(fmt::format("{}", fmt::join(names, ", ")))});
  options.common.add_compute(*app);
  options.common.add_output(*app);
  std::vector<OptionsOfPart> all;
  for (const StageEntry& entry : kStages) all.push_back({entry.name, entry.options(options)});
  const PartOptions parts(*app, all, kShared);
  app->option(evict_option::policy)
      ->option_text(
          "LIST [those of evict, and streaming, keydiff, expected_attention, oracle, oracle_exact, "
          "greedy_exact]");
  if (parse(*app, arguments)) return 0;
  for (const std::string& name : only)
    if (std::find(names.begin(), names.end(), name) == names.end())
      throw OptionError(kOnly, fmt::format("some of {}", fmt::join(names, ", ")), fmt::format("'{}'", name));
  parts.require_used(only.empty() ? names : only);
  // Policies that were asked for by name are run or refused.
  if (options.evict.policies != default_eviction().policies) options.evict.quick.reset();
  use_scores(options);
  for (const auto& scores : {options.tokens.scores, options.evict.scores, options.budget.scores})
    require_one_a_dump(evict_option::score, scores, options.common.dumps.size());
  require_one_a_dump(evict_option::kept, options.evict.kept, options.common.dumps.size());
  const auto make_stages = [&](const Dump& dump, const Compute& compute) {
    ChosenStages chosen;
    for (const StageEntry& entry : kStages) {
      const bool named = std::find(only.begin(), only.end(), entry.name) != only.end();
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
  };
  const auto by_others = [&](const Dump& dump, const Compute& compute, const std::vector<std::string>& orders,
                             const std::vector<std::string>& files) {
    return std::make_unique<BudgetStage>(dump, by_profile(options.budget, orders, files),
                                         options.common.chosen_layers(dump), compute);
  };
  return run_on_dumps({"analyze", arguments}, options.common, make_stages,
                      {options.budget.leave_one_out, by_others});
}

}  // namespace kvreplay
