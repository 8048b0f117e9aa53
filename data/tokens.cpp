#include "data/error.hpp"
#include "data/json_fields.hpp"
#include "data/manifest.hpp"

#include <fmt/format.h>

#include <cstdint>

namespace kvreplay {
namespace {

/// The list under `key`, empty where absent; any other length than T is refused.
nlohmann::json list_of(const JsonFields& fields, const char* key, Index T) {
  const auto& list = fields.at(key);
  if (list.is_null()) return nlohmann::json::array();
  if (!list.is_array()) throw InputError(fields.where(key), "a list", json_text(list));
  if (!list.empty() && list.size() != static_cast<std::size_t>(T)) {
    throw InputError(fields.where(key), fmt::format("{} entries, one a position", T),
                     std::to_string(list.size()));
  }
  return list;
}

}  // namespace

TokenLabels parse_tokens(std::string_view text, const std::string& where, Index T) {
  const nlohmann::json json = parse_json_object(text, where);
  const JsonFields fields(json, where);
  TokenLabels labels;
  for (const auto& id : list_of(fields, "ids", T)) {
    if (!id.is_number_integer())
      throw InputError(fields.where("ids"), "whole numbers", json_text(id) + " in it");
    labels.ids.push_back(id.get<std::int64_t>());
  }
  for (const auto& label : list_of(fields, "text", T)) {
    if (!label.is_string()) throw InputError(fields.where("text"), "strings", json_text(label) + " in it");
    labels.text.push_back(label.get<std::string>());
  }
  return labels;
}

}  // namespace kvreplay
