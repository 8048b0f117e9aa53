#include "analysis/budgets/budget_stage.hpp"
#include "analysis/commands/over_dumps.hpp"

namespace kvreplay {

int run_budget(const Arguments& arguments) {
  const auto app = make_app(
      "budget",
      "Shares one memory budget between all KV heads of all layers, by several methods, and measures what\n"
      "each loses: by the sum that the methods minimise, and exactly.",
      "kvreplay budget data/samples/pystdlib-lm --out results/budget\n"
      "kvreplay budget DUMP --out DIR --order snapkv,value --sigma 0.5,0.8,0.9 --method uniform,lu,optimal\n"
      "kvreplay budget DUMP --out DIR --profile one/budget_curves.npy,two/budget_curves.npy");
  CommonOptions options;
  BudgetOptions budget_options;
  options.add_dumps(*app);
  options.add_results(*app);
  app->add(bound(budget_options));
  options.add_compute(*app);
  options.add_output(*app);
  if (parse(*app, arguments)) return 0;
  return run_on_dumps({"budget", arguments}, options, [&](const Dump& dump, const Compute& compute) {
    ChosenStages chosen;
    chosen.stages.push_back(
        std::make_unique<BudgetStage>(dump, budget_options, options.chosen_layers(dump), compute));
    return chosen;
  });
}

}  // namespace kvreplay
