#include "data/npy_read.hpp"

#include "data/error.hpp"
#include "data/npy_array.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <memory>

namespace kvreplay {
namespace {

NpyArray open_shaped(const std::filesystem::path& path, std::span<const std::ptrdiff_t> shape,
                     NpyElements elements) {
  NpyArray array = open_npy(path.string(), std::make_shared<FileSource>(path), elements);
  if (!std::equal(shape.begin(), shape.end(), array.header.shape.begin(), array.header.shape.end()))
    throw InputError(array.where, "shape " + shape_text(shape), "shape " + shape_text(array.header.shape));
  return array;
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

/// All elements, in C order: numbers, and booleans as 0 and 1.
std::vector<double> elements_of(const NpyArray& array) {
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
  if (!header.fortran_order) return stored;
  std::vector<double> values;
  values.reserve(stored.size());
  in_c_order(header.shape, strides_of(header.shape, true),
             [&](std::ptrdiff_t place) { values.push_back(stored[place]); });
  return values;
}

}  // namespace

std::vector<std::ptrdiff_t> npy_shape(const std::filesystem::path& path) {
  return open_npy(path.string(), std::make_shared<FileSource>(path), NpyElements::any).header.shape;
}

std::vector<double> read_npy(const std::filesystem::path& path, std::span<const std::ptrdiff_t> shape) {
  const NpyArray array = open_shaped(path, shape, NpyElements::any);
  if (array.header.boolean) throw InputError(array.where, "numbers", "booleans");
  return elements_of(array);
}

std::vector<std::uint8_t> read_npy_bool(const std::filesystem::path& path,
                                        std::span<const std::ptrdiff_t> shape) {
  const std::vector<double> values = elements_of(open_shaped(path, shape, NpyElements::booleans));
  return {values.begin(), values.end()};
}

NpyNumbers read_npy_numbers(const std::filesystem::path& path) {
  const NpyArray array = open_npy(path.string(), std::make_shared<FileSource>(path), NpyElements::any);
  return {array.header.shape, elements_of(array)};
}

}  // namespace kvreplay
