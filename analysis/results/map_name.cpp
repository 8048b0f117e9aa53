#include "analysis/results/map_name.hpp"

#include "analysis/options/option.hpp"
#include "sim/compensation/compensation_facts.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <utility>
#include <vector>

namespace kvreplay {
namespace {

constexpr std::string_view kWindow = "window", kReserve = "reserve";

std::vector<std::string> split(std::string_view text, char separator) {
  std::vector<std::string> parts;
  for (std::size_t at = 0; at <= text.size();) {
    const std::size_t end = std::min(text.find(separator, at), text.size());
    parts.emplace_back(text.substr(at, end - at));
    at = end + 1;
  }
  return parts;
}

/// 32 of "window32", "window" being the word.
std::optional<Index> number_behind(std::string_view word, std::string_view text) {
  const auto number = text.starts_with(word) ? index_in(text.substr(word.size())) : std::nullopt;
  return number && *number >= 0 ? number : std::nullopt;
}

}  // namespace

std::string file_word(std::string_view word) {
  std::string text(word);
  std::ranges::replace(text, ':', '_');
  return text;
}

std::string MapName::text() const {
  switch (table) {
    case Table::heads:
      return figure;
    case Table::budgets:
      return fmt::format("{}~{}", item, figure);
    case Table::channels:
      if (item.empty()) return figure;
      [[fallthrough]];
    case Table::agreement:
    case Table::evictions:
    case Table::decode:
    case Table::diff:
    case Table::compensation:
      break;
  }
  std::string name = fmt::format("{}~{}~{}", item, against, figure);
  if (window) name += fmt::format("~{}{}", kWindow, *window);
  if (reserve) name += fmt::format("~{}{}", kReserve, *reserve);
  return name;
}

std::optional<MapName> map_named(std::string_view text) {
  const std::vector<std::string> parts = split(text, '~');
  if (parts.size() == 1) {
    const bool metric = figure_named(Table::channels, parts[0]) == nullptr;
    return MapName{.table = metric ? Table::heads : Table::channels, .figure = parts[0]};
  }
  if (parts.size() == 2) return MapName{.table = Table::budgets, .figure = parts[1], .item = parts[0]};
  MapName name{.table = Table::agreement, .figure = parts[2], .item = parts[0], .against = parts[1]};
  if (parts.size() > 3) {
    std::size_t at = 3;
    for (const auto& [word, to] : {std::pair(kWindow, &name.window), std::pair(kReserve, &name.reserve)})
      if (at < parts.size() && (*to = number_behind(word, parts[at]))) ++at;
    if (at < parts.size()) return std::nullopt;
  } else if (parts[1] == name_of(RowSet::window) || parts[1] == name_of(RowSet::future) ||
             parts[1] == name_of(RowSet::reference)) {
    // "<method>-<ratio>", "<policy>-<semantics>-<phase>-<kept>", or this and "-<method>".
    const std::vector<std::string> words = split(parts[0], '-');
    name.table = words.size() == 2                    ? Table::channels
                 : kCompensations.named(words.back()) ? Table::compensation
                                                      : Table::evictions;
  }
  return name;
}

}  // namespace kvreplay
