#pragma once

#include "data/dump.hpp"

#include <nlohmann/json.hpp>

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace kvreplay {

/// Objects keep their keys as they were written.
using Json = nlohmann::ordered_json;

/// Parses JSON. Throws InputError(where, ...) with the line and column of the fault, also for what is nested
/// more than 64 deep (whoever walks it may recurse), for a key that an object has twice, and for more than
/// 10000 of them. Half a surrogate pair, as Python writes bytes that are no text, becomes U+FFFD.
Json parse_json(std::string_view text, const std::string& where);
/// Parses JSON that must be an object.
Json parse_json_object(std::string_view text, const std::string& where);

/// A value as messages show it: short, on one line.
std::string json_text(const Json& value);

/// Reads typed values from a JSON object. Absent and null are the same; another type or range is an
/// InputError that names the object, the key, what was expected and what was found.
class JsonFields {
 public:
  JsonFields(const Json& object, std::string where) : object_(object), where_(std::move(where)) {}

  /// The object's keys that are none of `known`, in their order.
  std::vector<std::string> keys_beside(std::span<const std::string_view> known) const;
  /// Throws InputError for an unknown key; `advice` goes behind it.
  [[noreturn]] void refuse_key(const std::string& key, std::string_view advice) const;
  /// refuse_key() of the first that is none of `known`.
  void check_keys(std::span<const std::string_view> known) const;

  /// The value, or null where the key is absent.
  const Json& at(const char* key) const;
  std::string where(const char* key) const { return where_ + ": " + key; }

  std::optional<std::string> text(const char* key) const;
  std::optional<bool> boolean(const char* key) const;
  std::optional<Index> positive_integer(const char* key) const;
  std::optional<double> positive_number(const char* key) const;
  std::optional<JsonFields> object(const char* key) const;
  /// Finite, non-negative numbers where `at_least_0`, else just finite ones.
  std::vector<double> numbers(const Json& list, const std::string& where, bool at_least_0) const;

 private:
  template <class T, class Take>
  std::optional<T> read(const char* key, const char* expected, const Take& take) const;

  const Json& object_;
  std::string where_;
};

/// A whole number of at least 1 that fits an Index.
std::optional<Index> as_positive_index(const Json& value);

}  // namespace kvreplay
