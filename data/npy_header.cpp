#include "data/npy_header.hpp"

#include "data/error.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cctype>
#include <cstring>
#include <limits>
#include <string_view>
#include <utility>

namespace kvreplay {
namespace {

constexpr std::string_view magic = "\x93NUMPY";
// NumPy itself refuses headers above 10000 bytes by default; a tensor's has about 120.
constexpr std::size_t longest_header = std::size_t{1} << 20;

/// Quotes arbitrary bytes for a message: one line, printable, short.
std::string printable(std::string_view text) {
  std::string shown;
  for (const char c : text.substr(0, 40)) {
    shown += std::isprint(static_cast<unsigned char>(c)) ? c : '?';
  }
  return text.size() > 40 ? shown + "..." : shown;
}

std::string quote(std::string_view text) { return fmt::format("'{}'", printable(text)); }

/// Reads the one Python literal that NumPy writes: a dict of descr, fortran_order and shape, each once, in
/// any order.
class HeaderParser {
 public:
  HeaderParser(std::string_view text, const std::string& where) : rest_(text), where_(where) {}

  NpyHeader parse() {
    NpyHeader header;
    bool seen_descr = false, seen_order = false, seen_shape = false;
    expect('{', "a dict");
    while (!accept('}')) {
      const std::string key = quoted("a key");
      expect(':', "':' after a key");
      if (key == "descr" && !seen_descr) {
        seen_descr = true;
        header.descr = descr();
      } else if (key == "fortran_order" && !seen_order) {
        seen_order = true;
        header.fortran_order = boolean();
      } else if (key == "shape" && !seen_shape) {
        seen_shape = true;
        header.shape = shape();
      } else {
        fail("the keys descr, fortran_order and shape once each", quote(key));
      }
      if (!accept(',')) {
        expect('}', "',' or '}' after a value");
        break;
      }
    }
    skip_space();
    if (!rest_.empty()) fail("nothing behind the header's dict", quote(rest_));
    if (!seen_descr || !seen_order || !seen_shape) {
      fail("a header with descr, fortran_order and shape",
           !seen_descr ? "no descr" : (!seen_order ? "no fortran_order" : "no shape"));
    }
    return header;
  }

 private:
  [[noreturn]] void fail(const std::string& expected, const std::string& found) const {
    throw InputError(where_, expected, found);
  }

  void skip_space() {
    const std::size_t at = rest_.find_first_not_of(" \t\n\r");
    rest_.remove_prefix(std::min(at, rest_.size()));
  }

  bool accept(char c) {
    skip_space();
    if (rest_.empty() || rest_.front() != c) return false;
    rest_.remove_prefix(1);
    return true;
  }

  void expect(char c, const std::string& expected) {
    if (!accept(c)) fail(expected + " in the .npy header", rest_.empty() ? "its end" : quote(rest_));
  }

  std::string quoted(const std::string& expected) {
    skip_space();
    if (rest_.empty() || (rest_.front() != '\'' && rest_.front() != '"')) {
      fail(expected + " in quotes in the .npy header", rest_.empty() ? "its end" : quote(rest_));
    }
    const std::size_t end = rest_.find(rest_.front(), 1);
    if (end == std::string_view::npos) fail("a closing quote in the .npy header", quote(rest_));
    const std::string text(rest_.substr(1, end - 1));
    rest_.remove_prefix(end + 1);
    return text;
  }

  std::string descr() {
    skip_space();
    if (!rest_.empty() && rest_.front() == '[') {
      fail("float16, float32, float64 or bfloat16 elements", "a structured dtype, " + printable(rest_));
    }
    return quoted("descr");
  }

  bool boolean() {
    skip_space();
    for (const auto& [word, value] :
         {std::pair{std::string_view("True"), true}, {std::string_view("False"), false}}) {
      if (rest_.substr(0, word.size()) == word) {
        rest_.remove_prefix(word.size());
        return value;
      }
    }
    fail("fortran_order True or False", quote(rest_));
  }

  std::vector<std::ptrdiff_t> shape() {
    std::vector<std::ptrdiff_t> extents;
    expect('(', "a tuple as shape");
    while (!accept(')')) {
      extents.push_back(extent());
      if (!accept(',')) {
        expect(')', "',' or ')' in shape");
        break;
      }
    }
    return extents;
  }

  std::ptrdiff_t extent() {
    skip_space();
    std::ptrdiff_t value = 0;
    std::size_t digits = 0;
    for (; digits < rest_.size() && rest_[digits] >= '0' && rest_[digits] <= '9'; ++digits) {
      if (__builtin_mul_overflow(value, 10, &value) ||
          __builtin_add_overflow(value, rest_[digits] - '0', &value)) {
        fail("a shape that fits in memory", printable(rest_));
      }
    }
    // No number of Python's begins with a zero: one bit makes it of a blank.
    if (digits == 0 || (digits > 1 && rest_.front() == '0'))
      fail("whole numbers as shape", rest_.empty() ? "the header's end" : quote(rest_));
    rest_.remove_prefix(digits);
    if (!rest_.empty() && rest_.front() == 'L') rest_.remove_prefix(1);  // written by Python 2
    return value;
  }

  std::string_view rest_;
  const std::string& where_;
};

/// A dtype's name in two parts: byte order ('<', '>', or this machine's), and kind and size, "f4".
struct ElementName {
  bool big_endian = false;
  std::string_view type;
};

/// Parses a dtype as NumPy does: "<f4", "=f4", "|f4", "f4" and "float32" are equal.
ElementName element_name(std::string_view descr) {
  constexpr std::pair<std::string_view, std::string_view> kWords[] = {
      {"float16", "f2"}, {"half", "f2"},   {"float32", "f4"},  {"single", "f4"}, {"float64", "f8"},
      {"double", "f8"},  {"float", "f8"},  {"bfloat16", "V2"}, {"bool", "b1"},   {"?", "b1"},
      {"int8", "i1"},    {"int16", "i2"},  {"int32", "i4"},    {"int64", "i8"},  {"int", "i8"},
      {"uint8", "u1"},   {"uint16", "u2"}, {"uint32", "u4"},   {"uint64", "u8"}};
  constexpr bool kBig = std::endian::native == std::endian::big;
  ElementName name{kBig, descr};
  const bool ordered = descr.starts_with('<') || descr.starts_with('>');
  if (ordered) name.big_endian = descr.front() == '>';
  if (ordered || descr.starts_with('=') || descr.starts_with('|')) name.type.remove_prefix(1);
  for (const auto& [word, type] : kWords)
    if (name.type == word && (word == "?" || !ordered)) name.type = type;
  return name;
}

std::string kind_text(std::string_view type) {
  const bool sized = type.size() > 1 && std::isdigit(static_cast<unsigned char>(type[1])) != 0;
  switch (sized || type == "O" ? type.front() : '\0') {
    case 'f':
      return "floating point numbers";
    case 'i':
      return "integers";
    case 'u':
      return "unsigned integers";
    case 'b':
      return "booleans";
    case 'O':
      return "Python objects";
    case 'c':
      return "complex numbers";
    case 'S':
    case 'U':
      return "strings";
    case 'V':
      return "raw bytes";
    default:
      return "no dtype of a dump";
  }
}

/// "i4", "u1", ...
std::optional<NpyInteger> integer_of(std::string_view type) {
  constexpr std::string_view kSizes = "1248";
  if (type.size() != 2 || (type[0] != 'i' && type[0] != 'u') ||
      kSizes.find(type[1]) == std::string_view::npos)
    return std::nullopt;
  return NpyInteger{static_cast<std::size_t>(type[1] - '0'), type[0] == 'i'};
}

void read_descr(NpyHeader& header, const std::string& where, NpyElements elements) {
  const ElementName name = element_name(header.descr);
  const auto found = [&] {
    return fmt::format("dtype '{}' ({})", printable(header.descr), kind_text(name.type));
  };
  const bool boolean = name.type == "b1";
  header.big_endian = name.big_endian;
  if (elements == NpyElements::any) {
    header.boolean = boolean;
    header.integer = integer_of(name.type);
    if (header.boolean || header.integer) return;
  }
  if (elements == NpyElements::booleans) {
    if (!boolean) throw InputError(where, "booleans", found());
    header.boolean = true;
    return;
  }
  if (name.type == "f2") {
    header.dtype = Dtype::f16;
  } else if (name.type == "f4") {
    header.dtype = Dtype::f32;
  } else if (name.type == "f8") {
    header.dtype = Dtype::f64;
  } else if (name.type == "V2" && header.descr.front() != '>') {
    header.dtype = Dtype::bf16;
  } else if (name.type != "u2") {
    throw InputError(where, "float16 ('<f2'), float32 ('<f4'), float64 ('<f8') or bfloat16 ('|V2') elements",
                     found());
  }
}

}  // namespace

std::size_t npy_header_bytes(std::span<const std::byte> prefix, std::uint64_t total_bytes,
                             const std::string& where) {
  const auto byte = [&](std::size_t i) { return static_cast<std::uint32_t>(prefix[i]); };
  if (total_bytes == 0) throw InputError(where, "a .npy array", "an empty file");
  if (prefix.size() < magic.size() || std::memcmp(prefix.data(), magic.data(), magic.size()) != 0) {
    std::string found = fmt::format("{} bytes that begin with", total_bytes);
    for (std::size_t i = 0; i < std::min(prefix.size(), magic.size()); ++i)
      found += fmt::format(" {:02x}", byte(i));
    throw InputError(where, "a .npy array, which begins with 93 4e 55 4d 50 59", found);
  }
  if (prefix.size() < 10)
    throw InputError(where, "a .npy header", fmt::format("a file cut after {} bytes", total_bytes));
  const std::uint32_t major = byte(6), minor = byte(7);
  if (major < 1 || major > 3 || minor != 0) {
    throw InputError(where, ".npy format version 1.0, 2.0 or 3.0",
                     fmt::format("version {}.{}", major, minor));
  }
  std::uint64_t length = byte(8) | byte(9) << 8;
  std::uint64_t lead = 10;
  if (major >= 2) {
    if (prefix.size() < 12)
      throw InputError(where, "a .npy header", fmt::format("a file cut after {} bytes", total_bytes));
    length |= std::uint64_t{byte(10) | byte(11) << 8} << 16;
    lead = 12;
  }
  if (length > longest_header || lead + length > total_bytes) {
    throw InputError(where, fmt::format("a .npy header within the file's {} bytes", total_bytes),
                     fmt::format("a header of {} bytes", length));
  }
  return lead + length;
}

NpyHeader parse_npy_declaration(std::span<const std::byte> header_bytes, const std::string& where,
                                NpyElements elements) {
  const std::size_t lead = static_cast<std::uint8_t>(header_bytes[6]) >= 2 ? 12 : 10;
  const std::string_view text(reinterpret_cast<const char*>(header_bytes.data()) + lead,
                              header_bytes.size() - lead);
  NpyHeader header = HeaderParser(text, where).parse();
  read_descr(header, where, elements);
  header.data_offset = header_bytes.size();
  for (const std::ptrdiff_t extent : header.shape) {
    if (extent == 0 && elements != NpyElements::any)
      throw InputError(where, "extents of at least 1", "shape " + shape_text(header.shape));
    if (__builtin_mul_overflow(header.count, extent, &header.count)) {
      throw InputError(where, "a shape that fits in memory", "shape " + shape_text(header.shape));
    }
  }
  return header;
}

NpyHeader parse_npy_header(std::span<const std::byte> header_bytes, std::uint64_t total_bytes,
                           const std::string& where, NpyElements elements) {
  NpyHeader header = parse_npy_declaration(header_bytes, where, elements);
  const std::uint64_t present = total_bytes - header.data_offset;
  if (header.count > std::numeric_limits<std::ptrdiff_t>::max() / 8 || header.data_bytes() != present) {
    throw InputError(where,
                     fmt::format("{} elements of {} bytes, as its shape {} says", header.count,
                                 header.element_size(), shape_text(header.shape)),
                     fmt::format("{} bytes behind the header", present));
  }
  return header;
}

std::string shape_text(std::span<const std::ptrdiff_t> shape) {
  constexpr std::size_t kMost = 8;
  if (shape.size() > kMost)
    return fmt::format("[{}, ...], {} axes", fmt::join(shape.first(kMost), ", "), shape.size());
  return fmt::format("[{}]", fmt::join(shape, ", "));
}

}  // namespace kvreplay
