#pragma once

#include "data/dtype.hpp"

#include <cstddef>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace kvreplay {

/// The header of a C-ordered `.npy` of format 1.0, padded so that the elements behind it are aligned to 64
/// bytes.
std::string npy_header(std::string_view descr, std::span<const std::size_t> shape);

/// A dtype as headers name it, little-endian; bfloat16 is "|V2", as ml_dtypes writes it.
std::string_view npy_descr(Dtype dtype);

/// Values rounded to nearest even as little-endian elements.
std::vector<std::byte> encode(Dtype dtype, std::span<const float> values);
std::vector<std::byte> encode(Dtype dtype, std::span<const double> values);

}  // namespace kvreplay
