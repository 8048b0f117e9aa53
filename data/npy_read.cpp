#include "data/npy_read.hpp"

#include "data/convert.hpp"
#include "data/error.hpp"
#include "data/npy_array.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <utility>

namespace kvreplay {
namespace {

NpyArray open_shaped(const std::filesystem::path& path, std::span<const std::ptrdiff_t> shape,
                     NpyElements elements) {
  NpyArray array = open_npy(path.string(), std::make_shared<FileSource>(path), elements);
  if (!std::equal(shape.begin(), shape.end(), array.header.shape.begin(), array.header.shape.end()))
    throw InputError(array.where, "shape " + shape_text(shape), "shape " + shape_text(array.header.shape));
  return array;
}

/// Calls visit(C-order index, storage index) for every element.
template <class Visit>
void for_each_in_c_order(const NpyHeader& header, const Visit& visit) {
  const std::vector<std::ptrdiff_t>& shape = header.shape;
  std::vector<std::ptrdiff_t> at(shape.size(), 0);
  for (std::ptrdiff_t n = 0; n < header.count; ++n) {
    std::ptrdiff_t stored = 0;
    if (header.fortran_order)
      for (std::size_t axis = shape.size(); axis-- > 0;) stored = stored * shape[axis] + at[axis];
    else
      stored = n;
    visit(n, stored);
    for (std::size_t axis = shape.size(); axis-- > 0;) {
      if (++at[axis] < shape[axis]) break;
      at[axis] = 0;
    }
  }
}

/// One integer of `bytes` bytes, lowest first unless `big`.
double integer_at(const std::byte* in, NpyInteger kind, bool big) {
  std::uint64_t bits = 0;
  for (std::size_t b = 0; b < kind.bytes; ++b)
    bits = bits << 8 | static_cast<std::uint64_t>(in[big ? b : kind.bytes - 1 - b]);
  if (!kind.is_signed) return static_cast<double>(bits);
  const std::size_t unused = 64 - 8 * kind.bytes;
  return static_cast<double>(static_cast<std::int64_t>(bits << unused) >> unused);
}

std::vector<double> in_c_order(const NpyHeader& header, std::vector<double> stored) {
  if (!header.fortran_order) return stored;
  std::vector<double> values(stored.size());
  for_each_in_c_order(header, [&](std::ptrdiff_t n, std::ptrdiff_t from) { values[n] = stored[from]; });
  return values;
}

}  // namespace

std::vector<double> read_npy(const std::filesystem::path& path, std::span<const std::ptrdiff_t> shape) {
  const NpyArray array = open_shaped(path, shape, NpyElements::numbers);
  if (!array.header.dtype)
    throw InputError(array.where, "float16, float32, float64 or bfloat16 elements", "unsigned integers");
  std::vector<double> stored(array.header.count);
  const MatrixView all{0, 1, array.header.count, array.header.count, 1};
  if (const auto bad = read_matrix(array, *array.header.dtype, all, stored.data()))
    throw InputError(array.where, "finite numbers", fmt::format("NaN or infinity (element {})", *bad));
  return in_c_order(array.header, std::move(stored));
}

std::vector<std::uint8_t> read_npy_bool(const std::filesystem::path& path,
                                        std::span<const std::ptrdiff_t> shape) {
  const NpyArray array = open_shaped(path, shape, NpyElements::booleans);
  std::vector<std::uint8_t> values(array.header.count);
  const std::uint64_t begin = array.header.data_offset;
  array.source->read(begin, begin + array.header.data_bytes(), true, [&](std::span<const std::byte> bytes) {
    for_each_in_c_order(array.header, [&](std::ptrdiff_t n, std::ptrdiff_t from) {
      values[n] = bytes[from] != std::byte{0} ? 1 : 0;
    });
  });
  return values;
}

NpyNumbers read_npy_numbers(const std::filesystem::path& path) {
  const NpyArray array = open_npy(path.string(), std::make_shared<FileSource>(path), NpyElements::any);
  const NpyHeader& header = array.header;
  std::vector<double> stored(header.count);
  double* out = stored.data();
  const auto take = [&](std::span<const std::byte> bytes) {
    const std::size_t size = header.element_size(), count = bytes.size() / size;
    if (header.dtype)
      convert(Encoding{*header.dtype, header.big_endian}, bytes.data(), static_cast<std::ptrdiff_t>(count),
              out);
    else
      for (std::size_t i = 0; i < count; ++i)
        out[i] = header.boolean ? (bytes[i] != std::byte{0} ? 1.0 : 0.0)
                                : integer_at(bytes.data() + i * size, *header.integer, header.big_endian);
    out += count;
  };
  if (header.count > 0)
    array.source->read(header.data_offset, header.data_offset + header.data_bytes(), false, take);
  return {header.shape, in_c_order(header, std::move(stored))};
}

}  // namespace kvreplay
