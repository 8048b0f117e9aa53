#pragma once

#include "analysis/results/result_reader.hpp"

#include <algorithm>
#include <iterator>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace kvreplay {

/// The windows requested from `kvreplay tokens`, in the order of its tables; none if the command did not run.
std::vector<std::string> asked_windows(const ResultReader& results);

/// Tells the figures that stand for all of a table's swept keys: those with the first value of each. The
/// figure that it is asked of first says what these are.
class FirstOfSwept {
 public:
  /// `names` of the keys; one that is not among them sweeps nothing.
  FirstOfSwept(Table table, std::span<const std::string> names);
  bool operator()(std::span<const std::string> keys);

 private:
  std::vector<std::size_t> at_;
  std::vector<std::string> first_;
};

/// True if a figure of the model is a sum of errors over heads, which a few heads may dominate. The value of
/// the median head is then shown too, under the figure's name followed by kMedianHead.
bool is_error_of_heads(const FigureFacts& figure);
inline constexpr const char* kMedianHead = ", median head";
/// Keys as the fields of a CSV row.
std::string joined(std::span<const std::string> keys);
/// True if a list contains an item.
template <class List, class Item>
bool is_in(const List& list, const Item& item) {
  return std::find(std::begin(list), std::end(list), item) != std::end(list);
}

/// The place of `item` in `list`, at its end where it is new.
template <class T>
std::size_t place_in(std::vector<T>& list, const T& item) {
  const auto found = std::ranges::find(list, item);
  if (found != list.end()) return static_cast<std::size_t>(found - list.begin());
  list.push_back(item);
  return list.size() - 1;
}

/// By linear interpolation between the order statistics, as NumPy's quantile(); NaN of nothing. Sorts
/// `values`, which hold no NaN.
double quantile(std::vector<double>& values, double share);

}  // namespace kvreplay
