#pragma once

#include "analysis/results/result_folder.hpp"
#include "analysis/run/run.hpp"

#include <filesystem>
#include <string>
#include <vector>

// The result folders of --shard runs, and what makes one whole of them.

namespace kvreplay {

/// A finished part.
struct Part {
  std::filesystem::path folder;
  Shard shard;
  Json summary;               ///< its summary.json
  Json how;                   ///< its run.json
  std::vector<Index> layers;  ///< that it computed
};

/// Reads parts 1/n to n/n, given in any order, and returns them in that order. Throws InputError where a
/// folder is no finished part of this program's result schema, where a part is missing or there twice, or
/// where two are not of the same run; the first difference is named.
std::vector<Part> read_parts(const std::vector<std::string>& folders);

/// Throws InputError where the parts are not of the run with these settings (run_settings(), no shard).
void require_parts_of(const std::vector<Part>& parts, const Json& settings);

/// Copies the layers that `folder` lacks. Throws InputError as ResultFolder::adopt_layer(), Interrupted where
/// the workers were stopped.
void adopt_parts(const std::vector<Part>& parts, const ResultFolder& folder, const Workers& workers);

}  // namespace kvreplay
