#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace kvreplay {

/// Is an integer of this magnitude the same as a float64?
constexpr bool fits_float64(std::uint64_t magnitude) {
  return magnitude == 0 || magnitude >> std::countr_zero(magnitude) < 1ull << 53;
}

// Arrays beside a dump, read whole and in C order: those that a user brings along, and results. All throw
// InputError naming the file where it is not such an array, and `shape` where it has another.

/// The shape of an array of numbers or booleans.
std::vector<std::ptrdiff_t> npy_shape(const std::filesystem::path& path);

/// Floating point numbers, which may be infinite or NaN, or integers, none of which is rounded.
std::vector<double> read_npy(const std::filesystem::path& path, std::span<const std::ptrdiff_t> shape);

/// Booleans, as 0 and 1.
std::vector<std::uint8_t> read_npy_bool(const std::filesystem::path& path,
                                        std::span<const std::ptrdiff_t> shape);

/// An array of any shape. Integers beyond 2^53 are rounded; NaN, infinities and extents of 0 pass.
struct NpyNumbers {
  std::vector<std::ptrdiff_t> shape;
  std::vector<double> values;
};
/// Floating point numbers, integers of 1 to 8 bytes, or booleans as 0 and 1.
NpyNumbers read_npy_numbers(const std::filesystem::path& path);

/// The same of every `.npy` in an archive, by the members' names without their ending, in the archive's
/// order.
std::vector<std::pair<std::string, NpyNumbers>> read_npz_numbers(const std::filesystem::path& path);

}  // namespace kvreplay
