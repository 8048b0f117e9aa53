#pragma once

#include "data/json_fields.hpp"

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>

namespace kvreplay {

/// All of a regular file. Throws InputError where it cannot be read or has more than `most` bytes.
std::string file_text(const std::filesystem::path& path, std::uintmax_t most);

/// The JSON object that a file holds; nothing where it holds none, is damaged (parse_json()) or has more than
/// 256 MiB.
std::optional<Json> json_object_in(const std::filesystem::path& path);

/// A string as it is, any other value as JSON.
std::string unquoted(const Json& value);

}  // namespace kvreplay
