#include "analysis/conform/conform.hpp"

#include "analysis/commands/commands.hpp"
#include "analysis/commands/under_way.hpp"
#include "data/console.hpp"

#include <fmt/format.h>

#include <cstdio>

namespace kvreplay {

int run_conform(const Arguments& arguments) {
  namespace conform_option = conform::conform_option;
  const auto app =
      make_app("conform",
               "Says whether what an implementation kept of a prompt's cache is what a policy keeps; if not, "
               "where it\ndeparts first, what that costs, and which reading of the policy explains it. Exits "
               "with 1 where it departs.",
               "kvreplay conform DUMP --kept kept.npy --as snapkv --keep 20%\n"
               "kvreplay conform DUMP --kept kept.npz --as 'snapkv~ada' --semantics kvpress --sigma 0.5\n"
               "kvreplay conform DUMP --kept 512.npy,4096.npy --as h2o --budget 512,4096");
  CommonOptions common;
  conform::ConformOptions options;
  common.add_dump(*app);
  app->add({bind_option(conform_option::kept, options.kept).naming_files(),
            bind_option(conform_option::as, options.as), bind_option(conform_option::cache, options.cache)});
  app->add(bound(options.stored));
  for (const BoundOption& budget :
       bound_budgets(options.budgets, "sigma", evict_option::sigma, evict_option::keep, evict_option::budget))
    app->add({budget});
  app->add({bind_option(evict_option::semantics, options.semantics),
            bind_option(conform_option::scores, options.scores_found),
            bind_option(conform_option::head_budgets, options.head_budgets),
            bind_option(conform_option::numbers, options.numbers),
            bind_option(conform_option::variants, options.variants),
            bind_option(evict_option::score, options.scores)});
  // In float64 on the processor: it judges.
  app->add(
      {bind_option(compute_option::threads, common.threads), bind_option(run_option::layers, common.layers)});
  common.add_output(*app);
  if (parse(*app, arguments)) return 0;

  const Dump dump = common.open();
  options.layers = common.chosen_layers(dump);
  Workers workers(static_cast<int>(common.threads));
  const InterruptGuard guard(workers, "interrupted; nothing was judged");
  conform::ConformResult result;
  {
    ProgressBar bar(!common.quiet);
    options.on_progress = [&](Index done, Index total) { bar.show(done, total); };
    result = conform::judge(dump, options, Compute(workers));
  }
  if (common.json) {
    print_json(json_of(result));
  } else if (!common.quiet) {
    say("{}", plain_text(result));
    for (const OptionText& note : result.notes) say("note: {}\n", note);
  }
  std::fflush(stdout);
  return result.ok() ? 0 : 1;
}

}  // namespace kvreplay
