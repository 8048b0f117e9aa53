#include "data/npy/npy_bytes.hpp"

#include "data/npy/half.hpp"

#include <fmt/format.h>

#include <cstdint>
#include <cstring>

namespace kvreplay {
namespace {

template <class Stored, class T, class Convert>
void append_all(std::span<const T> values, std::vector<std::byte>& bytes, Convert convert) {
  bytes.resize(values.size() * sizeof(Stored));
  for (std::size_t i = 0; i < values.size(); ++i) {
    const Stored stored = convert(values[i]);
    std::memcpy(bytes.data() + i * sizeof stored, &stored, sizeof stored);
  }
}

template <class T>
std::vector<std::byte> encode_all(Dtype dtype, std::span<const T> values) {
  std::vector<std::byte> bytes;
  switch (dtype) {
    case Dtype::f16:
      append_all<std::uint16_t>(values, bytes, [](T x) { return float_to_half(static_cast<float>(x)); });
      break;
    case Dtype::bf16:
      append_all<std::uint16_t>(values, bytes, [](T x) { return float_to_bfloat(static_cast<float>(x)); });
      break;
    case Dtype::f32:
      append_all<float>(values, bytes, [](T x) { return static_cast<float>(x); });
      break;
    case Dtype::f64:
      append_all<double>(values, bytes, [](T x) { return static_cast<double>(x); });
      break;
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

std::string_view npy_descr(Dtype dtype) {
  switch (dtype) {
    case Dtype::f16:
      return "<f2";
    case Dtype::bf16:
      return "|V2";
    case Dtype::f32:
      return "<f4";
    case Dtype::f64:
      return "<f8";
  }
  return "";
}

std::vector<std::byte> encode(Dtype dtype, std::span<const float> values) {
  return encode_all(dtype, values);
}
std::vector<std::byte> encode(Dtype dtype, std::span<const double> values) {
  return encode_all(dtype, values);
}

}  // namespace kvreplay
