#pragma once

#include "data/byte_source.hpp"
#include "data/npy_header.hpp"

#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace kvreplay {

/// A stored array whose header has been read and checked; its elements stay where they are until asked for.
struct NpyArray {
  std::string where;  ///< names it in messages
  NpyHeader header;
  std::shared_ptr<const ByteSource> source;
};

/// What a source begins with: prefix and header, as parse_npy_header() takes them. Throws InputError where
/// they begin no `.npy`.
std::vector<std::byte> read_npy_header(const ByteSource& source, const std::string& where);

/// Throws InputError naming `where` unless the bytes are a `.npy` of floating point numbers (or uint16), or
/// of what else is asked for.
NpyArray open_npy(std::string where, std::shared_ptr<const ByteSource> source,
                  NpyElements elements = NpyElements::numbers);

/// One matrix inside an array; the strides count elements.
struct MatrixView {
  std::ptrdiff_t begin = 0;  ///< element (0, 0)
  std::ptrdiff_t rows = 0, cols = 0;
  std::ptrdiff_t row_stride = 0, col_stride = 0;

  bool contiguous() const { return row_stride == cols && col_stride == 1; }
  /// Of the rows behind the first `skipped`.
  MatrixView without_rows(std::ptrdiff_t skipped) const {
    return {begin + skipped * row_stride, rows - skipped, cols, row_stride, col_stride};
  }
};

/// Converts a matrix to row-major T (float or double) and returns the index in `out` of the first NaN or
/// infinity, if any. `dtype` is the header's, or what uint16 bits stand for. A contiguous matrix needs no
/// memory beside `out`.
template <class T>
std::optional<std::ptrdiff_t> read_matrix(const NpyArray& array, Dtype dtype, const MatrixView& view, T* out);

}  // namespace kvreplay
