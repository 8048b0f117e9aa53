#pragma once

#include "data/dtype.hpp"

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace kvreplay {

/// Element types that a reader accepts: floating point numbers of a tensor; booleans only; or any numbers,
/// integers and booleans included.
enum class NpyElements { numbers, booleans, any };

struct NpyInteger {
  std::size_t bytes = 1;  ///< 1, 2, 4 or 8
  bool is_signed = true;
};

/// Contents of a `.npy` header (NumPy's NEP 1; format versions 1.0, 2.0 and 3.0).
struct NpyHeader {
  std::string descr;           ///< the dtype as written: "<f2", "|V2", ...
  std::optional<Dtype> dtype;  ///< empty for uint16, whose bits only the manifest can name, and for booleans
  bool boolean = false;
  std::optional<NpyInteger> integer;  ///< only where any numbers are taken
  bool big_endian = false;
  bool fortran_order = false;
  std::vector<std::ptrdiff_t> shape;  ///< every extent at least 1; 0 where any numbers are taken
  std::ptrdiff_t count = 1;           ///< the product of `shape`
  std::uint64_t data_offset = 0;      ///< where the elements begin

  std::size_t element_size() const {
    return boolean ? 1 : integer ? integer->bytes : dtype ? size_of(*dtype) : 2;
  }
  std::uint64_t data_bytes() const { return static_cast<std::uint64_t>(count) * element_size(); }
};

/// As many bytes as it takes to know the length of the header.
inline constexpr std::size_t npy_prefix_bytes = 12;

/// The length of prefix and header together, from the file's first bytes (npy_prefix_bytes of them, or all if
/// it has fewer). Throws InputError(where, ...) unless they begin a `.npy` of `total_bytes` bytes.
std::size_t npy_header_bytes(std::span<const std::byte> prefix, std::uint64_t total_bytes,
                             const std::string& where);

/// Parses a header from the bytes counted above and checks that elements of its shape are exactly what
/// `total_bytes` leaves. Throws InputError(where, ...) for anything else: objects, structures, overflow, and
/// integers and empty extents unless any numbers are taken.
NpyHeader parse_npy_header(std::span<const std::byte> header, std::uint64_t total_bytes,
                           const std::string& where, NpyElements elements = NpyElements::numbers);

/// Parses a header without comparing it with the file's size: the file may be cut short.
NpyHeader parse_npy_declaration(std::span<const std::byte> header, const std::string& where,
                                NpyElements elements = NpyElements::numbers);

/// "[4, 1024, 64]"
std::string shape_text(std::span<const std::ptrdiff_t> shape);

}  // namespace kvreplay
