#pragma once

#include "analysis/commands/run_command.hpp"

namespace kvreplay {

/// What a command does that fills a result folder and takes any number of dumps of one model:
/// run_into_folder() for one; for several, DIR/<name>/ for each, byte for byte as it is alone, and then what
/// all say together. Returns the exit code.
int run_on_dumps(const Invocation& invocation, const CommonOptions& options, const MakeStages& make_stages);

}  // namespace kvreplay
