#include "analysis/commands/eviction_arguments.hpp"

#include "analysis/commands/arguments.hpp"

#include <fmt/format.h>

#include <string>

namespace kvreplay {
void add_eviction_options(CLI::App& app, EvictionOptions& options) {
  list(app.add_option(
           "--policy", options.policies,
           in_lines(fmt::format("BASE or BASE+SCORE, comma-separated. Bases: {}; scores: {}, and "
                                "yours; none: only your kept sets, or with --channels and --bits "
                                "the whole prompt",
                                fmt::join(kBases.names(), ", "), fmt::join(kTokenMetrics.names(), ", ")))),
       "LIST [h2o,tova,snapkv and their +value,+key,+joint,+caote]");
  auto* sigma =
      list(app.add_option("--sigma", options.sigmas, "Budgets as compression ratios, 0.9 keeps a tenth")
               ->check(real_number()),
           "LIST [0.5,0.8,0.9]");
  list(app.add_option("--budget", options.budgets,
                      "Budgets as tokens kept per KV head, all that is pinned included")
           ->check(whole_number(0))
           ->excludes(sigma),
       "LIST");
  auto* semantics =
      app.add_option("--semantics", options.semantics,
                     fmt::format("Whose reading of a policy: {}", fmt::join(kSemantics.names(), ", ")));
  semantics->option_text("NAME [paper]");
  list(app.add_option("--diff", options.diff, "Several semantics side by side, and where they differ")
           ->excludes(semantics),
       "LIST");
  list(app.add_option("--phase", options.phases, "prefill, blockwise:N, decode, append-only"),
       "LIST [prefill]");
  app.add_option("--decode-window", options.decode_window, "Decoding steps whose scores count")
      ->check(whole_number(1))
      ->option_text("N [all]");
  app.add_option("--window", options.window,
                 "Rows of the scores, and window rows measured: the last N queries")
      ->check(whole_number(1))
      ->option_text("N [the policy's own; 32 measured]");
  app.add_option("--sinks", options.sinks, "Pin the first N positions")
      ->check(whole_number(0))
      ->option_text("N [the policy's own]");
  app.add_option("--recent", options.recent, "Pin the last N positions")
      ->check(whole_number(0))
      ->option_text("N [the policy's own]");
  app.add_option("--pool", options.pool, "Pool the scores over neighbours: max:7, avg:5, none")
      ->option_text("KIND [the policy's own]");
  app.add_option("--on", options.on, "Rows that greedy_exact and exchange look at: window or future")
      ->option_text("ROWS [window]");
  list(app.add_option("--score", options.scores, "Your score, .npy [layers, kv_heads, l], used as BASE+name"),
       "name=FILE");
  list(app.add_option("--kept", options.kept,
                      "Your kept sets, .npy of booleans [layers, kv_heads, l], measured too"),
       "name=FILE");
  app.add_option("--channels", options.channels,
                 "Prune key channels of what is kept too, its last 32 keys left whole: a method\nand a ratio "
                 "of `channels`, which ranks by the queries of --window")
      ->option_text("METHOD:RATIO");
  auto* bits = app.add_option("--bits", options.bits,
                              "Quantize what is kept too, keys per channel, values per token: 2, 4 or 8")
                   ->check(whole_number(0))
                   ->option_text("N");
  app.add_option("--group", options.group, "Numbers that share a step of the quantization")
      ->check(whole_number(1))
      ->needs(bits)
      ->option_text("N [32]");
  app.add_option("--residual", options.residual, "The most recent tokens kept are not quantized")
      ->check(whole_number(0))
      ->needs(bits)
      ->option_text("N [128]");
  app.add_flag("--per-query-head", options.per_query_head,
               "A cache for every query head, not one for its group; its memory counts as such");
}

}  // namespace kvreplay
