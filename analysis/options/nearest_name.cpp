#include "analysis/options/nearest_name.hpp"

#include <algorithm>
#include <numeric>
#include <utility>

namespace kvreplay {
namespace {

/// Levenshtein's.
std::size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<std::size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), std::size_t{0});
  for (std::size_t i = 0; i < a.size(); ++i) {
    std::size_t diagonal = std::exchange(row[0], i + 1);
    for (std::size_t j = 0; j < b.size(); ++j) {
      const std::size_t replaced = diagonal + (a[i] != b[j]);
      diagonal = row[j + 1];
      row[j + 1] = std::min({replaced, diagonal + 1, row[j] + 1});
    }
  }
  return row.back();
}

}  // namespace

std::vector<std::string> nearest_names(std::string_view given, const std::vector<std::string>& names) {
  std::vector<std::pair<std::size_t, std::string>> near;
  for (const std::string& name : names) {
    const std::size_t distance = edit_distance(given, name);
    const bool begins = given.size() >= 3 && (name.starts_with(given) || given.starts_with(name));
    if (begins || distance <= std::max<std::size_t>(1, std::max(given.size(), name.size()) / 3))
      near.emplace_back(distance, name);
  }
  std::stable_sort(near.begin(), near.end(), [](const auto& a, const auto& b) { return a.first < b.first; });
  std::vector<std::string> result;
  for (auto& [distance, name] : near)
    if (result.size() < 3) result.push_back(std::move(name));
  return result;
}

std::string did_you_mean(std::string_view given, const std::vector<std::string>& names) {
  const std::vector<std::string> near = nearest_names(given, names);
  std::string text;
  for (std::size_t i = 0; i < near.size(); ++i)
    text += (i == 0 ? "; did you mean '" : i + 1 == near.size() ? " or '" : ", '") + near[i] + "'";
  return text.empty() ? text : text + "?";
}

}  // namespace kvreplay
