#include "analysis/results/result_folder.hpp"

#include "analysis/results/csv.hpp"
#include "analysis/results/recorded_files.hpp"
#include "analysis/results/text_file.hpp"
#include "data/atomic_file.hpp"
#include "data/error.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <fcntl.h>
#include <mutex>
#include <optional>
#include <random>
#include <set>
#include <sstream>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>
#include <utility>

namespace kvreplay {
namespace {

namespace fs = std::filesystem;

constexpr const char* kWork = ".kvreplay";
constexpr const char* kLock = "lock";
constexpr const char* kLayers = "layers";
constexpr const char* kFigures = "figures";
constexpr const char* kState = "state.json";
constexpr const char* kSummary = "summary.json";
constexpr const char* kFiles = "files.csv";
/// Files at the top of finished results that files.csv does not name.
const std::vector<std::string> kAlways = {kSummary, "run.json", kFiles};
constexpr std::string_view kWritten = "written-";
constexpr const char* kProgram = "kvreplay";
/// Version of the order of numbers in the records of layers: a run continues only records of its own order.
constexpr int kRecords = 2;

/// A JSON object that says that this program wrote it; nothing where the file is not one.
std::optional<Json> our_json(const fs::path& path) {
  auto json = json_object_in(path);
  if (!json || json->value("program", Json()) != kProgram) return std::nullopt;
  return json;
}

std::vector<fs::path> entries_of(const fs::path& folder) {
  std::vector<fs::path> entries;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(folder, error)) entries.push_back(entry.path());
  return entries;
}

bool is_journal(const fs::path& path) { return path.filename().string().starts_with(kWritten); }

/// The names of all files that were begun in a result folder: by finished results and by every process of a
/// run that is not finished. Throws InputError where finished results do not say.
std::vector<std::string> names_in(const fs::path& folder) {
  std::vector<std::string> names;
  if (fs::exists(folder / kFiles))
    for (RecordedFile& file : files_of_results(folder)) names.push_back(std::move(file.name));
  else if (our_json(folder / kSummary))
    throw InputError((folder / kFiles).string(), "the list of what may be removed",
                     "none; remove the results yourself");
  for (const fs::path& path : entries_of(folder / kWork)) {
    if (!is_journal(path)) continue;
    std::istringstream lines(file_text(path, kMostRecord));
    for (std::string name; std::getline(lines, name) && !lines.eof();) names.push_back(name);
  }
  // A report that nobody asked to be elsewhere goes with the results that it tells of.
  const fs::path report = "report", list = report / "figures" / "figures.csv";
  if (fs::is_regular_file(folder / list)) {
    names.insert(names.end(), {report / "index.html", list});
    CsvReader figures(folder / list);
    const std::size_t file = figures.need("file");
    for (std::vector<std::string> row; figures.next(row);) names.push_back(report / "figures" / row[file]);
  }
  // So does what data/capture/kvvalidate.py found of them.
  if (fs::is_regular_file(folder / "validate.json"))
    names.insert(names.end(), {"validate.csv", "answers.csv", "validate_layers.csv", "validate_steps.npy",
                               "validate.json"});
  return names;
}

/// Names of what the work folder holds but for the lock, journals last: they name what is still to be
/// removed.
std::vector<std::string> work_names(const fs::path& folder) {
  std::vector<std::string> names;
  for (const fs::path& path : entries_of(folder / kWork / kLayers))
    if (path.extension() == ".figures") names.push_back(fs::path(kWork) / kLayers / path.filename());
  names.push_back(fs::path(kWork) / kState);
  for (const fs::path& path : entries_of(folder / kWork))
    if (is_journal(path)) names.push_back(fs::path(kWork) / path.filename());
  return names;
}

/// A work folder alone is what is left of a run that could not even write its state.
bool holds_other_files(const fs::path& folder) {
  return std::any_of(fs::directory_iterator(folder), fs::directory_iterator(),
                     [](const fs::directory_entry& entry) { return entry.path().filename() != kWork; });
}

std::string indented(const Json& json) {
  return json.dump(1, ' ', false, Json::error_handler_t::replace) + "\n";
}

Json state_of(const Json& settings) {
  return {{"program", kProgram}, {"schema", kResultSchema}, {"records", kRecords}, {"settings", settings}};
}

/// The part of a state file or a summary that has to be equal for a run to go on.
Json settings_in(const Json& json, const Json& like) {
  if (json.contains("settings")) return json["settings"];
  Json settings = Json::object();
  for (const auto& [key, value] : like.items())
    if (json.contains(key)) settings[key] = json[key];
  return settings;
}

InputError computed_from_another_dump(const fs::path& folder, Index layer) {
  return InputError(fmt::format(
      "{}: cannot resume: layer {} of the dump was another when it was computed (--force begins anew)",
      folder.string(), layer));
}

}  // namespace

/// An exclusive lock on a file in the work folder; both go with it, the work folder where nothing else is in
/// it.
class ResultFolder::Lock {
 public:
  explicit Lock(const fs::path& folder) : path_(folder / kWork / kLock) {
    if (fs::is_symlink(folder / kWork))
      throw InputError((folder / kWork).string(), "kvreplay's own folder", "a symbolic link");
    fs::create_directories(path_.parent_path());
    for (;;) {
      fd_ = ::open(path_.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0666);
      if (fd_ < 0 && errno == ENOENT && fs::create_directories(path_.parent_path())) continue;
      if (fd_ < 0) fail_to_write(path_, errno);
      // A file system that knows no locks is no reason not to compute.
      const bool taken = ::flock(fd_, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK;
      if (!taken && is_current()) return;
      ::close(fd_);
      if (taken) throw InputError(fmt::format("{}: another kvreplay is writing here", folder.string()));
    }
  }
  ~Lock() {
    std::error_code ignored;
    if (is_current() && fs::remove(path_, ignored)) fs::remove(path_.parent_path(), ignored);
    ::close(fd_);
  }
  Lock(const Lock&) = delete;
  Lock& operator=(const Lock&) = delete;

 private:
  /// True if the path still names the file that was opened, rather than a later file of another process.
  bool is_current() const {
    struct stat opened = {}, named = {};
    return ::fstat(fd_, &opened) == 0 && ::stat(path_.c_str(), &named) == 0 &&
           opened.st_dev == named.st_dev && opened.st_ino == named.st_ino;
  }

  fs::path path_;
  int fd_ = -1;
};

/// Journal of the files that this process writes. A file's name is on disk before the file is begun. If the
/// process is stopped, a later process therefore knows which files to remove.
class ResultFolder::Written {
 public:
  explicit Written(fs::path folder) : folder_(std::move(folder)) {}
  ~Written() {
    if (journal_ >= 0) ::close(journal_);
  }
  Written(const Written&) = delete;
  Written& operator=(const Written&) = delete;

  AtomicFile begin(const std::string& name) {
    const std::lock_guard lock(mutex_);
    note(name);
    return {folder_ / name, [this, name](const FileContents& contents) {
              const std::lock_guard lock_too(mutex_);
              files_[name] = contents;
            }};
  }

  /// Files whose names begin like this.
  std::vector<RecordedFile> files(const std::string& begin = "") const {
    const std::lock_guard lock(mutex_);
    std::vector<RecordedFile> files;
    for (auto at = files_.lower_bound(begin); at != files_.end() && at->first.starts_with(begin); ++at)
      files.push_back({at->first, at->second});
    return files;
  }

  /// Names that are to be removed should this process not come to it.
  void note(const std::vector<std::string>& names) {
    const std::lock_guard lock(mutex_);
    for (const std::string& name : names) note(name);
  }

 private:
  void note(const std::string& name) {
    if (journal_ < 0) {
      const fs::path path = folder_ / kWork / fmt::format("{}{:08x}", kWritten, std::random_device{}());
      fs::create_directories(path.parent_path());
      journal_ = ::open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
    }
    const std::string line = name + "\n";
    if (journal_ < 0 || ::write(journal_, line.data(), line.size()) != std::ssize(line))
      fail_to_write(folder_ / kWork, errno);
  }

  fs::path folder_;
  mutable std::mutex mutex_;
  int journal_ = -1;
  std::map<std::string, FileContents> files_;
};

struct LayerFingerprints::Found {
  std::mutex mutex;
  std::map<Index, std::string> of;
};

LayerFingerprints::LayerFingerprints(std::map<Index, std::string> known) : found_(std::make_shared<Found>()) {
  for (const auto& [layer, fingerprint] : known) layers_.push_back(layer);
  found_->of = std::move(known);
}

LayerFingerprints::LayerFingerprints(std::vector<Index> layers, std::function<std::string(Index)> find)
    : layers_(std::move(layers)), find_(std::move(find)), found_(std::make_shared<Found>()) {
  std::ranges::sort(layers_);
}

std::optional<std::string> LayerFingerprints::known(Index layer) const {
  const std::lock_guard lock(found_->mutex);
  const auto at = found_->of.find(layer);
  return at == found_->of.end() ? std::nullopt : std::optional(at->second);
}

std::string LayerFingerprints::of(Index layer) const {
  if (auto there = known(layer)) return std::move(*there);
  std::string found = find_(layer);  // reads the layer: nobody waits for that
  const std::lock_guard lock(found_->mutex);
  return found_->of.emplace(layer, std::move(found)).first->second;
}

std::string layer_name(Index layer) { return fmt::format("layer_{:02}", layer); }

ResultFolder ResultFolder::join(fs::path folder, Json settings, LayerFingerprints layers, bool finished) {
  ResultFolder joined(std::move(folder), std::move(settings), std::move(layers));
  joined.finished_ = finished;
  const fs::path state_path = joined.folder_ / kWork / kState;
  const auto state = our_json(state_path);
  if (!finished && !state)
    throw InputError(state_path.string(),
                     "the state that rank 0 wrote, on a file system that all ranks share", "none");
  if (const std::string difference =
          state ? settings_difference(settings_in(*state, joined.settings_), joined.settings_) : "";
      !difference.empty())
    throw InputError(
        fmt::format("{}: rank 0 sees another dump than this one: {}", joined.folder_.string(), difference));
  return joined;
}

ResultFolder::ResultFolder(fs::path folder, Json settings, LayerFingerprints layers)
    : folder_(std::move(folder)),
      settings_(std::move(settings)),
      layers_(std::move(layers)),
      written_(std::make_shared<Written>(folder_)) {}

ResultFolder::ResultFolder(fs::path folder, Json settings, LayerFingerprints layers, Existing existing)
    : ResultFolder(std::move(folder), std::move(settings), std::move(layers)) {
  const std::string name = folder_.string();
  try {
    open(existing);
  } catch (const fs::filesystem_error& error) {
    throw InputError(fmt::format("{}: {}", name, error.code().message()));
  } catch (const Json::exception&) {
    throw InputError(fmt::format("{}: its summary.json or state.json is damaged; --force begins anew", name));
  }
}

void ResultFolder::open(Existing existing) {
  const std::string name = folder_.string();
  if (fs::exists(folder_) && !fs::is_directory(folder_))
    throw InputError(name, "a folder to write to", "a file");
  const fs::path state_path = folder_ / kWork / kState, summary_path = folder_ / kSummary;
  auto summary = our_json(summary_path);
  if (!summary && !fs::exists(state_path) && fs::exists(folder_) && holds_other_files(folder_))
    throw InputError(name, "a new or empty folder, or one of kvreplay's results", "other files");
  // Finished results that stay as they are need no lock, and may be in a folder that is read-only.
  if (!summary || fs::exists(folder_ / kWork) || existing == Existing::replace) {
    lock_ = std::make_shared<Lock>(folder_);
    summary = our_json(summary_path);  // another process may have finished in between
  }
  const auto state = our_json(state_path);
  if (!summary && !state && fs::exists(state_path) && existing != Existing::replace)
    throw InputError(state_path.string(), "the state of an unfinished run",
                     "a damaged file (--force begins anew)");
  if ((summary || state) && existing == Existing::refuse)
    throw InputError(
        fmt::format("{}: already holds {}--force replaces them", name,
                    summary ? "finished results; " : "unfinished results; --resume finishes them, "));
  if ((summary || state) && (existing == Existing::resume || existing == Existing::renew))
    resume(summary, state, existing);
  else
    begin_anew();
}

void ResultFolder::begin_anew() const {
  // Names of the files to remove are noted first. Records of layers are removed before the new state is
  // written, because they do not belong to it. If the process is stopped in between, the folder is still
  // recognized as ours, is unfinished, and knows which files are left to remove.
  const std::vector<std::string> old = names_in(folder_), work = work_names(folder_);
  const auto some = [](const std::vector<std::string>& names, auto chosen) {
    std::vector<std::string> those;
    std::ranges::copy_if(names, std::back_inserter(those), chosen);
    return those;
  };
  const auto is_record = [](const std::string& name) { return name.ends_with(".figures"); };
  written_->note(old);
  remove_files(folder_, some(old, is_record));
  remove_files(folder_, some(work, is_record));
  write_file(folder_ / kWork / kState, indented(state_of(settings_)));
  remove_files(folder_, kAlways);
  remove_files(folder_, old);
  remove_files(folder_, some(work, [](const fs::path& name) { return is_journal(name); }));
}

void ResultFolder::remove(const fs::path& folder) {
  {
    const Lock lock(folder);
    remove_files(folder, names_in(folder));
    remove_files(folder, kAlways);
    remove_files(folder, work_names(folder));
  }
  std::error_code others;  // the folder stays if it contains other files
  if (!fs::is_symlink(folder)) fs::remove(folder, others);
}

void ResultFolder::resume(const std::optional<Json>& summary, const std::optional<Json>& state,
                          Existing existing) {
  const Json& found = summary ? *summary : *state;
  if (found.value("schema", 0) != kResultSchema)
    throw InputError(folder_.string(), fmt::format("results of schema {}", kResultSchema),
                     fmt::format("schema {}", found.value("schema", 0)));
  const std::string difference = settings_difference(settings_in(found, settings_), settings_);
  // A state beside an older summary: a run that was to replace these results got no further than that.
  if (!difference.empty() && summary && state && settings_in(*state, settings_) == settings_)
    return begin_anew();
  if (!difference.empty() && existing == Existing::renew) {
    if (!lock_) lock_ = std::make_shared<Lock>(folder_);
    return begin_anew();
  }
  if (!difference.empty())
    throw InputError(
        fmt::format("{}: cannot resume: {} (--force begins anew)", folder_.string(), difference));

  if (!summary && found.value("records", 1) != kRecords)
    throw InputError(fmt::format(
        "{}: cannot resume: another version of kvreplay began it (--force begins anew)", folder_.string()));
  if (summary)
    for (const Index layer : layers_.layers())
      if (const std::string is = layers_.of(layer);
          found.value("layer_fingerprints", Json::object()).value(std::to_string(layer), is) != is)
        throw computed_from_another_dump(folder_, layer);
  finished_ = summary.has_value();
  if (!finished_) return drop_damaged_layers();
  require_as_written(folder_);
  if (lock_) drop_work();
}

void ResultFolder::require_as_written(const fs::path& folder) {
  const auto summary = our_json(folder / kSummary);
  if (!summary || !summary->contains(kHashOfFiles)) return;
  for (const RecordedFile& file : files_of_results(folder, *summary)) read_recorded(folder, file);
}

void ResultFolder::drop_damaged_layers() const {
  std::set<std::string> kept;
  std::vector<std::string> damaged;
  for (const Index layer : layers_.layers()) {
    std::vector<std::string> records, files;
    try {
      for (int pass = 1; fs::exists(folder_ / record_name(layer, pass)); ++pass) {
        records.push_back(record_name(layer, pass));
        for (const RecordedFile& file :
             read_layer_record(folder_, records.back(), layer, layers_.of(layer)).files) {
          read_recorded(folder_, file);
          files.push_back(file.name);
        }
      }
      kept.insert(files.begin(), files.end());
      kept.insert(records.begin(), records.end());
    } catch (const OtherDump&) {
      throw computed_from_another_dump(folder_, layer);
    } catch (const InputError&) {
      damaged.insert(damaged.end(), records.begin(), records.end());
    }
  }
  remove_files(folder_, damaged);  // first: a layer without a record is computed again
  std::vector<std::string> begun = names_in(folder_);
  std::erase_if(begun, [&](const std::string& name) { return kept.contains(name); });
  remove_files(folder_, begun);
}

AtomicFile ResultFolder::file(const fs::path& name) const { return written_->begin(name.generic_string()); }

AtomicFile ResultFolder::layer_file(Index layer, const fs::path& name) const {
  return file(layer_name(layer) / name);
}

fs::path ResultFolder::record_name(Index layer, int pass) const {
  const std::string which = pass == 1 ? "" : fmt::format(".pass{}", pass);
  return records_folder() / (layer_name(layer) + which + ".figures");
}

fs::path ResultFolder::records_folder() const {
  return settings_.contains("shard") ? fs::path(kFigures) : fs::path(kWork) / kLayers;
}

std::vector<Index> ResultFolder::missing_layers(const std::vector<Index>& layers, int pass) const {
  // From one listing, not file by file: a network file system may go on denying a file that it was asked for
  // before another machine made it.
  std::set<fs::path> there;
  for (const fs::path& path : entries_of(folder_ / records_folder())) there.insert(path.filename());
  std::vector<Index> missing;
  for (const Index layer : layers)
    if (!there.contains(record_name(layer, pass).filename())) missing.push_back(layer);
  return missing;
}

void ResultFolder::keep_layer(Index layer, std::span<const double> figures, int pass) const {
  write_file(file(record_name(layer, pass)), bytes_of({layers_.of(layer),
                                                       {figures.begin(), figures.end()},
                                                       written_->files(layer_name(layer) + "/")}));
}

std::vector<double> ResultFolder::layer_figures(Index layer, std::size_t count, int pass) const {
  std::vector<double> figures = record_of(layer, pass).figures;
  if (figures.size() != count)
    throw InputError((folder_ / record_name(layer, pass)).string(), fmt::format("{} figures", count),
                     fmt::format("{}", figures.size()));
  return figures;
}

void ResultFolder::adopt_layer(Index layer, const fs::path& part) const {
  const fs::path name = fs::path(kFigures) / record_name(layer, 1).filename();
  const LayerRecord record = read_layer_record(part, name, layer, layers_.of(layer));
  for (const RecordedFile& one : record.files) {
    if (!one.name.starts_with(layer_name(layer) + "/"))
      throw InputError((part / name).string(), fmt::format("files of {}", layer_name(layer)), one.name);
    write_file(file(one.name), read_recorded(part, one));
  }
  write_file(file(record_name(layer, 1)), bytes_of(record));
}

void ResultFolder::note(std::string text) const { notes_->push_back(std::move(text)); }

const std::vector<std::string>& ResultFolder::notes() const { return *notes_; }

void ResultFolder::write_json(const fs::path& name, const Json& json) const {
  write_file(file(name), indented(json));
}

LayerRecord ResultFolder::record_of(Index layer, int pass) const {
  return read_layer_record(folder_, record_name(layer, pass), layer, layers_.known(layer));
}

ResultFolder::Recorded ResultFolder::recorded() const {
  Recorded all;
  for (const Index layer : layers_.layers())
    for (int pass = 1; fs::exists(folder_ / record_name(layer, pass)); ++pass) {
      const LayerRecord record = record_of(layer, pass);
      const std::string& first = all.fingerprints.emplace(layer, record.fingerprint).first->second;
      if (record.fingerprint != first) throw OtherDump(folder_, layer);
      all.files.insert(all.files.end(), record.files.begin(), record.files.end());
      if (!settings_.contains("shard")) continue;
      const std::string bytes = bytes_of(record);
      all.files.push_back({record_name(layer, pass), contents_of(std::as_bytes(std::span(bytes)))});
    }
  return all;
}

void ResultFolder::finish(const Json& summary) {
  std::map<std::string, FileContents> files;
  const Recorded of_layers = recorded();
  for (const RecordedFile& file : of_layers.files) files[file.name] = file.contents;
  for (const RecordedFile& file : written_->files())
    if (!file.name.starts_with(kWork) && file.name != "run.json") files[file.name] = file.contents;
  std::vector<RecordedFile> list;
  for (const auto& [name, contents] : files) list.push_back({name, contents});
  for (const RecordedFile& file : list) read_recorded(folder_, file);

  Json whole = {{"program", kProgram}, {"schema", kResultSchema}};
  whole.update(summary);
  whole["layer_fingerprints"] = Json::object();
  for (const Index layer : layers_.layers()) {
    const auto at = of_layers.fingerprints.find(layer);
    whole["layer_fingerprints"][std::to_string(layer)] =
        at != of_layers.fingerprints.end() ? at->second : layers_.of(layer);
  }
  const std::string record = text_of(list);
  whole[kHashOfFiles] = hash_of_files(record);
  write_file(folder_ / kFiles, record);
  write_file(folder_ / kSummary, indented(whole));
  drop_work();
  finished_ = true;
}

void ResultFolder::drop_work() {
  try {
    remove_files(folder_, work_names(folder_));
  } catch (const InputError&) {  // the results are complete; a leftover work folder does no harm
  }
  lock_.reset();
}

namespace {

/// A value, cut to what is about the byte where it begins to differ from another.
std::string shown_from(const std::string& text, std::size_t differs) {
  constexpr std::size_t kLongest = 60, kBefore = 20;
  const std::size_t begin = text.size() <= kLongest || differs <= kBefore ? 0 : differs - kBefore;
  const std::string part = text.substr(begin, kLongest);
  return (begin > 0 ? "..." : "") + part + (begin + part.size() < text.size() ? "..." : "");
}

}  // namespace

std::string settings_difference(const Json& was, const Json& is, const std::string& where) {
  if (!was.is_object() || !is.is_object()) {
    if (was == is) return "";
    const std::string old = unquoted(was), now = unquoted(is);
    const auto [differs, ignored] = std::mismatch(old.begin(), old.end(), now.begin(), now.end());
    const auto at = static_cast<std::size_t>(differs - old.begin());
    return fmt::format("{} was {}, is {}", where, shown_from(old, at), shown_from(now, at));
  }
  const auto shown = [](const Json& value) { return shown_from(unquoted(value), 0); };
  const auto below = [&](const std::string& key) { return where.empty() ? key : where + "." + key; };
  for (const auto& [key, value] : is.items()) {
    if (!was.contains(key)) return fmt::format("{} was not given, is {}", below(key), shown(value));
    const std::string difference = settings_difference(was[key], value, below(key));
    if (!difference.empty()) return difference;
  }
  for (const auto& [key, value] : was.items())
    if (!is.contains(key)) return fmt::format("{} was {}, is not given", below(key), shown(value));
  return "";
}

}  // namespace kvreplay
