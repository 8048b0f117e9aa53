#include "analysis/commands/budget_arguments.hpp"

#include <fmt/format.h>

namespace kvreplay {
void add_budget_options(CLI::App& app, BudgetOptions& options) {
  list(app.add_option("--order", options.orders,
                      in_lines(fmt::format("What ranks a head's tokens: {}, or a score of yours",
                                           fmt::join(order_names(), ", ")))),
       "LIST [snapkv,keydiff]");
  list(
      app.add_option("--method", options.methods, fmt::format("{}", fmt::join(named_budget_methods(), ", "))),
      "LIST [all of these]");
  list(app.add_option("--sigma", options.sigmas, "Compression ratios, 0.8 keeps a fifth")
           ->check(real_number()),
       "LIST [0.5,0.8]");
  app.add_option(
         "--semantics", options.semantics,
         fmt::format("Whose pyramid, ada and reading of a profile: {}", fmt::join(kSemantics.names(), ", ")))
      ->option_text("NAME [paper]");
  app.add_option("--normalise", options.normalise, "layer: divide the importance by its layer's sum first")
      ->option_text("none|layer [none]");
  app.add_option("--floor", options.floor, "Share of the prompt that every head keeps")
      ->check(real_number())
      ->option_text("X [0]");
  app.add_option("--sinks", options.sinks, "Put the first N positions before all others in every order")
      ->check(whole_number(0))
      ->option_text("N [0]");
  app.add_option("--recent", options.recent, "Put the last N positions before all others in every order")
      ->check(whole_number(0))
      ->option_text("N [0]");
  list(app.add_option("--profile", options.profiles,
                      "Budget profiles (budget_curves.npy of other runs), averaged, as one more method"),
       "FILES");
  list(app.add_option("--score", options.scores, "Your score, .npy [layers, kv_heads, l], used as an order"),
       "name=FILE");
}

}  // namespace kvreplay
