#pragma once

#include "viewer/model/session_keys.hpp"
#include "viewer/questions/policy_settings.hpp"

#include <nlohmann/json.hpp>

#include <optional>
#include <string>
#include <type_traits>

namespace kvreplay::viewer {

/// Fields of a panel's settings, each named once: a session is written of them, or read into them. What is
/// missing or bad in a session leaves its field as it is.
class SessionFields {
 public:
  /// Writes.
  SessionFields() = default;
  /// Reads.
  explicit SessionFields(const nlohmann::json& session) { keys_.emplace(session); }
  bool reads() const { return keys_.has_value(); }
  /// Null where the key is missing, and while writing.
  const nlohmann::json* found(const char* key) { return keys_ ? keys_->at(key) : nullptr; }
  nlohmann::json written = nlohmann::json::object();

  /// A truth value, or a text; an optional one is not written where it is empty.
  template <class Value>
  void field(const char* key, Value& value) {
    if (keys_)
      keys_->read(key, value);
    else if constexpr (std::is_same_v<Value, std::optional<bool>>)
      write(key, value);
    else
      written[key] = value;
  }
  template <class Number>
  void number(const char* key, Number& value, Number least, Number most) {
    if (keys_)
      keys_->read(key, value, least, most);
    else
      written[key] = value;
  }
  /// By its name_of(); `named` gives the value of a name, if any.
  template <class Value, class Named>
  void name(const char* key, Value& value, Named named) {
    if (keys_)
      keys_->read_name(key, value, named);
    else
      written[key] = name_of(value);
  }
  template <class Value, class Named>
  void name(const char* key, std::optional<Value>& value, Named named) {
    const nlohmann::json* text = found(key);
    if (text != nullptr && text->is_string()) {
      if (const std::optional<Value> known = named(text->get<std::string>())) value = known;
    } else if (!keys_ && value) {
      written[key] = name_of(*value);
    }
  }
  /// An object of its own, whose fields `keep` names.
  template <class Keep>
  void object(const char* key, Keep keep) {
    SessionFields inner;
    if (const nlohmann::json* json = found(key)) inner.keys_.emplace(*json);
    if (keys_ && !inner.keys_) return;
    keep(inner);
    if (!keys_) written[key] = inner.written;
  }
  /// Part with its own keep(), or with save() and load().
  template <class Part>
  void part(const char* key, Part& part) {
    if constexpr (requires { part.keep(*this); })
      object(key, [&](SessionFields& fields) { part.keep(fields); });
    else if (!keys_)
      written[key] = part.save();
    else if (const nlohmann::json* json = found(key))
      part.load(*json);
  }
  /// Options; their defaults where they cannot be read.
  template <class Settings>
  void settings(const char* key, Settings& settings) {
    if (!keys_)
      written[key] = to_json(settings);
    else if (const nlohmann::json* json = found(key))
      read_settings({{key, *json}}, key, settings);
  }

 private:
  template <class Value>
  void write(const char* key, const std::optional<Value>& value) {
    if (value) written[key] = *value;
  }
  std::optional<Keys> keys_;
};

/// A name's value in a table of facts, for SessionFields::name().
template <class Table>
auto in_table(const Table& table) {
  return [&table](const std::string& name) { return table.named(name); };
}

}  // namespace kvreplay::viewer
