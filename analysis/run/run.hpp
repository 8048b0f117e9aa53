#pragma once

#include "analysis/results/result_folder.hpp"
#include "analysis/run/ranks.hpp"
#include "analysis/run/stage.hpp"
#include "data/dump.hpp"
#include "sim/schedule.hpp"

#include <fmt/format.h>

#include <cstddef>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace kvreplay {

using Stages = std::vector<std::unique_ptr<Stage>>;

/// Part i of n, counted from 1.
struct Shard {
  Index part = 1;
  Index parts = 1;
  std::string name() const { return fmt::format("{}/{}", part, parts); }  ///< "2/3"
};
/// The shard that a name says; nothing where it is none.
std::optional<Shard> shard_named(const std::string& name);

struct RunOptions {
  Precision precision = Precision::f32;
  std::vector<Index> layers;      ///< ascending
  std::optional<Shard> shard;     ///< deals the layers out in turn and takes one hand
  std::vector<LeftOut> left_out;  ///< analyses that are not among the stages, and why
  /// Called at the start and after every head group, by one thread at a time.
  std::function<void(Index done, Index total)> on_progress;
};

struct RunResult {
  Json summary;               ///< for ResultFolder::finish()
  std::string report;         ///< the stages' reports; empty if nothing was left to do
  Index layers_computed = 0;  ///< in this run; the others were there already
  Index layers_resumed = 0;
};

/// The layers that a shard takes: the j-th of `layers` goes to part j % n + 1.
std::vector<Index> layers_of_shard(const std::vector<Index>& layers, const Shard& shard);

/// The layers that this run computes.
std::vector<Index> layers_of_run(const RunOptions& options);

/// "layers" to "l", as summary.json has them.
Json shape_json(const DumpShape& shape);

/// Everything else that the results of a run depend on, for the state of a result folder and for
/// summary.json.
Json run_settings(const Dump& dump, const Stages& stages, const RunOptions& options);

/// One pass over the dump: layer by layer, head groups in parallel while they are small, one computed while
/// the next is read where they are large; the layers are dealt out to the ranks by what they cost, each of
/// which writes the files of its own. Layers that `folder` already holds are not computed again. Rank 0
/// writes the tables and has the summary and the report. A shard's stages that join layers keep their figures
/// for `kvreplay merge`, and have no tables. Throws Interrupted where the workers were stopped and InputError
/// on bad input or a full disk; finished layers stay in `folder` either way.
RunResult run_stages(const Dump& dump, const Stages& stages, const RunOptions& options, ResultFolder& folder,
                     Workers& workers, Ranks& ranks);

/// Deals items of these costs out to `parts`, each in turn to the part that has least so far: where all cost
/// the same, as layers_of_shard() does. [parts] of ascending numbers of items.
std::vector<std::vector<std::size_t>> dealt_out(std::span<const double> costs, int parts);

/// 16 hex digits that tell dumps of different make apart: a hash of manifest.json and of every array's name
/// in the folder, type and shape. Independent of where the folder lies and of what the arrays hold.
std::string fingerprint(const Dump& dump);

/// 16 hex digits a layer, of all that its arrays hold: every file that has some of it is read once, whole.
std::map<Index, std::string> layer_fingerprints(const Dump& dump, std::span<const Index> layers,
                                                Workers& workers);
/// As layer_fingerprints(), but each layer is read when its fingerprint is requested; all are read at once if
/// files span several layers. `dump` and `workers` must outlive the result.
LayerFingerprints fingerprints_in_turn(const Dump& dump, const std::vector<Index>& layers, Workers& workers);

/// "0:07", "12:34", "3:05:10".
std::string clock_text(double seconds);

/// One line about work under way: a bar, the share done, the rate and the time left (from the rate so far).
///   [=========>                    ]  32 %  31/96 heads  4.1 heads/s  0:16 left
std::string progress_line(Index done, Index total, double seconds);

// The result folders of --shard runs, and what makes one whole of them.

/// A finished part.
struct Part {
  std::filesystem::path folder;
  Shard shard;
  Json summary;               ///< its summary.json
  Json how;                   ///< its run.json
  std::vector<Index> layers;  ///< layers that the shard computed
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
