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
  app->add(bound(channel_options));
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
