#include "analysis/result_folder.hpp"

#include "data/atomic_file.hpp"
#include "data/error.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <cstring>
#include <fstream>
#include <optional>
#include <sstream>

namespace kvreplay {
namespace {

namespace fs = std::filesystem;

constexpr const char* kWork = ".kvreplay";
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

/// The first key under which two settings differ, as "options.tokens.window was 32, is 64".
std::string first_difference(const Json& was, const Json& is, const std::string& where = "") {
  const auto shown = [](const Json& value) {
    return value.is_string() ? value.get<std::string>() : value.dump();
  };
  if (!was.is_object() || !is.is_object())
    return was == is ? "" : fmt::format("{} was {}, is {}", where, shown(was), shown(is));
  const auto below = [&](const std::string& key) { return where.empty() ? key : where + "." + key; };
  for (const auto& [key, value] : is.items()) {
    if (!was.contains(key)) return fmt::format("{} was not given, is {}", below(key), shown(value));
    const std::string difference = first_difference(was[key], value, below(key));
    if (!difference.empty()) return difference;
  }
  for (const auto& [key, value] : was.items())
    if (!is.contains(key)) return fmt::format("{} was {}, is not given", below(key), shown(value));
  return "";
}

/// Whether a name at the top of a result folder is one that this program writes.
bool is_ours(const std::string& name) {
  static const std::vector<std::string> names = {
      "run.json",     "heads.csv", "agreement.csv", "evictions.csv", "decode.csv",        "budgets.csv",
      "channels.csv", "maps",      "curves",        "decode",        "budget_curves.npy", "summary.json"};
  if (std::find(names.begin(), names.end(), name) != names.end()) return true;
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

std::string layer_name(Index layer) { return fmt::format("layer_{:02}", layer); }

ResultFolder::ResultFolder(fs::path folder, Json settings, Existing existing)
    : folder_(std::move(folder)), settings_(std::move(settings)) {
  const std::string name = folder_.string();
  try {
    if (fs::exists(folder_) && !fs::is_directory(folder_))
      throw InputError(name, "a folder to write to", "a file");
    const fs::path state_file = folder_ / kWork / "state.json";
    const auto summary = our_json(folder_ / "summary.json");
    const auto state = our_json(state_file);

    if (!summary && !state) {
      if (fs::exists(folder_) && holds_other_files(folder_))
        throw InputError(name, "a new or empty folder, or one of kvreplay's results", "other files");
      write_json(fs::path(kWork) / "state.json", state_of(settings_));
      return;
    }
    switch (existing) {
      case Existing::refuse:
        throw InputError(fmt::format("{}: already holds {} results; {}--force replaces them", name,
                                     summary && !state ? "finished" : "unfinished",
                                     summary && !state ? "" : "--resume finishes them, "));
      case Existing::replace:
        // The new state goes first and the summary is gone before anything else, so that whatever stops this
        // leaves a folder that still is ours and not finished.
        fs::remove_all(folder_ / kWork / "layers");
        write_json(fs::path(kWork) / "state.json", state_of(settings_));
        fs::remove(folder_ / "summary.json");
        remove_where(folder_, is_ours);
        remove_where(folder_, is_temporary);
        return;
      case Existing::resume: {
        const Json& found = state ? *state : *summary;
        if (found.value("schema", 0) != kResultSchema)
          throw InputError(name, fmt::format("results of schema {}", kResultSchema),
                           fmt::format("schema {}", found.value("schema", 0)));
        const std::string difference = first_difference(settings_in(found, settings_), settings_);
        if (!difference.empty())
          throw InputError(fmt::format("{}: cannot resume: {} (--force begins anew)", name, difference));
        remove_where(folder_, is_temporary);
        // With both there the run ended between the summary and the clearing away.
        finished_ = summary.has_value();
        if (finished_) fs::remove_all(folder_ / kWork);
        return;
      }
    }
  } catch (const fs::filesystem_error& error) {
    throw InputError(fmt::format("{}: {}", name, error.code().message()));
  }
}

fs::path ResultFolder::layer_path(Index layer) const { return folder_ / layer_name(layer); }

namespace {
fs::path figures_name(Index layer) { return fs::path(kWork) / "layers" / (layer_name(layer) + ".f64"); }
}  // namespace

void ResultFolder::clear(const fs::path& name) const {
  try {
    fs::remove_all(folder_ / name);
  } catch (const fs::filesystem_error& error) {
    throw InputError(fmt::format("{}: {}", (folder_ / name).string(), error.code().message()));
  }
}

bool ResultFolder::has_layer(Index layer) const {
  std::error_code error;
  return fs::exists(folder_ / figures_name(layer), error);
}

void ResultFolder::keep_layer(Index layer, std::span<const double> figures) const {
  write_file(folder_ / figures_name(layer), std::as_bytes(figures));
}

std::vector<double> ResultFolder::layer_figures(Index layer, std::size_t count) const {
  const fs::path path = folder_ / figures_name(layer);
  const std::string bytes = read_text(path);
  if (bytes.size() != count * sizeof(double))
    throw InputError(path.string(), fmt::format("{} bytes", count * sizeof(double)),
                     fmt::format("{}", bytes.size()));
  std::vector<double> figures(count);
  std::memcpy(figures.data(), bytes.data(), bytes.size());
  return figures;
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
  write_json("summary.json", whole);
  std::error_code ignored;  // the results are complete; a leftover work folder does no harm
  fs::remove_all(folder_ / kWork, ignored);
  finished_ = true;
}

}  // namespace kvreplay
