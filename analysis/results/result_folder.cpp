#include "analysis/results/result_folder.hpp"

#include "analysis/results/schema.hpp"
#include "data/atomic_file.hpp"
#include "data/error.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <cerrno>
#include <cstring>
#include <fcntl.h>
#include <fstream>
#include <optional>
#include <set>
#include <sstream>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

namespace kvreplay {
namespace {

namespace fs = std::filesystem;

constexpr const char* kWork = ".kvreplay";
constexpr const char* kLock = "lock";
constexpr const char* kFigures = "figures";
constexpr const char* kProgram = "kvreplay";

std::string read_text(const fs::path& path) {
  std::ifstream in(path, std::ios::binary);
  std::ostringstream text;
  text << in.rdbuf();
  return std::move(text).str();
}

/// A JSON object that says that this program wrote it; nothing where the file is not one.
std::optional<Json> our_json(const fs::path& path) {
  std::error_code error;
  if (!fs::is_regular_file(path, error)) return std::nullopt;
  Json json = Json::parse(read_text(path), nullptr, false);
  if (!json.is_object() || !json.contains("program") || json["program"] != kProgram) return std::nullopt;
  return json;
}

/// Whether a name at the top of a result folder is one that this program writes.
bool is_ours(const std::string& name) {
  static const std::vector<std::string> names = {"run.json", "summary.json",      "maps",  "curves", "decode",
                                                 "figures",  "budget_curves.npy", "report"};
  if (std::find(names.begin(), names.end(), name) != names.end()) return true;
  for (const Table table : kTables.all())
    if (name == file_of(table)) return true;
  if (name == "dumps.csv" || name.ends_with("_over_dumps.csv")) return true;
  constexpr std::string_view layer = "layer_";
  return name.starts_with(layer) && name.size() >= layer.size() + 2 &&
         std::all_of(name.begin() + layer.size(), name.end(),
                     [](unsigned char c) { return std::isdigit(c); });
}

void remove_where(const fs::path& folder, bool (*chosen)(const std::string& name)) {
  std::vector<fs::path> old;
  for (const auto& entry : fs::directory_iterator(folder))
    if (chosen(entry.path().filename().string())) old.push_back(entry.path());
  for (const fs::path& path : old) fs::remove_all(path);
}

/// What AtomicFile leaves behind where the process was killed in the middle of a file.
bool is_temporary(const std::string& name) {
  return name.starts_with(".kvreplay-") && name.ends_with(".tmp");
}

/// A work folder alone is what is left of a run that could not even write its state.
bool holds_other_files(const fs::path& folder) {
  return std::any_of(fs::directory_iterator(folder), fs::directory_iterator(),
                     [](const fs::directory_entry& entry) { return entry.path().filename() != kWork; });
}

Json state_of(const Json& settings) {
  return {{"program", kProgram}, {"schema", kResultSchema}, {"settings", settings}};
}

/// Of a state file or a summary: the part that has to be equal for a run to go on.
Json settings_in(const Json& json, const Json& like) {
  if (json.contains("settings")) return json["settings"];
  Json settings = Json::object();
  for (const auto& [key, value] : like.items())
    if (json.contains(key)) settings[key] = json[key];
  return settings;
}

}  // namespace

/// An exclusive lock on a file in the work folder; both go with it, the work folder where nothing else is in
/// it.
class ResultFolder::Lock {
 public:
  explicit Lock(const fs::path& folder) : path_(folder / kWork / kLock) {
    fs::create_directories(path_.parent_path());
    for (;;) {
      fd_ = ::open(path_.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0666);
      if (fd_ < 0 && errno == ENOENT && fs::create_directories(path_.parent_path())) continue;
      if (fd_ < 0)
        throw InputError(fmt::format("{}: cannot be written: {}", path_.string(), std::strerror(errno)));
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
  /// Whether the file under this name is still the one that was opened, not a later one of another process.
  bool is_current() const {
    struct stat opened = {}, named = {};
    return ::fstat(fd_, &opened) == 0 && ::stat(path_.c_str(), &named) == 0 &&
           opened.st_dev == named.st_dev && opened.st_ino == named.st_ino;
  }

  fs::path path_;
  int fd_ = -1;
};

std::string layer_name(Index layer) { return fmt::format("layer_{:02}", layer); }

ResultFolder ResultFolder::join(fs::path folder, Json settings, std::map<Index, std::string> layers,
                                bool finished) {
  ResultFolder joined(std::move(folder), std::move(settings), std::move(layers));
  joined.finished_ = finished;
  const fs::path state_path = joined.folder_ / kWork / "state.json";
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

ResultFolder::ResultFolder(fs::path folder, Json settings, std::map<Index, std::string> layers)
    : folder_(std::move(folder)), settings_(std::move(settings)), layers_(std::move(layers)) {}

ResultFolder::ResultFolder(fs::path folder, Json settings, std::map<Index, std::string> layers,
                           Existing existing)
    : folder_(std::move(folder)), settings_(std::move(settings)), layers_(std::move(layers)) {
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
  const fs::path state_path = folder_ / kWork / "state.json", summary_path = folder_ / "summary.json";
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
  if ((summary || state) && existing == Existing::resume)
    resume(summary, state);
  else
    begin_anew();
}

void ResultFolder::begin_anew() const {
  // The new state goes first and an old summary before the rest, so that whatever stops this leaves a folder
  // that still is ours, and not finished.
  fs::remove_all(folder_ / kWork / "layers");
  write_json(fs::path(kWork) / "state.json", state_of(settings_));
  fs::remove(folder_ / "summary.json");
  remove_where(folder_, is_ours);
  remove_where(folder_, is_temporary);
}

void ResultFolder::resume(const std::optional<Json>& summary, const std::optional<Json>& state) {
  const Json& found = summary ? *summary : *state;
  if (found.value("schema", 0) != kResultSchema)
    throw InputError(folder_.string(), fmt::format("results of schema {}", kResultSchema),
                     fmt::format("schema {}", found.value("schema", 0)));
  const std::string difference = settings_difference(settings_in(found, settings_), settings_);
  // A state beside an older summary: a run that was to replace these results got no further than that.
  if (!difference.empty() && summary && state && settings_in(*state, settings_) == settings_)
    return begin_anew();
  if (!difference.empty())
    throw InputError(
        fmt::format("{}: cannot resume: {} (--force begins anew)", folder_.string(), difference));

  std::vector<Index> layers;
  for (const auto& [layer, fingerprint] : layers_) layers.push_back(layer);
  const std::vector<Index> missing = missing_layers(layers);
  for (const auto& [layer, fingerprint] : layers_) {
    std::string then = fingerprint;
    if (summary)
      then = found.value("layer_fingerprints", Json::object()).value(std::to_string(layer), fingerprint);
    else if (!std::binary_search(missing.begin(), missing.end(), layer))
      then = read_text(figures_path(layer, 1)).substr(0, fingerprint.size());
    if (then != fingerprint)
      throw InputError(fmt::format(
          "{}: cannot resume: layer {} of the dump was another when it was computed (--force begins anew)",
          folder_.string(), layer));
  }
  remove_where(folder_, is_temporary);
  finished_ = summary.has_value();
  if (finished_) drop_work();
}

fs::path ResultFolder::layer_path(Index layer) const { return folder_ / layer_name(layer); }

fs::path ResultFolder::figures_path(Index layer, int pass) const {
  const std::string which = pass == 1 ? "" : fmt::format(".pass{}", pass);
  return figures_folder() / (layer_name(layer) + which + ".figures");
}

fs::path ResultFolder::figures_folder() const {
  return settings_.contains("shard") ? folder_ / kFigures : folder_ / kWork / "layers";
}

void ResultFolder::clear(const fs::path& name) const {
  try {
    fs::remove_all(folder_ / name);
  } catch (const fs::filesystem_error& error) {
    throw InputError(fmt::format("{}: {}", (folder_ / name).string(), error.code().message()));
  }
}

bool ResultFolder::has_layer(Index layer, int pass) const {
  std::error_code error;
  return fs::exists(figures_path(layer, pass), error);
}

std::vector<Index> ResultFolder::missing_layers(const std::vector<Index>& layers, int pass) const {
  // From one listing, not file by file: a network file system may go on denying a file that it was asked for
  // before another machine made it.
  std::set<fs::path> there;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(figures_folder(), error))
    there.insert(entry.path().filename());
  std::vector<Index> missing;
  for (const Index layer : layers)
    if (there.count(figures_path(layer, pass).filename()) == 0) missing.push_back(layer);
  return missing;
}

void ResultFolder::keep_layer(Index layer, std::span<const double> figures, int pass) const {
  const std::string& fingerprint = layers_.at(layer);
  AtomicFile file(figures_path(layer, pass));
  file.write(std::as_bytes(std::span(fingerprint)));
  file.write(std::as_bytes(figures));
  file.commit();
}

std::vector<double> ResultFolder::layer_figures(Index layer, std::size_t count, int pass) const {
  const fs::path path = figures_path(layer, pass);
  const std::string bytes = read_text(path);
  const std::size_t begin = layers_.at(layer).size(), expected = begin + count * sizeof(double);
  if (bytes.size() != expected)
    throw InputError(path.string(), fmt::format("{} bytes", expected), fmt::format("{}", bytes.size()));
  std::vector<double> figures(count);
  std::memcpy(figures.data(), bytes.data() + begin, count * sizeof(double));
  return figures;
}

void ResultFolder::adopt_layer(Index layer, const fs::path& part) const {
  const fs::path from = part / kFigures / figures_path(layer, 1).filename();
  const std::string figures = read_text(from);
  const std::string& fingerprint = layers_.at(layer);
  if (figures.empty()) throw InputError(from.string(), "the figures of a finished layer", "none");
  if (!figures.starts_with(fingerprint))
    throw InputError(
        fmt::format("{}: layer {} of the dump was another when it was computed", part.string(), layer));
  const fs::path files = part / layer_name(layer);
  clear(layer_name(layer));
  try {
    if (fs::exists(files))
      for (const auto& entry : fs::recursive_directory_iterator(files))
        if (entry.is_regular_file())
          write_file(folder_ / entry.path().lexically_relative(part), read_text(entry.path()));
  } catch (const fs::filesystem_error& error) {
    throw InputError(fmt::format("{}: {}", files.string(), error.code().message()));
  }
  write_file(figures_path(layer, 1), figures);
}

void ResultFolder::write_text(const fs::path& name, std::string_view text) const {
  write_file(folder_ / name, text);
}

void ResultFolder::write_json(const fs::path& name, const Json& json) const {
  write_text(name, json.dump(1, ' ', false, Json::error_handler_t::replace) + "\n");
}

void ResultFolder::finish(const Json& summary) {
  Json whole = {{"program", kProgram}, {"schema", kResultSchema}};
  whole.update(summary);
  whole["layer_fingerprints"] = Json::object();
  for (const auto& [layer, fingerprint] : layers_)
    whole["layer_fingerprints"][std::to_string(layer)] = fingerprint;
  write_json("summary.json", whole);
  drop_work();
  finished_ = true;
}

void ResultFolder::drop_work() {
  std::error_code ignored;  // the results are complete; a leftover work folder does no harm
  std::vector<fs::path> old;
  for (const auto& entry : fs::directory_iterator(folder_ / kWork, ignored))
    if (entry.path().filename() != kLock) old.push_back(entry.path());
  for (const fs::path& path : old) fs::remove_all(path, ignored);
  lock_.reset();
}

std::string settings_difference(const Json& was, const Json& is, const std::string& where) {
  const auto shown = [](const Json& value) {
    std::string text = value.is_string() ? value.get<std::string>() : value.dump();
    constexpr std::size_t kLongest = 60;
    if (text.size() > kLongest) text = text.substr(0, kLongest) + "...";
    return text;
  };
  if (!was.is_object() || !is.is_object())
    return was == is ? "" : fmt::format("{} was {}, is {}", where, shown(was), shown(is));
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
