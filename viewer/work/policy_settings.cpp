#include "viewer/work/policy_settings.hpp"

#include "analysis/eviction/eviction_names.hpp"
#include "data/error.hpp"
#include "data/json_fields.hpp"

#include <fmt/format.h>

#include <cctype>
#include <utility>

namespace kvreplay::viewer {

using Json = nlohmann::json;

std::string text_of(const Pooling& pool) {
  if (pool.kind == Pooling::Kind::none) return "none";
  return fmt::format("{}:{}", pool.kind == Pooling::Kind::max ? "max" : "avg", pool.width);
}

EvictionOptions options_of(const PolicySettings& settings) {
  EvictionOptions options;
  options.policies.clear();
  options.phases.clear();
  if (settings.sigma_budget)
    options.sigmas = {settings.sigma};
  else
    options.budgets = {settings.budget};
  options.semantics = std::string(name_of(settings.semantics));
  options.window = settings.window;
  options.sinks = settings.sinks;
  options.recent = settings.recent;
  if (settings.pool) options.pool = text_of(*settings.pool);
  return options;
}

Json to_json(const PolicySettings& settings) {
  Json json = {{"semantics", name_of(settings.semantics)},
               {"sigma_budget", settings.sigma_budget},
               {"budget", settings.budget},
               {"sigma", settings.sigma}};
  const auto add = [&](const char* key, const std::optional<Index>& value) {
    if (value) json[key] = *value;
  };
  add("window", settings.window);
  add("sinks", settings.sinks);
  add("recent", settings.recent);
  if (settings.pool) json["pool"] = text_of(*settings.pool);
  return json;
}

PolicySettings policy_settings(const Json& json, const std::string& where) {
  const SettingsReader reader(json, where);
  PolicySettings settings;
  std::string semantics, pool;
  reader.read("semantics", semantics);
  if (!semantics.empty()) settings.semantics = parse_semantics(reader.where("semantics"), semantics);
  reader.read("sigma_budget", settings.sigma_budget);
  reader.read("budget", settings.budget);
  reader.read("sigma", settings.sigma);
  reader.read("window", settings.window);
  reader.read("sinks", settings.sinks);
  reader.read("recent", settings.recent);
  reader.read("pool", pool);
  if (!pool.empty()) try {
      settings.pool = parse_pooling(pool);
    } catch (const InputError& error) {
      throw InputError(where + ": " + without_dashes(error.what()));
    }
  return settings;
}

SettingsReader::SettingsReader(const Json& json, std::string where) : json_(json), where_(std::move(where)) {
  if (!json.is_object()) throw InputError(where_, "an object", json_text(json));
}

const Json* SettingsReader::find(const char* key) const {
  const auto found = json_.find(key);
  return found == json_.end() || found->is_null() ? nullptr : &*found;
}

void SettingsReader::read(const char* key, bool& value) const {
  const Json* found = find(key);
  if (found == nullptr) return;
  if (!found->is_boolean()) throw InputError(where(key), "true or false", json_text(*found));
  value = found->get<bool>();
}

void SettingsReader::read(const char* key, double& value) const {
  const Json* found = find(key);
  if (found == nullptr) return;
  if (!found->is_number()) throw InputError(where(key), "a number", json_text(*found));
  value = found->get<double>();
}

void SettingsReader::read(const char* key, Index& value) const {
  const Json* found = find(key);
  if (found == nullptr) return;
  constexpr Index kMost = Index{1} << 60;  // so that positions can be added to it
  const bool whole = found->is_number_unsigned() ? found->get<std::uint64_t>() <= std::uint64_t{kMost}
                                                 : found->is_number_integer() && found->get<Index>() >= 0;
  if (!whole || found->get<Index>() > kMost)
    throw InputError(where(key), "a whole number of at least 0", json_text(*found));
  value = found->get<Index>();
}

void SettingsReader::read(const char* key, std::optional<Index>& value) const {
  if (find(key) == nullptr) return;
  Index number = 0;
  read(key, number);
  value = number;
}

void SettingsReader::read(const char* key, std::string& value) const {
  const Json* found = find(key);
  if (found == nullptr) return;
  if (!found->is_string()) throw InputError(where(key), "a text", json_text(*found));
  value = found->get<std::string>();
}

void SettingsReader::read(const char* key, std::vector<std::string>& values) const {
  const Json* found = find(key);
  if (found == nullptr) return;
  values.clear();
  const auto refuse = [&] { throw InputError(where(key), "a list of texts", json_text(*found)); };
  if (!found->is_array()) refuse();
  for (const Json& item : *found) {
    if (!item.is_string()) refuse();
    values.push_back(item.get<std::string>());
  }
}

std::string without_dashes(std::string_view line) {
  std::string text;
  for (std::size_t i = 0; i < line.size(); ++i) {
    const bool begins = i == 0 || line[i - 1] == ' ' || line[i - 1] == '(';
    if (begins && i + 2 < line.size() && line[i] == '-' && line[i + 1] == '-' &&
        std::isalpha(static_cast<unsigned char>(line[i + 2])) != 0) {
      ++i;
      continue;
    }
    text += line[i];
  }
  return text;
}

}  // namespace kvreplay::viewer
