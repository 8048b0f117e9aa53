#pragma once

#include "data/dtype.hpp"

#include <cstddef>
#include <optional>

namespace kvreplay {

/// How the elements of an array are stored.
struct Encoding {
  Dtype dtype = Dtype::f32;
  bool big_endian = false;
};

/// Converts `n` adjacent elements at `in`, which need not be aligned, to T (float or double), rounding to
/// nearest. NaN and infinity pass through; a float64 beyond float32's range becomes infinite.
template <class T>
void convert(Encoding from, const std::byte* in, std::ptrdiff_t n, T* out);

/// Gathers a matrix to row-major [rows, cols]: element (r, c) stands r * row_stride + c * col_stride elements
/// behind `in`.
template <class T>
void convert_strided(Encoding from, const std::byte* in, std::ptrdiff_t rows, std::ptrdiff_t cols,
                     std::ptrdiff_t row_stride, std::ptrdiff_t col_stride, T* out);

/// The index of the first NaN or infinity among `n` values.
template <class T>
std::optional<std::ptrdiff_t> first_not_finite(const T* values, std::ptrdiff_t n);

}  // namespace kvreplay
