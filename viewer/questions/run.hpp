#pragma once

#include "data/dump.hpp"
#include "sim/head_group.hpp"
#include "viewer/model/key.hpp"
#include "viewer/model/layer_numbers.hpp"
#include "viewer/questions/shared_cache.hpp"

#include <cstdint>
#include <filesystem>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

namespace kvreplay {
class ResultReader;
}

namespace kvreplay::viewer {

/// A dump or a result folder that is open in the dashboard. A result folder knows its dump, if that is still
/// there. Immutable: a changed file makes another Run. Thread safe.
class Run {
 public:
  /// A dump's folder, a .npz, or a result folder. Throws InputError in one line where it is none. `id`
  /// distinguishes runs in the keys of questions. `dump`: where a result folder's dump lies, in place of what
  /// its run.json says; throws where another one lies there.
  static std::shared_ptr<const Run> open(const std::filesystem::path& path, int id,
                                         const std::filesystem::path& dump = {});
  ~Run();

  int id() const { return id_; }
  /// Beginning of the keys of all questions about this run.
  Key key() const { return {"run", id_}; }
  const std::filesystem::path& path() const { return path_; }
  const std::string& name() const { return name_; }  ///< the folder's name
  const std::string& model() const { return model_; }
  const DumpShape& shape() const { return shape_; }
  /// Names of the layers, wherever a person reads or types them.
  const LayerNumbers& layers() const { return layers_; }
  ModelLayer layer_number(Index layer) const { return layers_.number(layer); }
  /// "layer 14 head 1"
  std::string head_text(Index layer, Index kv_head) const;
  /// Fingerprint of the dump as in summary.json: kvreplay::fingerprint().
  std::string fingerprint() const;
  /// Null where a result folder's dump is gone; why_no_dump() then says why, as one clause.
  const Dump* dump() const { return dump_ ? &*dump_ : nullptr; }
  const std::string& why_no_dump() const { return why_no_dump_; }
  /// Path of the dump that was given when the results were opened; empty if none was given.
  const std::filesystem::path& located_dump() const { return located_dump_; }
  /// Null for a dump without results.
  const ResultReader* results() const { return results_.get(); }
  const std::optional<TokenLabels>& labels() const;

  /// The head group in float32, read when it is first asked for and kept while there is room. Blocks: for
  /// jobs. Throws InputError where the dump is bad there.
  std::shared_ptr<const HeadGroup<float>> head(Index layer, Index kv_head) const;
  /// The head's cache with the query heads of every layer that reads it (load_readers()); head() where that
  /// is one layer's.
  std::shared_ptr<const HeadGroup<float>> readers(Index layer, Index kv_head) const;
  void set_head_cache(std::size_t bytes) const;

  /// True if a file that the run was opened from has changed or is gone. Cheap: only times and sizes are
  /// compared.
  bool changed() const;
  /// Hash of the files' times and sizes: differs if the files differ; never 0.
  std::uint64_t files_now() const;

 private:
  Run() = default;
  void add_stamp(const std::filesystem::path& path);
  void open_dump_of_results();
  /// Throws InputError where a layer of the dump does not hold what the results were computed from. Reads the
  /// layer whole, once.
  void check_contents(Index layer) const;

  int id_ = 0;
  std::filesystem::path path_, located_dump_;
  std::string name_, model_;
  DumpShape shape_;
  LayerNumbers layers_;
  std::optional<Dump> dump_;
  std::string why_no_dump_;
  std::unique_ptr<ResultReader> results_;
  /// By layer and KV head.
  mutable SharedCache<std::pair<Index, Index>, HeadGroup<float>> heads_{std::size_t{512} << 20, Newest::kept};
  struct Stamp {
    std::filesystem::path path;
    std::filesystem::file_time_type time;
    std::uintmax_t bytes = 0;
    bool operator==(const Stamp&) const = default;
  };
  static Stamp stamp_of(const std::filesystem::path& path);
  std::vector<Stamp> stamps_;
  mutable std::mutex checking_;
  mutable std::set<Index> checked_;  // layers
};

// Two runs of one prompt, held against each other head by head and token by token.

/// Reason why the two runs' values do not refer to the same tokens, in one sentence. Empty if they do: the
/// heads are equal, and so is the prompt, as the tokens of both dumps show, or because both runs are of one
/// dump.
std::string why_not_comparable(const Run& run, const Run& other);

/// The run that others are held against.
class PinnedRun {
 public:
  void pin(std::shared_ptr<const Run> run) { run_ = std::move(run), compared_ = -1; }
  const std::shared_ptr<const Run>& run() const { return run_; }
  /// why_not_comparable() with the pinned run, which there is; kept for the run that asked last.
  const std::string& why_not(const Run& run);

 private:
  std::shared_ptr<const Run> run_;
  int compared_ = -1;
  std::string why_not_;
};

}  // namespace kvreplay::viewer
