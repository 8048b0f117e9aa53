#pragma once

#include "data/npy_write.hpp"

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

namespace kvreplay {

/// An array of float32 values that are rounded to `dtype` first.
inline void write_npy_as(AtomicFile file, Dtype dtype, std::span<const std::size_t> shape,
                         std::span<const float> values) {
  file.write(npy_header(kDtypes[dtype].descr, shape));
  file.write(encode(dtype, values));
  file.commit();
}

}  // namespace kvreplay

namespace kvreplay::test {

/// A `.npy` put together byte by byte, sharing nothing with the writer that is under test.
struct NpyBuilder {
  std::string descr = "<f4";
  std::string shape = "(2, 3)";
  std::string order = "False";
  int version = 1;
  std::string data;

  std::string dict() const {
    return "{'descr': '" + descr + "', 'fortran_order': " + order + ", 'shape': " + shape + ", }";
  }
  std::string bytes() const { return with_dict(dict()); }
  std::string with_dict(std::string text) const {
    text += '\n';
    std::string out = "\x93NUMPY";
    out += static_cast<char>(version);
    out += '\0';
    const std::size_t length_bytes = version == 1 ? 2 : 4;
    for (std::size_t i = 0; i < length_bytes; ++i) out += static_cast<char>(text.size() >> (8 * i) & 0xff);
    return out + text + data;
  }
};

/// Appends the bytes of a value, lowest first or (big) highest first.
template <class Bits>
void append_bits(std::string& out, Bits bits, bool big = false) {
  for (std::size_t i = 0; i < sizeof(Bits); ++i) {
    out +=
        static_cast<char>(static_cast<std::uint64_t>(bits) >> (8 * (big ? sizeof(Bits) - 1 - i : i)) & 0xff);
  }
}
inline void append_value(std::string& out, float value, bool big = false) {
  append_bits(out, std::bit_cast<std::uint32_t>(value), big);
}
inline void append_value(std::string& out, double value, bool big = false) {
  append_bits(out, std::bit_cast<std::uint64_t>(value), big);
}

inline std::span<const std::byte> as_span(const std::string& bytes) {
  return std::as_bytes(std::span(bytes));
}

}  // namespace kvreplay::test
