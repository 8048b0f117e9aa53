#include "analysis/run/settings_difference.hpp"

#include <fmt/format.h>

namespace kvreplay {

using Json = nlohmann::ordered_json;

std::string settings_difference(const Json& was, const Json& is, const std::string& where) {
  const auto shown = [](const Json& value) {
    std::string text = value.is_string() ? value.get<std::string>() : value.dump();
    constexpr std::size_t kLongest = 60;
    if (text.size() > kLongest) text = text.substr(0, kLongest) + "...";
    return text;
  };
  if (!was.is_object() || !is.is_object())
    return was == is ? "" : fmt::format("{} was {}, is {}", where, shown(was), shown(is));
  const auto below = [&](const std::string& key) { return where.empty() ? key : where + "." + key; };
  for (const auto& [key, value] : is.items()) {
    if (!was.contains(key)) return fmt::format("{} was not given, is {}", below(key), shown(value));
    const std::string difference = settings_difference(was[key], value, below(key));
    if (!difference.empty()) return difference;
  }
  for (const auto& [key, value] : was.items())
    if (!is.contains(key)) return fmt::format("{} was {}, is not given", below(key), shown(value));
  return "";
}

}  // namespace kvreplay
