#pragma once

#include "data/json_fields.hpp"
#include "data/mapped_file.hpp"

#include <filesystem>
#include <optional>
#include <string>

namespace kvreplay {

/// The JSON object that a file holds; nothing where it holds none, is damaged (parse_json()) or has more than
/// 256 MiB. Throws InputError where a folder, pipe or device is in its place.
std::optional<Json> json_object_in(const std::filesystem::path& path);

/// A string as it is, any other value as JSON.
std::string unquoted(const Json& value);

}  // namespace kvreplay
