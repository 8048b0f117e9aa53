#pragma once

#include "analysis/results/recorded_files.hpp"
#include "data/dump.hpp"

#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace kvreplay {

/// The version of the result folder's layout, "schema" in summary.json.
inline constexpr int kResultSchema = 1;

/// The action for a folder that already holds results.
enum class Existing {
  refuse,
  resume,
  replace,
  renew  ///< resume where they are of the same settings, else replace
};

/// Fingerprints of some layers of a dump, as layer_fingerprints() computes them. A fingerprint is either
/// known from the start or computed by reading the layer when it is first requested. Safe to call from
/// several threads. Copies share the computed fingerprints.
class LayerFingerprints {
 public:
  LayerFingerprints() : LayerFingerprints(std::map<Index, std::string>()) {}
  LayerFingerprints(std::map<Index, std::string> known);  // NOLINT: these are all
  LayerFingerprints(std::vector<Index> layers, std::function<std::string(Index)> find);

  const std::vector<Index>& layers() const { return layers_; }
  std::string of(Index layer) const;
  std::optional<std::string> known(Index layer) const;

 private:
  struct Found;
  std::vector<Index> layers_;
  std::function<std::string(Index)> find_;
  std::shared_ptr<Found> found_;
};

/// A result folder while it is written (analysis/RESULTS-FORMAT.md). Every file appears whole or not at all.
/// Until finish(), a hidden work folder holds the data that a later run needs to resume: the settings and the
/// names of all files that were begun. For every finished layer it also holds a record, which is written
/// last: the figures that the tables are made of, and the size and hash of each of the layer's files. A lock
/// in the work folder keeps every other process out. A shard has its records in figures/ instead, where they
/// stay for `kvreplay merge`. Only files that were begun under these names are ever removed, and no symbolic
/// link is followed when they are.
class ResultFolder {
 public:
  /// Creates the folder or opens an existing one. `settings` is everything that the results depend on, except
  /// the contents of the dump's layers, which `layers` provides; those of finished layers are requested at
  /// once. Throws InputError if the folder holds something that is not ours, holds results and `existing` is
  /// refuse, was begun with other settings and `existing` is resume (the message names the first difference),
  /// or if another process writes to it.
  ResultFolder(std::filesystem::path folder, Json settings, LayerFingerprints layers, Existing existing);

  /// Opens the folder that another process, rank 0, has opened, for a process that helps it. Throws
  /// InputError if this process does not see the same folder or the same dump.
  static ResultFolder join(std::filesystem::path folder, Json settings, LayerFingerprints layers,
                           bool finished);

  const std::filesystem::path& path() const { return folder_; }
  const Json& settings() const { return settings_; }
  /// True if summary.json existed already, so that nothing is left to do.
  bool finished() const { return finished_; }

  /// A file of the results, to be written by the caller; `name` is relative to the folder.
  AtomicFile file(const std::filesystem::path& name) const;
  /// As file(), with `name` relative to the layer's folder.
  AtomicFile layer_file(Index layer, const std::filesystem::path& name) const;

  /// The `layers`, ascending, that are not done. `pass` numbers the passes over the dump from 1.
  std::vector<Index> missing_layers(const std::vector<Index>& layers, int pass = 1) const;
  /// The fingerprint of a layer of the dump, for keep_layer(). Request it while the layer is read anyway.
  std::string fingerprint(Index layer) const { return layers_.of(layer); }
  /// Marks a layer as done and keeps its figures. To be called once all of the layer's files are written.
  void keep_layer(Index layer, std::span<const double> figures, int pass = 1) const;
  /// The figures of a finished layer; throws InputError if their number is not `count`.
  std::vector<double> layer_figures(Index layer, std::size_t count, int pass = 1) const;

  /// Takes a layer over from a finished shard of the same run: its files, then its record. Throws InputError
  /// if the shard lacks the layer, computed it from another dump, or lacks files that it wrote.
  void adopt_layer(Index layer, const std::filesystem::path& part) const;

  /// Adds a remark to the notes in summary.json. Not safe to call from several threads.
  void note(std::string text) const;
  const std::vector<std::string>& notes() const;

  void write_json(const std::filesystem::path& name, const Json& json) const;
  /// Writes files.csv and summary.json and removes the work folder. Throws InputError if a file has changed
  /// since it was written.
  void finish(const Json& summary);

  /// Throws InputError if finished results differ from the record in files.csv, or files.csv from that in
  /// summary.json. Does nothing if `folder` has no results, or results from before there was a record.
  static void require_as_written(const std::filesystem::path& folder);

  /// Removes results, finished or not, and nothing else. Throws InputError if no file there identifies
  /// results.
  static void remove(const std::filesystem::path& folder);

 private:
  class Lock;
  class Written;

  ResultFolder(std::filesystem::path folder, Json settings, LayerFingerprints layers);
  std::filesystem::path records_folder() const;
  std::filesystem::path record_name(Index layer, int pass) const;
  void open(Existing existing);
  void drop_work();
  void begin_anew() const;
  void resume(const std::optional<Json>& summary, const std::optional<Json>& state, Existing existing);
  void drop_damaged_layers() const;
  /// The record of a layer; it belongs to the dump's contents, as far as these are known.
  LayerRecord record_of(Index layer, int pass) const;
  /// The records of all layers.
  struct Recorded {
    std::vector<RecordedFile> files;
    std::map<Index, std::string> fingerprints;
  };
  Recorded recorded() const;

  std::filesystem::path folder_;
  Json settings_;
  LayerFingerprints layers_;
  std::shared_ptr<Lock> lock_;
  std::shared_ptr<Written> written_;
  std::shared_ptr<std::vector<std::string>> notes_ = std::make_shared<std::vector<std::string>>();
  bool finished_ = false;
};

/// "layer_07": two digits at least.
std::string layer_name(Index layer);

/// The first key under which two settings differ, as "options.tokens.window was 32, is 64"; empty if they are
/// equal.
std::string settings_difference(const Json& was, const Json& is, const std::string& where = "");

}  // namespace kvreplay
