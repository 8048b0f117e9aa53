#include "analysis/results/figures.hpp"

#include "analysis/results/csv.hpp"

#include <algorithm>

namespace kvreplay {
bool is_error_of_heads(const FigureFacts& figure) {
  return figure.unit == kErrorKind.unit && figure.scale == FigureScale::log && figure.levels.head &&
         figure.levels.model;
}

FirstOfSwept::FirstOfSwept(Table table, std::span<const std::string> names) {
  for (std::size_t k = 0; k < names.size(); ++k)
    if (is_swept(table, names[k])) at_.push_back(k);
}

bool FirstOfSwept::operator()(std::span<const std::string> keys) {
  for (std::size_t i = 0; i < at_.size(); ++i) {
    if (first_.size() == i) first_.push_back(keys[at_[i]]);
    if (first_[i] != keys[at_[i]]) return false;
  }
  return true;
}

std::vector<std::string> asked_windows(const ResultReader& results) {
  std::vector<std::string> asked;
  for (const auto& window : results.option("tokens", "window")) asked.push_back(unquoted(window));
  return asked;
}

std::string joined(std::span<const std::string> keys) {
  std::string row;
  for (const std::string& key : keys) {
    if (&key != keys.data()) row += ',';
    row += csv_field(key);
  }
  return row;
}

double quantile(std::vector<double>& values, double share) {
  if (values.empty()) return kNan;
  std::ranges::sort(values);
  const double place = share * static_cast<double>(values.size() - 1);
  const auto below = static_cast<std::size_t>(place);
  const double part = place - static_cast<double>(below);
  if (part == 0 || below + 1 == values.size()) return values[below];
  if (part == 0.5) return (values[below] + values[below + 1]) / 2;
  return values[below] + part * (values[below + 1] - values[below]);
}

}  // namespace kvreplay
