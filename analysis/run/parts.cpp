#include "analysis/run/parts.hpp"

#include "analysis/results/result_folder.hpp"
#include "analysis/results/text_file.hpp"
#include "data/error.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <optional>
#include <utility>

namespace kvreplay {
namespace {

namespace fs = std::filesystem;

Json object_in(const fs::path& path) {
  auto json = json_object_in(path);
  if (!json) throw InputError(path.string(), "what kvreplay writes", "a damaged file");
  return std::move(*json);
}

Part read_part(const fs::path& folder) {
  const std::string name = folder.string();
  if (!fs::is_directory(folder)) throw InputError(name, "the result folder of a --shard run", "no folder");
  const fs::path summary = folder / "summary.json";
  if (!fs::exists(summary))
    throw InputError(name, "a finished result folder",
                     fs::exists(folder / ".kvreplay/state.json")
                         ? "an unfinished one (the run's command with --resume finishes it)"
                         : "no summary.json");
  Part part{folder, {}, object_in(summary), object_in(folder / "run.json"), {}};
  if (part.summary.value("program", Json()) != "kvreplay")
    throw InputError(summary.string(), "kvreplay's summary", "another program's");
  if (const Json schema = part.summary.value("schema", Json()); schema != kResultSchema)
    throw InputError(name, fmt::format("results of schema {}", kResultSchema),
                     fmt::format("schema {}", schema.dump()));
  const Json name_of_shard = part.summary.value("shard", Json());
  const auto shard = name_of_shard.is_string() ? shard_named(name_of_shard) : std::nullopt;
  if (!shard)
    throw InputError(name, "a part of a --shard i/n run",
                     part.summary.contains("shard") ? part.summary["shard"].dump() : "a run of its own");
  part.shard = *shard;
  try {
    part.layers = part.summary.at("layers").get<std::vector<Index>>();
  } catch (const Json::exception&) {
    throw InputError(summary.string(), "a list of layers", "a damaged file");
  }
  return part;
}

/// What all parts of a run share.
Json common_settings(const Json& summary) {
  Json settings = Json::object();
  for (const char* key : {"dump", "precision", "options"})
    if (summary.contains(key)) settings[key] = summary[key];
  return settings;
}

void require_same_run(const Part& first, const Part& other) {
  if (other.shard.parts != first.shard.parts)
    throw InputError(fmt::format("{} and {}: expected parts of one run, found {} and {}",
                                 first.folder.string(), other.folder.string(), first.shard.name(),
                                 other.shard.name()));
  if (other.shard.part == first.shard.part)
    throw InputError(fmt::format("{} and {}: both are part {}", first.folder.string(), other.folder.string(),
                                 first.shard.name()));
  const std::string difference =
      settings_difference(common_settings(first.summary), common_settings(other.summary));
  if (!difference.empty())
    throw InputError(fmt::format("{} and {}: expected parts of one run, found that {}", first.folder.string(),
                                 other.folder.string(), difference));
}

}  // namespace

std::vector<Part> read_parts(const std::vector<std::string>& folders) {
  std::vector<Part> parts;
  for (const std::string& folder : folders) {
    Part part = read_part(folder);
    for (const Part& other : parts) require_same_run(other, part);
    parts.push_back(std::move(part));
  }
  std::sort(parts.begin(), parts.end(),
            [](const Part& a, const Part& b) { return a.shard.part < b.shard.part; });
  if (parts.empty()) return parts;
  const Index all = parts.front().shard.parts, missing = all - std::ssize(parts);
  if (missing == 0) return parts;
  constexpr Index kNamed = 8;
  std::vector<std::string> names;
  auto there = parts.begin();
  for (Index part = 1; part <= all && std::ssize(names) < kNamed; ++part)
    if (there != parts.end() && there->shard.part == part)
      ++there;
    else
      names.push_back(Shard{part, all}.name());
  throw InputError(fmt::format("{}: the other parts of its run are missing: {}{}",
                               parts.front().folder.string(), fmt::join(names, ", "),
                               missing > kNamed ? fmt::format(" and {} more", missing - kNamed) : ""));
}

void require_parts_of(const std::vector<Part>& parts, const Json& settings) {
  std::vector<Index> layers;
  for (const Part& part : parts) {
    layers.insert(layers.end(), part.layers.begin(), part.layers.end());
    const std::string difference =
        settings_difference(common_settings(part.summary), common_settings(settings));
    if (!difference.empty())
      throw InputError(
          fmt::format("{}: not a part of what is to be merged: {}", part.folder.string(), difference));
  }
  std::sort(layers.begin(), layers.end());
  if (Json(layers) != settings.at("layers"))
    throw InputError("the parts' layers", settings.at("layers").dump(), Json(layers).dump());
}

void adopt_parts(const std::vector<Part>& parts, const ResultFolder& folder, const Workers& workers) {
  for (const Part& part : parts)
    for (const Index layer : folder.missing_layers(part.layers)) {
      folder.adopt_layer(layer, part.folder);
      if (workers.stopping()) throw Interrupted{};
    }
}

}  // namespace kvreplay
