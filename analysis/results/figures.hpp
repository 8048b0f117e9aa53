#pragma once

#include "analysis/results/result_reader.hpp"

#include <algorithm>
#include <functional>
#include <iterator>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

// Every table in one form: figures, numbers under keys of which the first two are `layer` and `kv_head` and
// the last is `metric`, the figure's name, whether or not it has a column of its own.

namespace kvreplay {

/// A figure as a table has it; valid while it is visited.
struct TableFigure {
  std::span<const std::string> names;  ///< of the keys: figure_keys()
  std::span<const std::string> keys;   ///< the keys that identify the figure
  std::string_view derived = {};       ///< `kept` or `pruned`, which follow from them; may be empty
  double value = 0;
  std::optional<Index> layer = {},
                       kv_head = {};  ///< of the run; without head: a layer's, without both: the model's
  Index layer_row = 0;                ///< the layer's place among the run's

  /// The value of a key of the table.
  const std::string& operator[](std::string_view name) const;
  const std::string& metric() const { return keys.back(); }
  Level level() const { return kv_head ? Level::head : layer ? Level::layer : Level::model; }
  bool is_of(Index of_layer, Index of_head) const { return layer == of_layer && kv_head == of_head; }
};
using VisitFigure = std::function<void(const TableFigure&)>;

/// Visits the figures of a table in its order, those of empty fields left out. Throws InputError where the
/// table is not what it should be.
void each_figure(const ResultReader& results, Table table, const VisitFigure& visit);
/// Visits each figure; of tables with rows of heads only, the medians over the heads, NaN left out, follow as
/// the figures of the model.
void each_figure_and_median(const ResultReader& results, Table table, const VisitFigure& visit);
/// Visits figures for comparisons over prompts. `window` is the requested one, "all", rather than the
/// resulting number of rows, which depends on the prompt's length.
void each_figure_of_prompt(const ResultReader& results, Table table, const VisitFigure& visit);
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
/// Visits the median heads of all such figures of a table, as figures of the model.
void each_median_head(const ResultReader& results, Table table, const VisitFigure& visit);

/// The scope of a figure, from its first two keys (layer, kv_head).
Level level_of(std::span<const std::string> keys);

/// Keys as the fields of a CSV row, which names a figure and stands in the tables made of several.
std::string joined(std::span<const std::string> keys);
/// A CSV row's fields again; the inverse of joined().
std::vector<std::string> split_fields(const std::string& row);

/// Texts numbered in the order of their first appearance.
class Names {
 public:
  /// The number of a text, and whether it is new.
  std::pair<std::size_t, bool> add(const std::string& name);
  std::optional<std::size_t> find(const std::string& name) const;
  const std::string& operator[](std::size_t i) const { return *order_[i]; }
  std::size_t size() const { return order_.size(); }

 private:
  std::unordered_map<std::string, std::size_t> numbers_;
  std::vector<const std::string*> order_;  // into numbers_, whose keys stay where they are
};

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
