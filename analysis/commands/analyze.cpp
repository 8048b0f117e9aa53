#include "analysis/budgets/budget_stage.hpp"
#include "analysis/channels/channel_stage.hpp"
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

struct AnalyzeOptions {
  CommonOptions common;
  TokenStageOptions tokens;
};

/// The analyses that one pass over the dump can feed, by their names for --only.
struct StageEntry {
  const char* name;
  std::unique_ptr<Stage> (*make)(const Dump& dump, const AnalyzeOptions& options, const Compute& compute);
  /// Why a dump cannot have it, as one clause; nothing where it can, null where every dump can. Asked for by
  /// name, it is made all the same, and says so itself.
  std::optional<std::string> (*why_not)(const Dump& dump);
};

std::unique_ptr<Stage> make_evict(const Dump& dump, const AnalyzeOptions&, const Compute& compute) {
  EvictionOptions eviction;
  eviction.quick = {kMostRows, kLongestSearch};
  for (const char* base :
       {"streaming", "keydiff", "expected_attention", "oracle", "oracle_exact", "greedy_exact"})
    eviction.policies.emplace_back(parse_policy(base, {}));
  return std::make_unique<EvictStage>(dump, eviction, compute);
}

std::optional<std::string> why_no_channels(const Dump& dump) {
  const auto why_not = why_no_channels(dump, ChannelOptions{});
  return why_not ? std::optional(why_not->dashed()) : std::nullopt;
}

std::optional<std::string> why_no_budget(const Dump& dump) {
  const DumpShape& shape = dump.shape();
  if (future_rows(shape.l, shape.T, shape.first_query()).count() == 0)
    return "a head's loss is what the decoding steps miss, and the dump has none";
  if (window_rows(shape.l, shape.first_query(), 1).count() == 0)
    return "its order snapkv ranks by queries of the prompt, and the dump has none";
  return std::nullopt;
}

using Made = std::unique_ptr<Stage>;
constexpr StageEntry kStages[] = {
    {"tokens",
     [](const Dump& dump, const AnalyzeOptions& options, const Compute& compute) -> Made {
       return std::make_unique<TokenStage>(dump, options.tokens, compute);
     },
     nullptr},
    {"evict", make_evict, nullptr},
    {"budget",
     [](const Dump& dump, const AnalyzeOptions& options, const Compute& compute) -> Made {
       return std::make_unique<BudgetStage>(dump, BudgetOptions{}, options.common.chosen_layers(dump),
                                            compute);
     },
     why_no_budget},
    {"channels",
     [](const Dump& dump, const AnalyzeOptions&, const Compute& compute) -> Made {
       return std::make_unique<ChannelStage>(dump, ChannelOptions{}, compute);
     },
     why_no_channels}};

std::vector<std::string> stage_names() {
  std::vector<std::string> names;
  for (const StageEntry& entry : kStages) names.emplace_back(entry.name);
  return names;
}

constexpr OptionFacts kOnly{"only", "LIST", "Narrow it to some of: ", "all"};

}  // namespace

int run_analyze(const Arguments& arguments) {
  const auto app = make_app("analyze", "Runs every analysis with one pass over the dump.",
                            "kvreplay analyze data/samples/pystdlib-lm --out results/pystdlib\n"
                            "kvreplay analyze DUMP --out DIR --only tokens,evict --layers 0,3-5");
  AnalyzeOptions options;
  std::vector<std::string> only;
  options.common.add_dumps(*app);
  options.common.add_results(*app);
  app->add({bind_option(kOnly, only).saying(fmt::format("{}", fmt::join(stage_names(), ", ")))});
  app->add(bound(options.tokens));
  options.common.add_compute(*app);
  options.common.add_output(*app);
  if (parse(*app, arguments)) return 0;
  const std::vector<std::string> names = stage_names();
  for (const std::string& name : only)
    if (std::find(names.begin(), names.end(), name) == names.end())
      throw OptionError(kOnly, fmt::format("some of {}", fmt::join(names, ", ")), fmt::format("'{}'", name));
  return run_on_dumps({"analyze", arguments}, options.common, [&](const Dump& dump, const Compute& compute) {
    ChosenStages chosen;
    for (const StageEntry& entry : kStages) {
      const bool asked = std::find(only.begin(), only.end(), entry.name) != only.end();
      if (!only.empty() && !asked) continue;
      const auto why_not = entry.why_not != nullptr ? entry.why_not(dump) : std::nullopt;
      if (why_not && !asked)
        chosen.left_out.push_back({entry.name, *why_not});
      else
        chosen.stages.push_back(entry.make(dump, options, compute));
    }
    return chosen;
  });
}

}  // namespace kvreplay
