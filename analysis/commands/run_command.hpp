#pragma once

#include "analysis/commands/arguments.hpp"
#include "analysis/stage.hpp"

#include <functional>
#include <memory>
#include <vector>

namespace kvreplay {

/// What a command runs, and what it leaves out of its own accord.
struct ChosenStages {
  std::vector<std::unique_ptr<Stage>> stages;
  std::vector<LeftOut> left_out;
};

using MakeStages = std::function<ChosenStages(const Dump&, const Compute&)>;

/// What every command does that fills a result folder: opens the dump, takes up the folder, runs the stages
/// with a progress bar and an eye on signals, writes run.json and summary.json, and says what came of it.
/// Returns the exit code.
int run_into_folder(const CommonOptions& options, const MakeStages& make_stages);

}  // namespace kvreplay
