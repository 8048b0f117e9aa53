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

/// What a command runs, and what it leaves out of its own accord.
struct ChosenStages {
  Stages stages;
  std::vector<LeftOut> left_out;
};

using MakeStages = std::function<ChosenStages(const Dump&, const Compute&)>;

/// A command as it was given: run.json tells it, and kvreplay merge repeats that of a shard.
struct Invocation {
  std::string command;
  Arguments arguments;
};

/// What every command does that fills a result folder: opens the dump, takes up the folder, runs the stages
/// with a progress bar and an eye on signals, writes run.json and summary.json, and says what came of it. The
/// ranks of this_run() do that together: rank 0 takes up the folder, writes the tables and speaks. Returns
/// the exit code.
int run_into_folder(const Invocation& invocation, const CommonOptions& options,
                    const MakeStages& make_stages);

/// Throws OptionError where the folder to write to is one of those to be read, lies inside one or contains
/// one.
void require_apart(const std::string& out, const std::vector<std::string>& inputs);

/// The next commands for a finished result folder of these dumps. The usual follow-up of `command` comes
/// first.
std::vector<std::string> next_commands(const std::string& command, const std::filesystem::path& folder,
                                       const std::vector<std::string>& dumps);

/// The summary of a finished result folder, with --json, and `more` behind it.
void print_summary(const std::filesystem::path& folder, const Json& more = Json::object());
/// What a summary says was left out; names that share a reason on one line.
std::vector<std::string> left_out_lines(const Json& summary);

/// Makes the head budgets of a command once more, under these orders, divided by these profiles alone
/// (by_profile()).
using MakeByProfile =
    std::function<std::unique_ptr<Stage>(const Dump&, const Compute&, const std::vector<std::string>& orders,
                                         const std::vector<std::string>& files)>;

/// Whether several dumps take the profiles of each other, where a command divides budgets.
struct ProfilesOfOthers {
  std::optional<bool> asked = {};  ///< BudgetOptions::leave_one_out
  MakeByProfile make = {};         ///< none: the command has no budgets
};

/// What a command does that fills a result folder and takes any number of dumps of one model:
/// run_into_folder() for one; for several, DIR/<name>/ for each, byte for byte as it is alone, then budgets
/// by the profiles of the others, and then what all say together. Returns the exit code.
int run_on_dumps(const Invocation& invocation, const CommonOptions& options, const MakeStages& make_stages,
                 const ProfilesOfOthers& others = {});

}  // namespace kvreplay
