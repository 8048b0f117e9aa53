#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <vector>

namespace kvreplay {

// Arrays that a user brings along, read whole and in C order. Both throw InputError naming the file where it
// is not such an array, and `shape` where it has another.

/// Finite floating point numbers.
std::vector<double> read_npy(const std::filesystem::path& path, std::span<const std::ptrdiff_t> shape);

/// Booleans, as 0 and 1.
std::vector<std::uint8_t> read_npy_bool(const std::filesystem::path& path,
                                        std::span<const std::ptrdiff_t> shape);

}  // namespace kvreplay
