#pragma once

#include "data/atomic_file.hpp"
#include "data/dtype.hpp"

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace kvreplay {

/// Writes a C-ordered little-endian `.npy` (format 1.0), to a path or into a file that was begun. The product
/// of `shape` is `values.size()`. T is float, double, bool (as std::uint8_t 0 or 1: write_npy_bool),
/// std::int32_t, or std::byte (uint8).
void write_npy(AtomicFile file, std::span<const std::size_t> shape, std::span<const float> values);
void write_npy(AtomicFile file, std::span<const std::size_t> shape, std::span<const double> values);
void write_npy(AtomicFile file, std::span<const std::size_t> shape, std::span<const std::int32_t> values);
void write_npy(AtomicFile file, std::span<const std::size_t> shape, std::span<const std::byte> values);
void write_npy_bool(AtomicFile file, std::span<const std::size_t> shape,
                    std::span<const std::uint8_t> values);

/// Prefix and header of such a file, padded so that the elements behind it are aligned to 64 bytes.
std::string npy_header(std::string_view descr, std::span<const std::size_t> shape);

/// float or double values rounded to nearest even, as little-endian elements.
template <class T>
std::vector<std::byte> encode(Dtype dtype, std::span<const T> values);

}  // namespace kvreplay
