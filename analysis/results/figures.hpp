#pragma once

#include "analysis/results/result_reader.hpp"

#include <functional>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

// Every table in one form: a figure is a number under keys, of which the first two are `layer` and `kv_head`.
// A table with a column for every metric has the column's name as its last key, `metric`.

namespace kvreplay {

/// A number and the keys that tell it from all others, without `kept` and `pruned`, which follow from them.
using VisitFigure = std::function<void(std::span<const std::string> keys, double value)>;

/// The names of the keys.
std::vector<std::string> figure_keys(const TableFormat& format);

/// Visits the figures of a table in its order, those of empty fields left out. Of tables with
/// rows of heads only, the medians over the heads, NaN left out, follow as the figures of the model. Throws
/// InputError where the table is not what it should be.
void each_figure(const ResultReader& results, const TableFormat& format, const VisitFigure& visit);

/// What a figure is of, by its first two keys.
enum class Level { head, layer, model };
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

/// By linear interpolation between the order statistics, as NumPy's quantile(); NaN of nothing. Sorts
/// `values`, which hold no NaN.
double quantile(std::vector<double>& values, double share);

}  // namespace kvreplay
