#include "analysis/budgets/budget_stage.hpp"
#include "analysis/channels/channel_stage.hpp"
#include "analysis/commands/run_command.hpp"
#include "analysis/eviction/evict_stage.hpp"
#include "analysis/tokens/token_stage.hpp"

#include <fmt/format.h>

#include <utility>

// The commands that run one analysis: tokens, evict, budget, channels.

namespace kvreplay {
namespace {

/// `name`, `description` and `examples` are those of make_app(); make(dump, options, common, compute) is the
/// stage, and check(options, common) throws where the two do not go together.
template <class Options, class Make, class Check>
int run_single_stage(const char* name, const char* description, const char* examples,
                     const Arguments& arguments, const Make& make, const Check& check) {
  const auto app = make_app(name, description, examples);
  CommonOptions common;
  Options options;
  common.add_dumps(*app);
  common.add_results(*app);
  app->add(bound(options));
  common.add_compute(*app);
  common.add_output(*app);
  if (parse(*app, arguments)) return 0;
  check(options, common);
  return run_on_dumps({name, arguments}, common, [&](const Dump& dump, const Compute& compute) {
    ChosenStages chosen;
    chosen.stages.push_back(make(dump, options, common, compute));
    return chosen;
  });
}

template <class StageType>
constexpr auto kMake =
    [](const Dump& dump, const auto& options, const CommonOptions&, const Compute& compute) {
      return std::make_unique<StageType>(dump, options, compute);
    };
constexpr auto kNoCheck = [](const auto&, const CommonOptions&) {};

}  // namespace

int run_tokens(const Arguments& arguments) {
  return run_single_stage<TokenStageOptions>(
      "tokens",
      "Computes for every token of every KV head what evicting it costs (exact single-token "
      "errors,\noracles), what each score says it costs, and how well the scores follow.",
      "kvreplay tokens data/samples/pystdlib-lm --out results/pystdlib\n"
      "kvreplay tokens DUMP --out DIR --window 64 --metrics attn,key,exact_key --reserve 0,32",
      arguments, kMake<TokenStage>, kNoCheck);
}

int run_evict(const Arguments& arguments) {
  const auto one_dump = [](const EvictionOptions& options, const CommonOptions& common) {
    for (const auto& [option, given] : {std::pair(evict_option::score, !options.scores.empty()),
                                        std::pair(evict_option::kept, !options.kept.empty())})
      if (given && common.dumps.size() > 1)
        throw OptionError(option, "one dump, which its array is of", fmt::format("{}", common.dumps.size()));
  };
  return run_single_stage<EvictionOptions>(
      "evict",
      "Finds what every policy keeps of every KV head's prompt at every budget, and measures exactly what\n"
      "that does to the head's outputs: with all evictions at once, not as a sum of single ones.",
      "kvreplay evict data/samples/pystdlib-lm --out results/evict --policy h2o,snapkv+joint,greedy_exact\n"
      "kvreplay evict DUMP --out DIR --policy snapkv --diff paper,official,kvpress --budget 128,512\n"
      "kvreplay evict DUMP --out DIR --phase decode --budget 1024 --sinks 4 --recent 256\n"
      "kvreplay evict DUMP --out DIR --policy none,snapkv --channels iap:0.5 --bits 4\n"
      "kvreplay evict DUMP --out DIR --score mine=mine.npy --policy snapkv,snapkv+mine",
      arguments, kMake<EvictStage>, one_dump);
}

int run_budget(const Arguments& arguments) {
  return run_single_stage<BudgetOptions>(
      "budget",
      "Shares one memory budget between all KV heads of all layers, by several methods, and measures what\n"
      "each loses: by the sum that the methods minimise, and exactly.",
      "kvreplay budget data/samples/pystdlib-lm --out results/budget\n"
      "kvreplay budget DUMP --out DIR --order snapkv,value --sigma 0.5,0.8,0.9 --method uniform,lu,optimal\n"
      "kvreplay budget DUMP --out DIR --profile one/budget_curves.npy,two/budget_curves.npy",
      arguments,
      [](const Dump& dump, const BudgetOptions& options, const CommonOptions& common,
         const Compute& compute) {
        return std::make_unique<BudgetStage>(dump, options, common.chosen_layers(dump), compute);
      },
      kNoCheck);
}

int run_channels(const Arguments& arguments) {
  return run_single_stage<ChannelOptions>(
      "channels",
      "Shows how the key channels of every KV head interact, which channels every method prunes, and "
      "measures\n"
      "exactly what that does to the logits and to the attention output, now and in the decoding steps.",
      "kvreplay channels data/samples/pystdlib-lm --out results/channels\n"
      "kvreplay channels DUMP --out DIR --method think,iap,optimal,rope_pairs --ratio 0.5 --png\n"
      "kvreplay channels DUMP --out DIR --method iap,exchange+think,output --protect 5:10 --recent 128",
      arguments, kMake<ChannelStage>, kNoCheck);
}

}  // namespace kvreplay
