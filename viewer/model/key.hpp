#pragma once

#include <bit>
#include <compare>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <ranges>
#include <string>
#include <string_view>
#include <type_traits>

namespace kvreplay::viewer {

/// The values that something depends on, in order: numbers, enumerators, texts, lists, optional ones and
/// other keys, whose values it takes over. Two keys are equal where all values are; no text is taken for two,
/// and none for a number.
class Key {
 public:
  Key() = default;
  template <class... Values>
  Key(const Values&... values)  // NOLINT(google-explicit-constructor): a text is a key of one value
      requires(sizeof...(Values) > 0) {
    (add(values), ...);
  }

  bool empty() const { return bytes_.empty(); }
  /// True if this key's first values are those of `other`.
  bool begins_with(const Key& other) const { return bytes_.starts_with(other.bytes_); }
  std::size_t hash() const { return std::hash<std::string>()(bytes_); }
  auto operator<=>(const Key&) const = default;

 private:
  template <class Value>
  void add(const Value& value) {
    if constexpr (std::same_as<Value, Key>) {
      bytes_ += value.bytes_;
    } else if constexpr (std::convertible_to<const Value&, std::string_view>) {
      const std::string_view text = value;
      put('t', text.size());
      bytes_ += text;
    } else if constexpr (std::floating_point<Value>) {
      put('f', std::bit_cast<std::uint64_t>(static_cast<double>(value)));
    } else if constexpr (std::integral<Value> || std::is_enum_v<Value>) {
      put('i', static_cast<std::uint64_t>(value));
    } else if constexpr (std::ranges::range<Value>) {
      put('l', std::ranges::size(value));
      for (const auto& each : value) add(each);
    } else {
      put('o', value.has_value());
      if (value) add(*value);
    }
  }
  void put(char kind, std::uint64_t number) {
    bytes_ += kind;
    for (int byte = 0; byte < 8; ++byte) bytes_ += static_cast<char>(number >> 8 * byte & 0xFFU);
  }

  // Each value says its kind and its size before its bytes: one key begins with another only at a value's
  // end.
  std::string bytes_;
};

}  // namespace kvreplay::viewer

template <>
struct std::hash<kvreplay::viewer::Key> {
  std::size_t operator()(const kvreplay::viewer::Key& key) const { return key.hash(); }
};
