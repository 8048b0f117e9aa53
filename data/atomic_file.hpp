#pragma once

#include <cstddef>
#include <filesystem>
#include <span>
#include <string_view>

namespace kvreplay {

/// Writes a file whole or not at all: to a temporary name in the same folder, then a rename. Missing parent folders are
/// made. Throws InputError (path and reason: no space left, no permission, ...) and leaves no temporary file behind.
void write_file(const std::filesystem::path& path, std::span<const std::byte> bytes);
void write_file(const std::filesystem::path& path, std::string_view text);

}  // namespace kvreplay
