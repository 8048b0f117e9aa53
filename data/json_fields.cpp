#include "data/json_fields.hpp"

#include "data/console.hpp"
#include "data/error.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdint>
#include <limits>
#include <set>
#include <system_error>
#include <utility>

namespace kvreplay {

namespace {

/// "line 3, column 7" of the byte behind `before`.
std::string place_behind(std::string_view before) {
  const auto line = 1 + std::count(before.begin(), before.end(), '\n');
  const std::size_t line_start = before.rfind('\n');
  const std::size_t column = before.size() - (line_start == std::string_view::npos ? 0 : line_start + 1) + 1;
  return fmt::format("line {}, column {}", line, column);
}

/// The number that "\\uXXXX" at `at` stands for; nothing where there is no such escape.
std::optional<unsigned> escaped_at(std::string_view text, std::size_t at) {
  if (text.size() < at + 6 || text[at] != '\\' || text[at + 1] != 'u') return std::nullopt;
  unsigned code = 0;
  const char* const end = text.data() + at + 6;
  const auto [stop, error] = std::from_chars(text.data() + at + 2, end, code, 16);
  return error == std::errc() && stop == end ? std::optional(code) : std::nullopt;
}

/// JSON whose escapes all stand for characters.
std::string without_half_surrogates(std::string_view text) {
  const auto half = [&](std::size_t at, unsigned first) {
    const auto code = escaped_at(text, at);
    return code && *code >= first && *code < first + 0x400;
  };
  std::string whole(text);
  for (std::size_t at = text.find('\\'); at < text.size(); at = text.find('\\', at)) {
    const bool high = half(at, 0xD800);
    if (high && half(at + 6, 0xDC00)) {
      at += 12;
    } else if (high || half(at, 0xDC00)) {
      whole.replace(at, 6, "\\uFFFD");
      at += 6;
    } else {
      at += 2;
    }
  }
  return whole;
}

}  // namespace

Json parse_json(std::string_view text, const std::string& where) {
  constexpr int kDeepest = 64;
  constexpr std::size_t kMostKeys = 10000;
  // The parser takes a zero byte for the end.
  if (const auto zero = text.find('\0'); zero != std::string_view::npos)
    throw InputError(where, "JSON", fmt::format("a zero byte at {}", place_behind(text.substr(0, zero))));
  std::vector<std::set<std::string>> keys;  // of the objects that are open
  std::string key;                          // the last one met
  const auto check = [&](int depth, Json::parse_event_t event, const Json& parsed) {
    using Event = Json::parse_event_t;
    if (event == Event::object_start) keys.emplace_back();
    if (event == Event::object_end) keys.pop_back();
    if ((event == Event::object_start || event == Event::array_start) && depth >= kDeepest)
      throw InputError(where, fmt::format("JSON nested at most {} deep", kDeepest), "deeper nesting");
    if (event != Event::key) return true;
    key = parsed.get<std::string>();
    if (keys.back().size() >= kMostKeys)  // an object finds its keys one by one
      throw InputError(where, fmt::format("objects of at most {} keys", kMostKeys), "more");
    if (!keys.back().insert(key).second) throw InputError(where, "every key once", json_text(key) + " twice");
    return true;
  };
  const bool escapes = text.find("\\u") != std::string_view::npos;
  const std::string whole = escapes ? without_half_surrogates(text) : "";
  try {
    return Json::parse(whole.empty() ? text : whole, check);
  } catch (const Json::parse_error& error) {
    if (text.empty()) throw InputError(where, "JSON", "an empty file");
    const std::string_view before = text.substr(0, error.byte > 0 ? error.byte - 1 : 0);
    for (const std::string_view number : {"NaN", "Infinity"})  // what Python's json writes
      if (text.substr(before.size()).starts_with(number))
        throw InputError(where, "JSON, whose numbers are finite",
                         fmt::format("{} at {}", number, place_behind(before)));
    throw InputError(where, "JSON", fmt::format("a syntax error at {}", place_behind(before)));
  } catch (const Json::exception&) {
    throw InputError(key.empty() ? where : where + ": " + key, "numbers within float64's range",
                     "one beyond it");
  }
}

Json parse_json_object(std::string_view text, const std::string& where) {
  Json parsed = parse_json(text, where);
  if (!parsed.is_object()) throw InputError(where, "a JSON object", json_text(parsed));
  return parsed;
}

std::string json_text(const Json& value) {
  constexpr std::size_t longest = 60;
  if (value.is_object()) return fmt::format("an object of {} keys", value.size());
  // dump() recurses: what is nested is counted only, lest a file of brackets exhaust the stack.
  const bool nested = value.is_array() && std::any_of(value.begin(), value.end(), [](const auto& element) {
                        return element.is_structured();
                      });
  if (value.is_array() && (nested || value.size() > 8))
    return fmt::format("a list of {} values", value.size());
  std::string text = value.dump(-1, ' ', true);
  if (text.size() > longest) text = text.substr(0, longest) + "...";
  return text;
}

std::optional<Index> as_positive_index(const Json& value) {
  if (value.is_number_unsigned()) {
    const auto number = value.get<std::uint64_t>();
    if (number >= 1 && number <= static_cast<std::uint64_t>(std::numeric_limits<Index>::max())) {
      return static_cast<Index>(number);
    }
  }
  return std::nullopt;
}

const Json& JsonFields::at(const char* key) const {
  static const Json null;
  const auto found = object_.find(key);
  return found == object_.end() ? null : *found;
}

std::vector<std::string> JsonFields::keys_beside(std::span<const std::string_view> known) const {
  std::vector<std::string> others;
  for (const auto& item : object_.items())
    if (std::find(known.begin(), known.end(), item.key()) == known.end()) others.push_back(item.key());
  return others;
}

void JsonFields::refuse_key(const std::string& key, std::string_view advice) const {
  throw InputError(fmt::format("{}: unknown key {}{}", where_, json_text(key), advice));
}

void JsonFields::check_keys(std::span<const std::string_view> known) const {
  const std::vector<std::string> others = keys_beside(known);
  if (others.empty()) return;
  const std::string near = did_you_mean(others.front(), {known.begin(), known.end()});
  refuse_key(others.front(), near.empty() ? fmt::format("; there are: {}", fmt::join(known, ", ")) : near);
}

template <class T, class Take>
std::optional<T> JsonFields::read(const char* key, const char* expected, const Take& take) const {
  const auto& value = at(key);
  if (value.is_null()) return std::nullopt;
  const std::optional<T> taken = take(value);
  if (!taken) throw InputError(where(key), expected, json_text(value));
  return taken;
}

std::optional<std::string> JsonFields::text(const char* key) const {
  return read<std::string>(key, "a string", [](const auto& value) {
    return value.is_string() ? std::optional(value.template get<std::string>()) : std::nullopt;
  });
}

std::optional<bool> JsonFields::boolean(const char* key) const {
  return read<bool>(key, "true or false", [](const auto& value) {
    return value.is_boolean() ? std::optional(value.template get<bool>()) : std::nullopt;
  });
}

std::optional<Index> JsonFields::positive_integer(const char* key) const {
  return read<Index>(key, "a whole number of at least 1", as_positive_index);
}

std::optional<double> JsonFields::positive_number(const char* key) const {
  return read<double>(key, "a finite number above 0", [](const auto& value) {
    const double number = value.is_number() ? value.template get<double>() : 0.0;
    return number > 0 && std::isfinite(number) ? std::optional(number) : std::nullopt;
  });
}

std::optional<JsonFields> JsonFields::object(const char* key) const {
  return read<JsonFields>(key, "an object", [&](const auto& value) {
    return value.is_object() ? std::optional(JsonFields(value, where(key))) : std::nullopt;
  });
}

std::vector<double> JsonFields::numbers(const Json& list, const std::string& where, bool at_least_0) const {
  const std::string expected =
      at_least_0 ? "a list of finite numbers of at least 0" : "a list of finite numbers";
  if (!list.is_array()) throw InputError(where, expected, json_text(list));
  std::vector<double> numbers;
  numbers.reserve(list.size());
  for (const auto& value : list) {
    const double number = value.is_number() ? value.get<double>() : std::nan("");
    if (!std::isfinite(number) || (at_least_0 && number < 0))
      throw InputError(where, expected, json_text(value) + " in it");
    numbers.push_back(number);
  }
  return numbers;
}

}  // namespace kvreplay
