#pragma once

#include "analysis/commands/arguments.hpp"

namespace kvreplay {

/// One subcommand. `run` returns the exit code; it throws InputError for bad usage and
/// bad input, Interrupted where a signal ended the work.
struct Command {
  const char* name;
  const char* summary;
  int (*run)(const Arguments& arguments);
  bool shared = false;  ///< true if several ranks share the work; other commands run on rank 0 only
};

int run_info(const Arguments& arguments);
int run_capture(const Arguments& arguments);
int run_synth(const Arguments& arguments);
int run_tokens(const Arguments& arguments);
int run_evict(const Arguments& arguments);
int run_budget(const Arguments& arguments);
int run_channels(const Arguments& arguments);
int run_analyze(const Arguments& arguments);
int run_merge(const Arguments& arguments);
int run_verify(const Arguments& arguments);
int run_conform(const Arguments& arguments);
int run_recommend(const Arguments& arguments);
int run_compare(const Arguments& arguments);
int run_report(const Arguments& arguments);
int run_view(const Arguments& arguments);

/// All of them, in the order of the help.
inline constexpr Command kCommands[] = {
    {"info", "what a dump holds; checks every file", run_info},
    {"capture", "runs a GGUF file with llama.cpp and writes a dump", run_capture},
    {"synth", "writes a synthetic dump with known structure", run_synth},
    {"tokens", "token scores, exact errors, oracles, and how well they agree", run_tokens, true},
    {"evict", "policies x budgets: kept sets and their exact errors", run_evict, true},
    {"budget", "head budgets, loss curves, per-head loss maps", run_budget, true},
    {"channels", "channel interactions, channel pruning, and what it costs", run_channels, true},
    {"analyze", "every analysis with one pass over the dump", run_analyze, true},
    {"merge", "joins the parts of --shard i/n runs", run_merge, true},
    {"verify", "checks the numbers against brute force and the model's own outputs", run_verify},
    {"conform", "whether an implementation kept what its policy keeps", run_conform},
    {"recommend", "which recipe of tokens and bits for a model within so many bytes", run_recommend},
    {"compare", "two result folders side by side", run_compare},
    {"report", "one HTML file that shows a result folder", run_report},
    {"view", "the dashboard: opens a dump or a result folder in a window", run_view},
};

}  // namespace kvreplay
