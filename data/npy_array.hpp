#pragma once

#include "data/dtype.hpp"
#include "data/mapped_file.hpp"
#include "data/npy_header.hpp"

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace kvreplay {

/// Storage of an array's elements.
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

/// The bytes of one `.npy` in a file, an archive's member or memory. Reading is thread safe.
class ByteSource {
 public:
  using Visit = std::function<void(std::span<const std::byte>)>;

  virtual ~ByteSource() = default;
  virtual std::uint64_t size() const = 0;
  /// Calls `visit` with bytes [begin, end), begin <= end <= size(): in one piece where asked for, else in
  /// order in pieces whose lengths are multiples of 64 (but for the last). Throws InputError where they
  /// cannot be read.
  virtual void read(std::uint64_t begin, std::uint64_t end, bool in_one_piece, const Visit& visit) const = 0;
  /// All bytes, where they are in memory for as long as this is; empty where they are not.
  virtual std::span<const std::byte> in_memory() const { return {}; }
  /// True if the container stores the bytes uncompressed, so that reading them again costs no more than a
  /// copy.
  virtual bool as_it_lies() const { return true; }
  /// Reads all bytes, in order in pieces, and compares them with the checksum of their container, if there is
  /// one. Throws InputError on a mismatch. (read() compares, too, once it has decompressed the bytes to their
  /// end.)
  virtual void read_all(const Visit& visit) const { read(0, size(), false, visit); }
};

/// A file or a range of one: mapped for the duration of a read only, so that neither descriptors nor resident
/// memory add up.
class FileSource : public ByteSource {
 public:
  explicit FileSource(std::filesystem::path path)
      : path_(std::move(path)), opened_(state_of(path_)), size_(opened_.size) {}
  /// `size` bytes from `offset` of a file that must be as it was when `opened`.
  FileSource(std::filesystem::path path, const FileState& opened, std::uint64_t offset, std::uint64_t size)
      : path_(std::move(path)), opened_(opened), offset_(offset), size_(size) {}
  std::uint64_t size() const override { return size_; }
  void read(std::uint64_t begin, std::uint64_t end, bool /*in_one_piece*/,
            const Visit& visit) const override {
    const MappedFile file(path_, opened_, offset_ + begin, offset_ + end);
    visit(file.bytes());
    file.require_unchanged();
  }

 private:
  std::filesystem::path path_;
  FileState opened_;
  std::uint64_t offset_ = 0, size_;
};

/// Bytes that the caller keeps alive.
class MemorySource : public ByteSource {
 public:
  explicit MemorySource(std::span<const std::byte> bytes) : bytes_(bytes) {}
  std::uint64_t size() const override { return bytes_.size(); }
  void read(std::uint64_t begin, std::uint64_t end, bool /*in_one_piece*/,
            const Visit& visit) const override {
    visit(bytes_.subspan(begin, end - begin));
  }
  std::span<const std::byte> in_memory() const override { return bytes_; }

 private:
  std::span<const std::byte> bytes_;
};

/// A stored array whose header has been read and checked; its elements stay where they are until asked for.
struct NpyArray {
  std::string where;  ///< names it in messages
  NpyHeader header;
  std::shared_ptr<const ByteSource> source;
};

/// Reads prefix and header of a source, in the form that parse_npy_header() takes. Throws InputError if it is
/// no `.npy`.
std::vector<std::byte> read_npy_header(const ByteSource& source, const std::string& where);

/// Throws InputError naming `where` unless the bytes are a `.npy` of floating point numbers (or uint16), or
/// of what else is asked for.
NpyArray open_npy(std::string where, std::shared_ptr<const ByteSource> source,
                  NpyElements elements = NpyElements::numbers);

/// Elements from one to the next along each axis of an array without gaps.
std::vector<std::ptrdiff_t> strides_of(std::span<const std::ptrdiff_t> shape, bool fortran_order);

/// visit(place) for every element of an array in C order: as many elements behind the first one as the
/// strides say.
template <class Visit>
void in_c_order(const std::vector<std::ptrdiff_t>& shape, const std::vector<std::ptrdiff_t>& strides,
                const Visit& visit) {
  std::vector<std::ptrdiff_t> at(shape.size(), 0);
  std::ptrdiff_t count = 1, place = 0;
  for (const std::ptrdiff_t extent : shape) count *= extent;
  for (std::ptrdiff_t n = 0; n < count; ++n) {
    visit(place);
    for (std::size_t axis = at.size(); axis-- > 0;) {
      place += strides[axis];
      if (++at[axis] < shape[axis]) break;
      place -= strides[axis] * shape[axis];
      at[axis] = 0;
    }
  }
}

/// One matrix inside an array; the strides count elements.
struct MatrixView {
  std::ptrdiff_t begin = 0;  ///< element (0, 0)
  std::ptrdiff_t rows = 0, cols = 0;
  std::ptrdiff_t row_stride = 0, col_stride = 0;

  bool contiguous() const { return row_stride == cols && col_stride == 1; }
  /// The view of the rows behind the first `skipped`.
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
