#include "data/npy_read.hpp"

#include "data/error.hpp"
#include "data/npy_array.hpp"
#include "data/npz.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <string_view>

namespace kvreplay {
namespace {

NpyArray open_shaped(const std::filesystem::path& path, std::span<const std::ptrdiff_t> shape,
                     NpyElements elements) {
  NpyArray array = open_npy(path.string(), std::make_shared<FileSource>(path), elements);
  if (!std::equal(shape.begin(), shape.end(), array.header.shape.begin(), array.header.shape.end()))
    throw InputError(array.where, "shape " + shape_text(shape), "shape " + shape_text(array.header.shape));
  return array;
}

struct Whole {
  bool negative;
  std::uint64_t magnitude;

  double value() const {
    const auto rounded = static_cast<double>(magnitude);
    return negative ? -rounded : rounded;
  }
};

/// One integer of `bytes` bytes, lowest first unless `big`.
Whole integer_at(const std::byte* in, NpyInteger kind, bool big) {
  std::uint64_t bits = 0;
  for (std::size_t b = 0; b < kind.bytes; ++b)
    bits = bits << 8 | static_cast<std::uint64_t>(in[big ? b : kind.bytes - 1 - b]);
  const std::size_t unused = 64 - 8 * kind.bytes;
  if (!kind.is_signed || bits << unused >> 63 == 0) return {false, bits};
  return {true, (0 - (bits << unused)) >> unused};
}

/// All elements, in C order: numbers, and booleans as 0 and 1. Throws InputError at an integer that no
/// float64 is, unless they may be `rounded`.
std::vector<double> elements_of(const NpyArray& array, bool rounded) {
  const NpyHeader& header = array.header;
  std::vector<double> stored(header.count);
  double* out = stored.data();
  const auto take = [&](std::span<const std::byte> bytes) {
    const std::size_t size = header.element_size(), count = bytes.size() / size;
    if (header.dtype)
      convert(Encoding{*header.dtype, header.big_endian}, bytes.data(), static_cast<std::ptrdiff_t>(count),
              out);
    else
      for (std::size_t i = 0; i < count; ++i) {
        const Whole whole = header.boolean
                                ? Whole{false, bytes[i] != std::byte{0} ? 1u : 0u}
                                : integer_at(bytes.data() + i * size, *header.integer, header.big_endian);
        if (!rounded && !fits_float64(whole.magnitude))
          throw InputError(array.where, "integers that float64 tells apart, as all up to 2^53",
                           fmt::format("{}{}", whole.negative ? "-" : "", whole.magnitude));
        out[i] = whole.value();
      }
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
  return elements_of(array, /*rounded=*/false);
}

std::vector<std::uint8_t> read_npy_bool(const std::filesystem::path& path,
                                        std::span<const std::ptrdiff_t> shape) {
  const std::vector<double> values = elements_of(open_shaped(path, shape, NpyElements::booleans), true);
  return {values.begin(), values.end()};
}

NpyNumbers read_npy_numbers(const std::filesystem::path& path) {
  const NpyArray array = open_npy(path.string(), std::make_shared<FileSource>(path), NpyElements::any);
  return {array.header.shape, elements_of(array, /*rounded=*/true)};
}

std::vector<std::pair<std::string, NpyNumbers>> read_npz_numbers(const std::filesystem::path& path) {
  constexpr std::string_view kEnding = ".npy";
  const NpzArchive archive = NpzArchive::open(path);
  std::vector<std::pair<std::string, NpyNumbers>> found;
  for (std::size_t m = 0; m < archive.members().size(); ++m) {
    std::string name = archive.members()[m].name;
    if (!name.ends_with(kEnding)) continue;
    const NpyArray array =
        open_npy(fmt::format("{}: {}", path.string(), name), archive.source(m), NpyElements::any);
    name.resize(name.size() - kEnding.size());
    found.emplace_back(std::move(name), NpyNumbers{array.header.shape, elements_of(array, /*rounded=*/true)});
  }
  return found;
}

}  // namespace kvreplay
