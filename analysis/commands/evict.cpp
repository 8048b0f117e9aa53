#include "analysis/commands/over_dumps.hpp"
#include "analysis/eviction/evict_stage.hpp"

#include <fmt/format.h>

#include <utility>

namespace kvreplay {

int run_evict(const Arguments& arguments) {
  const auto app = make_app(
      "evict",
      "Finds what every policy keeps of every KV head's prompt at every budget, and measures exactly what\n"
      "that does to the head's outputs: with all evictions at once, not as a sum of single ones.",
      "kvreplay evict data/samples/pystdlib-lm --out results/evict --policy h2o,snapkv+joint,greedy_exact\n"
      "kvreplay evict DUMP --out DIR --policy snapkv --diff paper,official,kvpress --budget 128,512\n"
      "kvreplay evict DUMP --out DIR --phase decode --budget 1024 --sinks 4 --recent 256\n"
      "kvreplay evict DUMP --out DIR --policy none,snapkv --channels iap:0.5 --bits 4\n"
      "kvreplay evict DUMP --out DIR --score mine=mine.npy --policy snapkv,snapkv+mine");
  CommonOptions options;
  EvictionOptions eviction_options;
  options.add_dumps(*app);
  options.add_results(*app);
  app->add(bound(eviction_options));
  options.add_compute(*app);
  options.add_output(*app);
  if (parse(*app, arguments)) return 0;
  for (const auto& [option, given] : {std::pair(evict_option::score, !eviction_options.scores.empty()),
                                      std::pair(evict_option::kept, !eviction_options.kept.empty())})
    if (given && options.dumps.size() > 1)
      throw OptionError(option, "one dump, which its array is of", fmt::format("{}", options.dumps.size()));
  return run_on_dumps({"evict", arguments}, options, [&](const Dump& dump, const Compute& compute) {
    ChosenStages chosen;
    chosen.stages.push_back(std::make_unique<EvictStage>(dump, eviction_options, compute));
    return chosen;
  });
}

}  // namespace kvreplay
