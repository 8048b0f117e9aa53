#pragma once

#include "analysis/run/ranks.hpp"

#include <span>
#include <string>
#include <vector>

namespace kvreplay {

/// What stands behind a command's name on the command line.
using Arguments = std::vector<std::string>;

/// One subcommand. `run` returns the exit code; it throws InputError for bad usage and
/// bad input, Interrupted where a signal ended the work.
struct Command {
  const char* name;
  const char* summary;
  int (*run)(const Arguments& arguments);
  bool shared = false;  ///< whether several ranks share the work; rank 0 alone runs the others
};

/// All of them, in the order of the help.
std::span<const Command> commands();

/// The ranks that run this command together: main() starts them.
Ranks& this_run();

int run_analyze(const Arguments& arguments);
int run_budget(const Arguments& arguments);
int run_channels(const Arguments& arguments);
int run_compare(const Arguments& arguments);
int run_evict(const Arguments& arguments);
int run_merge(const Arguments& arguments);
int run_info(const Arguments& arguments);
int run_report(const Arguments& arguments);
int run_synth(const Arguments& arguments);
int run_tokens(const Arguments& arguments);
int run_verify(const Arguments& arguments);
int run_view(const Arguments& arguments);

}  // namespace kvreplay
