#pragma once

#include "data/dump.hpp"

#include <nlohmann/json.hpp>

#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace kvreplay {

using Json = nlohmann::ordered_json;

/// The version of the result folder's layout, "schema" in summary.json.
inline constexpr int kResultSchema = 1;

/// What to do with a folder that already holds results.
enum class Existing { refuse, resume, replace };

/// A result folder while it is written (analysis/RESULTS-FORMAT.md). Every file appears whole or not at all.
/// Until finish(), a hidden work folder holds what a later run needs to go on: the settings, and for every
/// finished layer the figures that the tables are made of. A lock in it keeps every other process out. A
/// shard has the figures not there but in figures/, where they stay for `kvreplay merge`.
class ResultFolder {
 public:
  /// Makes the folder, or takes up one that is there. `settings` is everything that the results depend on,
  /// but for what the dump's layers hold, which `layers` tells (layer_fingerprint()). Throws InputError where
  /// the folder holds something that is not ours, holds results and `existing` is refuse, or was begun with
  /// other settings and `existing` is resume (the first difference is named), or another process writes to
  /// it.
  ResultFolder(std::filesystem::path folder, Json settings, std::map<Index, std::string> layers,
               Existing existing);

  /// The folder that another process, rank 0, has taken up, for a process that helps it. Throws InputError
  /// where this one does not see the same folder or not the same dump.
  static ResultFolder join(std::filesystem::path folder, Json settings, std::map<Index, std::string> layers,
                           bool finished);

  const std::filesystem::path& path() const { return folder_; }
  const Json& settings() const { return settings_; }
  /// Whether summary.json was there already: nothing is left to do.
  bool finished() const { return finished_; }

  std::filesystem::path layer_path(Index layer) const;
  /// Removes what a run that was cut short left under this name, if anything.
  void clear(const std::filesystem::path& name) const;
  /// `pass` numbers the passes over the dump from 1.
  bool has_layer(Index layer, int pass = 1) const;
  /// Those of `layers`, ascending, that are not done.
  std::vector<Index> missing_layers(const std::vector<Index>& layers, int pass = 1) const;
  /// Marks a layer as done and keeps its figures. To be called once all of the layer's files are written.
  void keep_layer(Index layer, std::span<const double> figures, int pass = 1) const;
  /// The figures of a finished layer; throws InputError where there are not `count` of them.
  std::vector<double> layer_figures(Index layer, std::size_t count, int pass = 1) const;

  /// Takes a layer over from a finished shard of the same run: its files, then its figures. Throws InputError
  /// where the shard has it not, or computed it from another dump.
  void adopt_layer(Index layer, const std::filesystem::path& part) const;

  void write_text(const std::filesystem::path& name, std::string_view text) const;
  void write_json(const std::filesystem::path& name, const Json& json) const;
  /// Writes summary.json and drops the work folder.
  void finish(const Json& summary);

 private:
  class Lock;

  ResultFolder(std::filesystem::path folder, Json settings, std::map<Index, std::string> layers);
  std::filesystem::path figures_folder() const;
  std::filesystem::path figures_path(Index layer, int pass) const;
  void open(Existing existing);
  void drop_work();
  void begin_anew() const;
  void resume(const std::optional<Json>& summary, const std::optional<Json>& state);

  std::filesystem::path folder_;
  Json settings_;
  std::map<Index, std::string> layers_;
  std::shared_ptr<Lock> lock_;
  bool finished_ = false;
};

/// "layer_07": two digits at least.
std::string layer_name(Index layer);

/// The first key under which two settings differ, as "options.tokens.window was 32, is 64"; empty where they
/// are equal.
std::string settings_difference(const Json& was, const Json& is, const std::string& where = "");

}  // namespace kvreplay
