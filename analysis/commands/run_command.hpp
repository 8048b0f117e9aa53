#pragma once

#include "analysis/commands/arguments.hpp"
#include "analysis/run/stage.hpp"

#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace kvreplay {

/// Stages that a command runs, and results that it leaves out without a request to do so.
struct ChosenStages {
  Stages stages;
  std::vector<LeftOut> left_out;
};

using MakeStages = std::function<ChosenStages(const Dump&, const Compute&)>;

/// A command as given: run.json records it, and kvreplay merge repeats that of a shard.
struct Invocation {
  std::string command;
  Arguments arguments;
};

/// Common part of all commands that fill a result folder: opens the dump, opens or resumes the folder, runs
/// the stages with a progress bar and signal handling, writes run.json and summary.json, and prints the
/// results. The ranks of this_run() work together: rank 0 opens the folder, writes the tables and prints.
/// Returns the exit code.
int run_into_folder(const Invocation& invocation, const CommonOptions& options,
                    const MakeStages& make_stages);

/// Throws OptionError if the output folder is an input folder, lies inside one or contains one.
void require_apart(const std::string& out, const std::vector<std::string>& inputs);

/// The next commands for a finished result folder of these dumps. The usual follow-up of `command` comes
/// first.
std::vector<std::string> next_commands(const std::string& command, const std::filesystem::path& folder,
                                       const std::vector<std::string>& dumps);

/// Prints the summary of a finished result folder, for --json, with `more` behind it.
void print_summary(const std::filesystem::path& folder, const Json& more = Json::object());
/// Lines on the results that a summary lists as left out; names that share a reason are on one line.
std::vector<std::string> left_out_lines(const Json& summary);

/// Computes the head budgets of a command once more, under these orders, divided by these profiles only
/// (by_profile()).
using MakeByProfile =
    std::function<std::unique_ptr<Stage>(const Dump&, const Compute&, const std::vector<std::string>& orders,
                                         const std::vector<std::string>& files)>;

/// Settings for budgets that are divided by the profiles of the other dumps.
struct ProfilesOfOthers {
  std::optional<bool> asked = {};  ///< BudgetOptions::leave_one_out
  MakeByProfile make = {};         ///< none: the command has no budgets
};

/// Runs a command that fills a result folder on any number of dumps of one model. One dump:
/// run_into_folder(). Several: DIR/<name>/ for each, byte for byte as in a single run, then budgets by the
/// profiles of the others, and then the tables over all dumps. Returns the exit code.
int run_on_dumps(const Invocation& invocation, const CommonOptions& options, const MakeStages& make_stages,
                 const ProfilesOfOthers& others = {});

}  // namespace kvreplay
