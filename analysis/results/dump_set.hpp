#pragma once

#include "analysis/results/result_folder.hpp"
#include "data/dump.hpp"

#include <filesystem>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace kvreplay {

/// Several dumps of one model, with a name for each: that of the subfolder of its results.
class DumpSet {
 public:
  struct Entry {
    std::string name;  ///< the dump's folder's, made unique by -2, -3, ... in the order they were given
    std::string path;
    Json settings;  ///< run_settings() of a run on it alone

    /// "896 candidates, 128 decoding steps"
    std::string lengths() const;
  };

  /// The name for a dump at `path` among dumps that have the names `taken`.
  static std::string name_among(const std::vector<std::string>& taken, const std::string& path);
  /// The name that the dump at `path` would get if it were added now.
  std::string name_of(const std::string& path) const;
  /// Adds a dump. Throws InputError if the dump was given before, has other layers or heads than the first
  /// one, or states another model. Names of models are compared up to " / " or " (", behind which the prompt
  /// may be named.
  void add(const std::string& path, const Dump& dump, Json settings);

  const std::vector<Entry>& entries() const { return entries_; }

  /// The names of those that have results in kLeaveOneOut/<name>/ too; none at first.
  std::vector<std::string> left_one_out;

  /// The settings that the folder over the dumps depends on; the options of the runs are in the single
  /// folders.
  Json settings() const;
  /// For ResultFolder::finish(): the settings, and the options that all runs share.
  Json summary(const Json& totals) const;
  /// The mode in which to open `folder`. A folder that is resumed may have covered some of these dumps only,
  /// or may lack their profiles. Throws InputError if the folder covered a dump that is not among these.
  Existing existing(const std::filesystem::path& folder, Existing asked) const;
  /// `name,model,fingerprint,l,steps`
  void write_csv(AtomicFile file) const;

  /// The subfolders with results of single dumps in a folder over dumps, finished or not, below kLeaveOneOut
  /// too; none of any other.
  static std::vector<std::string> folders_in(const std::filesystem::path& folder);

 private:
  std::vector<Entry> entries_;
};

/// Lines that are said of several dumps, each once and in the order in which they first come, with how many
/// of the dumps have them.
std::vector<std::pair<std::string, std::size_t>> counted_lines(
    std::span<const std::vector<std::string>> dumps);
/// "line (2 of 3 dumps)"; the line alone where all have it.
std::string line_of_dumps(const std::string& line, std::size_t having, std::size_t dumps);

/// A model's name up to " / " or " (", behind which the prompt may be named.
std::string model_of(const std::string& name);

/// The folder of what divides a dump's budgets by the mean profile of the other dumps, and a key in
/// summary.json, a list of these dumps.
inline constexpr const char* kLeaveOneOut = "leave_one_out";

/// "kind" in summary.json.
inline constexpr const char* kOverDumps = "over dumps";

}  // namespace kvreplay
