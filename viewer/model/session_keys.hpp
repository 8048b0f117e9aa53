#pragma once

#include "data/facts_table.hpp"
#include "data/json_fields.hpp"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <cstdint>
#include <limits>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

namespace kvreplay::viewer {

/// Reads an object key by key. What is bad leaves the default in place and a remark; keys that nobody asked
/// for become remarks at the end.
class Keys {
 public:
  using Json = nlohmann::json;

  /// Without remarks.
  explicit Keys(const Json& json) : Keys(json, "", ignored_) {}
  Keys(const Json& json, std::string where, std::vector<std::string>& remarks)
      : where_(std::move(where)), remarks_(remarks) {
    if (json.is_object())
      object_ = json;
    else
      remark(where_, "an object", json);
  }
  ~Keys() {
    for (const auto& item : object_.items())
      if (asked_.count(item.key()) == 0)
        remarks_.push_back(fmt::format("{}: unknown key {}", where_, json_text(item.key())));
  }
  Keys(const Keys&) = delete;
  Keys& operator=(const Keys&) = delete;

  /// Null where the key is missing or null.
  const Json* at(const std::string& key) {
    asked_.insert(key);
    const auto found = object_.find(key);
    return found == object_.end() || found->is_null() ? nullptr : &*found;
  }
  /// A value of one kind, null where it is missing; of another kind there is a remark.
  const Json* at(const std::string& key, const char* expected, bool (Json::*is)() const noexcept) {
    const Json* found = at(key);
    if (found == nullptr || (found->*is)()) return found;
    bad(key, expected, *found);
    return nullptr;
  }
  std::string where(const std::string& key) const { return where_ + "." + key; }
  void bad(const std::string& key, const char* expected, const Json& found) {
    remark(where(key), expected, found);
  }

  void read(const std::string& key, bool& into) {
    if (const Json* found = at(key, "true or false", &Json::is_boolean)) into = found->get<bool>();
  }
  void read(const std::string& key, std::optional<bool>& into) {
    if (const Json* found = at(key, "true or false", &Json::is_boolean)) into = found->get<bool>();
  }
  void read(const std::string& key, std::string& into) {
    if (const Json* found = at(key, "a text", &Json::is_string)) into = found->get<std::string>();
  }
  template <class Number>
  void read(const std::string& key, Number& into, Number least, Number most) {
    const Json* json = at(key);
    if (json == nullptr) return;
    bool fits = false;
    if constexpr (std::is_integral_v<Number>) {
      // Numbers beyond int64 are stored unsigned.
      fits = json->is_number_integer() &&
             (!json->is_number_unsigned() || json->get<std::uint64_t>() <= kMostInteger) &&
             json->get<std::int64_t>() >= static_cast<std::int64_t>(least) &&
             json->get<std::int64_t>() <= static_cast<std::int64_t>(most);
    } else {
      fits = json->is_number() && json->get<double>() >= least && json->get<double>() <= most;
    }
    if (fits)
      into = json->get<Number>();
    else
      remark(where(key), fmt::format("a number from {} to {}", least, most), *json);
  }
  /// `into` is a value that `named` gives an optional of, or an optional one.
  template <class Value, class Named>
  void read_name(const std::string& key, Value& into, Named named) {
    const Json* found = at(key);
    if (found == nullptr) return;
    if (const auto value = found->is_string() ? named(found->get_ref<const std::string&>()) : std::nullopt)
      into = *value;
    else
      bad(key, "a known name", *found);
  }
  template <class Value, class Facts, std::size_t N>
  void read(const std::string& key, Value& into, const FactsTable<Facts, N>& table) {
    read_name(key, into, [&](const std::string& name) { return table.named(name); });
  }
  void read(const std::string& key, std::optional<Index>& into) {
    if (at(key) == nullptr) return;
    Index index = -1;
    read(key, index, Index{0}, kMostIndex);
    if (index >= 0) into = index;
  }

  static constexpr Index kMostIndex = std::numeric_limits<Index>::max();

 private:
  static constexpr std::uint64_t kMostInteger = std::numeric_limits<std::int64_t>::max();
  void remark(const std::string& where, std::string_view expected, const Json& found) {
    remarks_.push_back(fmt::format("{}: expected {}, found {}", where, expected, json_text(found)));
  }

  std::vector<std::string> ignored_;
  std::string where_;
  std::vector<std::string>& remarks_;
  Json object_ = Json::object();
  std::set<std::string> asked_;
};

}  // namespace kvreplay::viewer
