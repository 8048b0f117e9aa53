#include "analysis/results/map_name.hpp"

#include "sim/compensation/compensation_facts.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <vector>

namespace kvreplay {
namespace {

constexpr std::string_view kReserve = "reserve";

std::vector<std::string> split(std::string_view text, char separator) {
  std::vector<std::string> parts;
  for (std::size_t at = 0; at <= text.size();) {
    const std::size_t end = std::min(text.find(separator, at), text.size());
    parts.emplace_back(text.substr(at, end - at));
    at = end + 1;
  }
  return parts;
}

}  // namespace

std::string file_word(std::string_view word) {
  std::string text(word);
  std::replace(text.begin(), text.end(), ':', '_');
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
  const std::string name = fmt::format("{}~{}~{}", item, against, figure);
  return reserve ? fmt::format("{}~{}{}", name, kReserve, *reserve) : name;
}

std::optional<MapName> map_named(std::string_view text) {
  const std::vector<std::string> parts = split(text, '~');
  if (parts.size() == 1) {
    const bool metric = figure_named(Table::channels, parts[0]) == nullptr;
    return MapName{metric ? Table::heads : Table::channels, parts[0], "", "", {}};
  }
  if (parts.size() == 2) return MapName{Table::budgets, parts[1], parts[0], "", {}};
  if (parts.size() > 4) return std::nullopt;
  MapName name{Table::agreement, parts[2], parts[0], parts[1], {}};
  if (parts.size() == 4) {
    if (!parts[3].starts_with(kReserve)) return std::nullopt;
    const char *const first = parts[3].data() + kReserve.size(), *const last =
                                                                     parts[3].data() + parts[3].size();
    const auto [end, error] = std::from_chars(first, last, name.reserve.emplace());
    if (error != std::errc() || end != last || *name.reserve < 0) return std::nullopt;
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
