#pragma once

#include "data/mapped_file.hpp"

#include <nlohmann/json.hpp>

#include <filesystem>
#include <optional>
#include <string>

namespace kvreplay {

/// The JSON object that a file holds; nothing where it holds none, is damaged (parse_json()) or has more than
/// 256 MiB.
std::optional<nlohmann::ordered_json> json_object_in(const std::filesystem::path& path);

/// A string as it is, any other value as JSON.
std::string unquoted(const nlohmann::ordered_json& value);

}  // namespace kvreplay
