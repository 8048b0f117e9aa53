#include "data/npy_write.hpp"

#include "data/dtype.hpp"

#include <fmt/format.h>

#include <bit>
#include <cassert>
#include <cstring>
#include <utility>

namespace kvreplay {
namespace {

static_assert(std::endian::native == std::endian::little, "arrays are written as they stand in memory");

template <class T>
void write_array(AtomicFile file, std::string_view descr, std::span<const std::size_t> shape,
                 std::span<const T> values) {
  [[maybe_unused]] std::size_t count = 1;
  for (const std::size_t extent : shape) count *= extent;
  assert(count == values.size());
  const std::string header = npy_header(descr, shape);
  file.write(header);
  file.write(std::as_bytes(values));
  file.commit();
}

template <class Stored, class T, class Convert>
std::vector<std::byte> stored(std::span<const T> values, Convert convert) {
  std::vector<std::byte> bytes(values.size() * sizeof(Stored));
  for (std::size_t i = 0; i < values.size(); ++i) {
    const Stored element = convert(values[i]);
    std::memcpy(bytes.data() + i * sizeof element, &element, sizeof element);
  }
  return bytes;
}

}  // namespace

std::string npy_header(std::string_view descr, std::span<const std::size_t> shape) {
  std::string dict = fmt::format("{{'descr': '{}', 'fortran_order': False, 'shape': ({}{}), }}", descr,
                                 fmt::join(shape, ", "), shape.size() == 1 ? "," : "");
  constexpr std::size_t lead = 10, alignment = 64;
  dict.append((alignment - (lead + dict.size() + 1) % alignment) % alignment, ' ');
  dict += '\n';
  std::string header("\x93NUMPY\x01\x00", 8);
  header += static_cast<char>(dict.size() & 0xff);
  header += static_cast<char>(dict.size() >> 8);
  return header + dict;
}

template <class T>
std::vector<std::byte> encode(Dtype dtype, std::span<const T> values) {
  switch (dtype) {
    case Dtype::f16:
      return stored<std::uint16_t>(values, [](T x) { return float_to_half(static_cast<float>(x)); });
    case Dtype::bf16:
      return stored<std::uint16_t>(values, [](T x) { return float_to_bfloat(static_cast<float>(x)); });
    case Dtype::f32:
      return stored<float>(values, [](T x) { return static_cast<float>(x); });
    case Dtype::f64:
      return stored<double>(values, [](T x) { return static_cast<double>(x); });
  }
  return {};
}
template decltype(encode<float>) encode<float>;
template decltype(encode<double>) encode<double>;

void write_npy(AtomicFile file, std::span<const std::size_t> shape, std::span<const float> values) {
  write_array(std::move(file), kDtypes[Dtype::f32].descr, shape, values);
}

void write_npy(AtomicFile file, std::span<const std::size_t> shape, std::span<const double> values) {
  write_array(std::move(file), kDtypes[Dtype::f64].descr, shape, values);
}

void write_npy(AtomicFile file, std::span<const std::size_t> shape, std::span<const std::int32_t> values) {
  write_array(std::move(file), "<i4", shape, values);
}

void write_npy(AtomicFile file, std::span<const std::size_t> shape, std::span<const std::byte> values) {
  write_array(std::move(file), "|u1", shape, values);
}

void write_npy_bool(AtomicFile file, std::span<const std::size_t> shape,
                    std::span<const std::uint8_t> values) {
  write_array(std::move(file), "|b1", shape, values);
}

}  // namespace kvreplay
