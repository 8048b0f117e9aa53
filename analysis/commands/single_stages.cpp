#include "analysis/budgets/budget_stage.hpp"
#include "analysis/channels/channel_stage.hpp"
#include "analysis/commands/run_command.hpp"
#include "analysis/eviction/evict_stage.hpp"
#include "analysis/tokens/token_stage.hpp"

#include <fmt/format.h>

#include <type_traits>
#include <utility>

// The commands that run one analysis: tokens, evict, budget, channels.

namespace kvreplay {
namespace {

/// `name`, `description` and `examples` are those of make_app(); make(dump, options, common, compute) is the
/// stage.
template <class Options, class Make>
int run_single_stage(const char* name, const char* description, const char* examples,
                     const Arguments& arguments, const Make& make) {
  const auto app = make_app(name, description, examples);
  CommonOptions common;
  Options options;
  common.add_dumps(*app);
  common.add_results(*app);
  app->add(bound(options));
  common.add_compute(*app);
  common.add_output(*app);
  if (parse(*app, arguments)) return 0;
  if constexpr (requires { options.scores; })
    require_one_a_dump(evict_option::score, options.scores, common.dumps.size());
  if constexpr (requires { options.kept; })
    require_one_a_dump(evict_option::kept, options.kept, common.dumps.size());
  ProfilesOfOthers others;
  if constexpr (std::is_same_v<Options, BudgetOptions>)
    others = {options.leave_one_out,
              [&](const Dump& dump, const Compute& compute, const auto& orders, const auto& files) {
                return make(dump, by_profile(options, orders, files), common, compute);
              }};
  return run_on_dumps(
      {name, arguments}, common,
      [&](const Dump& dump, const Compute& compute) {
        ChosenStages chosen;
        chosen.stages.push_back(make(dump, options, common, compute));
        return chosen;
      },
      others);
}

template <class StageType>
constexpr auto kMake =
    [](const Dump& dump, const auto& options, const CommonOptions&, const Compute& compute) {
      return std::make_unique<StageType>(dump, options, compute);
    };

}  // namespace

int run_tokens(const Arguments& arguments) {
  return run_single_stage<TokenStageOptions>(
      "tokens",
      "Computes for every token of every KV head what evicting it costs (exact single-token "
      "errors,\noracles), what each score says it costs, and how well the scores follow.",
      "kvreplay tokens data/samples/pystdlib-lm --out results/pystdlib\n"
      "kvreplay tokens DUMP --out DIR --window 8,32,5%,all --metrics attn,joint,oracle_next --reserve 0,20",
      arguments, kMake<TokenStage>);
}

int run_evict(const Arguments& arguments) {
  return run_single_stage<EvictionOptions>(
      "evict",
      "Finds what every policy keeps of every KV head's prompt at every budget, and measures exactly what\n"
      "that does to the head's outputs: with all evictions at once, not as a sum of single ones.",
      "kvreplay evict data/samples/pystdlib-lm --out results/evict --policy h2o,snapkv+joint,greedy_exact\n"
      "kvreplay evict DUMP --out DIR --policy snapkv --diff paper,official,kvpress --budget 128,512\n"
      "kvreplay evict DUMP --out DIR --phase decode --budget 1024 --sinks 4 --recent 256\n"
      "kvreplay evict DUMP --out DIR --policy none,snapkv --channels iap:0.5 --bits 4\n"
      "kvreplay evict DUMP --out DIR --score mine=mine.npy --policy snapkv,snapkv+mine,score:mine\n"
      "kvreplay evict DUMP --out DIR --policy 'snapkv,snapkv[window=64,pool=7]'",
      arguments, kMake<EvictStage>);
}

int run_budget(const Arguments& arguments) {
  return run_single_stage<BudgetOptions>(
      "budget",
      "Shares one memory budget between all KV heads of all layers, by several methods, and measures what\n"
      "each loses: by the sum that the methods minimise, and exactly.",
      "kvreplay budget data/samples/pystdlib-lm --out results/budget\n"
      "kvreplay budget DUMP --out DIR --order snapkv,value --sigma 0.5,0.8,0.9 --method uniform,lu,optimal\n"
      "kvreplay budget DUMP --out DIR --profile one/curves/{order}~lu.npy,two/curves/{order}~lu.npy\n"
      "kvreplay budget DUMP DUMP DUMP --out DIR    # each takes the profile of the other two, too",
      arguments,
      [](const Dump& dump, const BudgetOptions& options, const CommonOptions& common,
         const Compute& compute) {
        return std::make_unique<BudgetStage>(dump, options, common.chosen_layers(dump), compute);
      });
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
      arguments, kMake<ChannelStage>);
}

}  // namespace kvreplay
