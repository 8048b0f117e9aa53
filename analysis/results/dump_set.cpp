#include "analysis/results/dump_set.hpp"

#include "analysis/options/option.hpp"
#include "analysis/results/csv.hpp"
#include "analysis/results/figures.hpp"
#include "analysis/results/text_file.hpp"
#include "data/error.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <initializer_list>
#include <optional>
#include <system_error>
#include <utility>

namespace kvreplay {
namespace {

namespace fs = std::filesystem;

constexpr const char* kShape[] = {"layers", "n_q", "n_kv", "d", "d_v"};

/// True if a file or folder of the format could have this name, or if readers of tables would not read it as
/// text.
bool is_taken(const std::string& name) {
  const auto any_of = [&](std::initializer_list<const char*> names) { return is_in(names, name); };
  return name.empty() || spells_missing(name) || name.starts_with('.') || name.starts_with("layer_") ||
         name.ends_with(".csv") || name.ends_with(".npy") || name.ends_with(".json") ||
         any_of({"maps", "curves", "decode", "decode_tokens", "figures", "report", kLeaveOneOut});
}

std::string heads_text(const Json& dump) {
  return fmt::format("{} layers of {} query heads on {} KV heads of {} channels (values {})",
                     dump["layers"].dump(), dump["n_q"].dump(), dump["n_kv"].dump(), dump["d"].dump(),
                     dump["d_v"].dump());
}

/// The state or the summary of a folder over dumps.
std::optional<Json> over_dumps_json(const fs::path& folder) {
  for (const fs::path& path : {folder / "summary.json", folder / ".kvreplay" / "state.json"}) {
    auto found = json_object_in(path);
    if (!found) continue;
    Json json = std::move(*found);
    if (json.contains("settings") && json["settings"].is_object()) json = json["settings"];
    if (json.value("kind", Json()) != kOverDumps || !json.contains("dumps") || !json["dumps"].is_array())
      continue;
    const bool named = std::all_of(json["dumps"].begin(), json["dumps"].end(), [](const Json& dump) {
      return dump.is_object() && dump.contains("name") && dump["name"].is_string();
    });
    if (named) return json;
  }
  return std::nullopt;
}

/// The entries that two objects share, key by key.
Json common_part(const Json& a, const Json& b) {
  Json common = Json::object();
  for (const auto& [key, value] : a.items()) {
    if (!b.contains(key)) continue;
    if (value == b[key])
      common[key] = value;
    else if (value.is_object() && b[key].is_object())
      common[key] = common_part(value, b[key]);
  }
  return common;
}

}  // namespace

std::vector<std::pair<std::string, std::size_t>> counted_lines(
    std::span<const std::vector<std::string>> dumps) {
  std::vector<std::pair<std::string, std::size_t>> counts;
  for (const std::vector<std::string>& lines : dumps)
    for (auto line = lines.begin(); line != lines.end(); ++line) {
      if (std::find(lines.begin(), line, *line) != line) continue;
      const auto known = std::ranges::find(counts, *line, &std::pair<std::string, std::size_t>::first);
      ++(known == counts.end() ? counts.emplace_back(*line, 0) : *known).second;
    }
  return counts;
}

std::string line_of_dumps(const std::string& line, std::size_t having, std::size_t dumps) {
  return having == dumps ? line : fmt::format("{} ({} of {} dumps)", line, having, dumps);
}

std::string model_of(const std::string& name) {
  return name.substr(0, std::min(name.find(" / "), name.find(" (")));
}

std::string DumpSet::Entry::lengths() const {
  const Json& dump = settings["dump"];
  const Index l = dump["l"].get<Index>(), steps = dump["T"].get<Index>() - l;
  return fmt::format("{}, {}", counted(l, "candidate"), counted(steps, "decoding step"));
}

std::string DumpSet::name_among(const std::vector<std::string>& taken, const std::string& path) {
  std::string own = dump_name(path);
  if (is_taken(own)) own.insert(0, "dump_");
  std::string name = own;
  for (int n = 2; is_in(taken, name); ++n) name = fmt::format("{}-{}", own, n);
  return name;
}

std::string DumpSet::name_of(const std::string& path) const {
  std::vector<std::string> taken;
  for (const Entry& entry : entries_) taken.push_back(entry.name);
  return name_among(taken, path);
}

void DumpSet::add(const std::string& path, const Dump& dump, Json settings) {
  for (const Entry& entry : entries_) {
    std::error_code ignored;
    if (fs::equivalent(entry.path, path, ignored))
      throw InputError(path, "every dump once",
                       entry.path == path ? "it twice" : "it as " + entry.path + " too");
  }
  if (!entries_.empty()) {
    const Entry& first = entries_.front();
    const Json &its = first.settings["dump"], &mine = settings["dump"];
    if (std::any_of(std::begin(kShape), std::end(kShape),
                    [&](const char* key) { return its[key] != mine[key]; }))
      throw InputError(path, fmt::format("the shape of {}, {}", first.path, heads_text(its)),
                       heads_text(mine));
    const std::string model = its["model"].get<std::string>();
    if (dump.states_model() && first.settings["states_model"] == true &&
        model_of(model) != model_of(dump.model()))
      throw InputError(path, fmt::format("the model of {}, '{}'", first.path, model),
                       fmt::format("'{}'", dump.model()));
  }
  settings["states_model"] = dump.states_model();
  entries_.push_back({name_of(path), path, std::move(settings)});
}

Json DumpSet::settings() const {
  Json dumps = Json::array();
  for (const Entry& entry : entries_) {
    const Json& dump = entry.settings["dump"];
    Json item = {{"name", entry.name}};
    item.update(dump);
    dumps.push_back(std::move(item));
  }
  Json settings = {{"kind", kOverDumps}, {"dumps", dumps}};
  if (!left_one_out.empty()) settings[kLeaveOneOut] = left_one_out;
  return settings;
}

Json DumpSet::summary(const Json& totals) const {
  Json common = entries_.front().settings;
  for (const Entry& entry : entries_) common = common_part(common, entry.settings);
  Json summary = settings();
  for (const char* key : {"precision", "layers", "options"})
    if (common.contains(key)) summary[key] = common[key];
  summary["confidence"] = 0.95;
  summary["totals"] = totals;
  return summary;
}

Existing DumpSet::existing(const fs::path& folder, Existing asked) const {
  if (asked != Existing::resume) return asked;
  const auto old = over_dumps_json(folder);
  if (!old) return asked;
  const Json now = settings(), &mine = now["dumps"];
  bool fewer = (*old)["dumps"].size() < mine.size() ||
               old->value(kLeaveOneOut, Json()) != now.value(kLeaveOneOut, Json());
  for (const Json& dump : (*old)["dumps"]) {
    const auto same =
        std::ranges::find_if(mine, [&](const Json& other) { return other["name"] == dump["name"]; });
    if (same == mine.end())
      throw InputError(fmt::format(
          "{}: cannot resume: it was over the dump {} too, which is not given (--force begins anew)",
          folder.string(), dump["name"].get<std::string>()));
    fewer = fewer && *same == dump;
  }
  // The tables are formed anew; the single folders stay as they are.
  return fewer ? Existing::replace : asked;
}

void DumpSet::write_csv(AtomicFile file) const {
  CsvFile csv(std::move(file), "name,model,fingerprint,l,steps");
  for (const Entry& entry : entries_) {
    const Json& dump = entry.settings["dump"];
    const Index l = dump["l"].get<Index>();
    csv.add(entry.name).add(dump["model"].get<std::string>()).add(dump["fingerprint"].get<std::string>());
    csv.add(l).add(dump["T"].get<Index>() - l).end_row();
  }
  csv.finish();
}

std::vector<std::string> DumpSet::folders_in(const fs::path& folder) {
  const auto json = over_dumps_json(folder);
  std::vector<std::string> names;
  if (!json) return names;
  for (const Json& dump : (*json)["dumps"]) {
    const std::string name = dump["name"].get<std::string>();
    if (fs::path(name).filename() != name || is_taken(name)) continue;
    for (const fs::path& below : {fs::path(name), fs::path(kLeaveOneOut) / name}) {
      std::error_code ignored;
      if (fs::is_symlink(folder / kLeaveOneOut, ignored) && below != name) continue;
      if (fs::exists(folder / below / "summary.json", ignored) ||
          fs::exists(folder / below / ".kvreplay" / "state.json", ignored))
        names.push_back(below.string());
    }
  }
  return names;
}

}  // namespace kvreplay
