#include "data/npy_array.hpp"

#include "data/convert.hpp"

#include <algorithm>
#include <utility>

namespace kvreplay {
namespace {

/// Converts in pieces that fit the first-level cache, so that looking for NaN costs no second trip to memory.
template <class T>
std::optional<std::ptrdiff_t> convert_checked(Encoding from, const std::byte* in, std::ptrdiff_t n, T* out) {
  constexpr std::ptrdiff_t piece = 2048;
  const std::ptrdiff_t size = static_cast<std::ptrdiff_t>(size_of(from.dtype));
  for (std::ptrdiff_t i = 0; i < n; i += piece) {
    const std::ptrdiff_t count = std::min(piece, n - i);
    convert(from, in + i * size, count, out + i);
    if (const auto at = first_not_finite(out + i, count)) return i + *at;
  }
  return std::nullopt;
}

}  // namespace

std::vector<std::byte> read_npy_header(const ByteSource& source, const std::string& where) {
  std::vector<std::byte> header;
  const ByteSource::Visit append = [&](std::span<const std::byte> bytes) {
    header.insert(header.end(), bytes.begin(), bytes.end());
  };
  source.read(0, std::min<std::uint64_t>(npy_prefix_bytes, source.size()), true, append);
  const std::size_t length = npy_header_bytes(header, source.size(), where);
  if (length > header.size()) source.read(header.size(), length, true, append);
  header.resize(length);
  return header;
}

NpyArray open_npy(std::string where, std::shared_ptr<const ByteSource> source, NpyElements elements) {
  NpyHeader header = parse_npy_header(read_npy_header(*source, where), source->size(), where, elements);
  return {std::move(where), std::move(header), std::move(source)};
}

template <class T>
std::optional<std::ptrdiff_t> read_matrix(const NpyArray& array, Dtype dtype, const MatrixView& view,
                                          T* out) {
  const Encoding from{dtype, array.header.big_endian};
  const std::uint64_t size = size_of(dtype);
  const std::ptrdiff_t last = (view.rows - 1) * view.row_stride + (view.cols - 1) * view.col_stride;
  const std::uint64_t begin = array.header.data_offset + static_cast<std::uint64_t>(view.begin) * size;
  const std::uint64_t end = begin + static_cast<std::uint64_t>(last + 1) * size;
  std::optional<std::ptrdiff_t> bad;
  if (view.contiguous()) {
    std::ptrdiff_t done = 0;
    array.source->read(begin, end, false, [&](std::span<const std::byte> bytes) {
      const std::ptrdiff_t count = static_cast<std::ptrdiff_t>(bytes.size() / size);
      const auto at = bad ? bad : convert_checked(from, bytes.data(), count, out + done);
      if (at && !bad) bad = done + *at;
      done += count;
    });
  } else {
    array.source->read(begin, end, true, [&](std::span<const std::byte> bytes) {
      convert_strided(from, bytes.data(), view.rows, view.cols, view.row_stride, view.col_stride, out);
    });
    bad = first_not_finite(out, view.rows * view.cols);
  }
  return bad;
}

template decltype(read_matrix<float>) read_matrix<float>;
template decltype(read_matrix<double>) read_matrix<double>;

}  // namespace kvreplay
