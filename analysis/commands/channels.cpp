#include "analysis/channels/channel_stage.hpp"
#include "analysis/commands/over_dumps.hpp"

#include <fmt/format.h>

namespace kvreplay {

int run_channels(const Arguments& arguments) {
  const auto app = make_app(
      "channels",
      "Shows how the key channels of every KV head interact, which channels every method prunes, and "
      "measures\n"
      "exactly what that does to the logits and to the attention output, now and in the decoding steps.",
      "kvreplay channels data/samples/pystdlib-lm --out results/channels\n"
      "kvreplay channels DUMP --out DIR --method think,iap,optimal,rope_pairs --ratio 0.5 --png\n"
      "kvreplay channels DUMP --out DIR --method iap,exchange+think,output --protect 5:10 --recent 128");
  CommonOptions options;
  ChannelOptions channel_options;
  options.add_dumps(*app);
  options.add_results(*app);
  list(app->add_option("--method", channel_options.methods,
                       in_lines(fmt::format("{}; exchange+METHOD: from another than iap",
                                            fmt::join(kChannelMethods.names(), ", ")))),
       "LIST [magnitude,think,iap,exchange,output]");
  list(app->add_option("--ratio", channel_options.ratios, "Shares of the channels to prune")
           ->check(real_number()),
       "LIST [0.4,0.5,0.6,0.7]");
  app->add_option(
         "--semantics", channel_options.semantics,
         "Whose setting: paper; official (ThinK's code: a selection for every query head, scores from\n"
         "all keys); kvpress (every key loses channels)")
      ->option_text("NAME [paper]");
  app->add_option("--recent", channel_options.recent, "The last N keys of the prompt stay whole")
      ->check(whole_number(0))
      ->option_text("N [32; kvpress 0]");
  app->add_option("--window", channel_options.window, "Rank by the last N queries of the prompt")
      ->check(whole_number(1))
      ->option_text("N [32]");
  app->add_option("--protect", channel_options.protect,
                  "Never prune channels of outstanding key norm: between A and B percent of them")
      ->option_text("A:B [off]");
  app->add_flag("--png", channel_options.png, "Heatmaps of every head as pictures too");
  options.add_compute(*app);
  options.add_output(*app);
  if (parse(*app, arguments)) return 0;
  return run_on_dumps({"channels", arguments}, options, [&](const Dump& dump, const Compute& compute) {
    ChosenStages chosen;
    chosen.stages.push_back(std::make_unique<ChannelStage>(dump, channel_options, compute));
    return chosen;
  });
}

}  // namespace kvreplay
