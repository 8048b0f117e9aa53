#include "analysis/commands/over_dumps.hpp"
#include "analysis/tokens/token_stage.hpp"

namespace kvreplay {

int run_tokens(const Arguments& arguments) {
  const auto app =
      make_app("tokens",
               "Computes for every token of every KV head what evicting it costs (exact single-token "
               "errors,\noracles), what each score says it costs, and how well the scores follow.",
               "kvreplay tokens data/samples/pystdlib-lm --out results/pystdlib\n"
               "kvreplay tokens DUMP --out DIR --window 64 --metrics attn,key,exact_key --reserve 0,32");
  CommonOptions options;
  TokenStageOptions token_options;
  options.add_dumps(*app);
  options.add_results(*app);
  app->add(bound(token_options));
  options.add_compute(*app);
  options.add_output(*app);
  if (parse(*app, arguments)) return 0;
  return run_on_dumps({"tokens", arguments}, options, [&](const Dump& dump, const Compute& compute) {
    ChosenStages chosen;
    chosen.stages.push_back(std::make_unique<TokenStage>(dump, token_options, compute));
    return chosen;
  });
}

}  // namespace kvreplay
