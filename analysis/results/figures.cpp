#include "analysis/results/figures.hpp"

#include "analysis/results/csv.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cassert>
#include <cmath>
#include <limits>

namespace kvreplay {
namespace {

constexpr std::size_t kScopeKeys = 2;  // layer, kv_head

/// Where a table's figures and what tells them apart stand in its rows.
class Columns {
 public:
  Columns(const CsvReader& csv, Table table) : wide_(is_wide(table)) {
    for (const std::string& name : key_columns(table)) keys_.push_back(csv.need(name));
    if (const auto derived = split_list(facts_of(table).derived); !derived.empty())
      derived_ = csv.need(derived.front());
    if (!wide_) values_ = {csv.need("value")};
    for (std::size_t c = 0; wide_ && c < csv.columns().size(); ++c)
      if (!is_in(keys_, c)) values_.push_back(c);
  }

  /// Visits the figures of a row. `keys` are those of the row before, or as many empty ones.
  void visit(const ResultReader& results, const CsvReader& csv, const std::vector<std::string>& row,
             std::vector<std::string>& keys, TableFigure& figure, const VisitFigure& visit) const {
    for (std::size_t k = 0; k < keys_.size(); ++k) keys[k] = row[keys_[k]];
    if (derived_ != kNone) figure.derived = row[derived_];
    place(results, csv, row, figure);
    for (const std::size_t column : values_) {
      if (wide_ && row[column].empty()) continue;  // the row has no such figure, or that no value
      if (wide_) keys.back() = csv.columns()[column];
      figure.value = csv.number_or_nan(row, column);
      visit(figure);
    }
  }

 private:
  static constexpr std::size_t kNone = std::numeric_limits<std::size_t>::max();

  void place(const ResultReader& results, const CsvReader& csv, const std::vector<std::string>& row,
             TableFigure& figure) const {
    const auto index = [&](std::size_t column) {
      return row[column].empty() ? std::optional<Index>() : std::optional<Index>(csv.index(row, column));
    };
    const std::optional<Index> layer = index(keys_[0]), head = index(keys_[1]);
    const std::vector<Index>& layers = results.layers();
    if (layer != figure.layer && layer)
      figure.layer_row = std::ranges::lower_bound(layers, *layer) - layers.begin();
    const bool known =
        !layer || (figure.layer_row < std::ssize(layers) && layers[figure.layer_row] == *layer);
    if (!known || (head && (!layer || *head >= results.shape().n_kv)))
      csv.fail("heads of the run", fmt::format("layer {}, head {}", row[keys_[0]], row[keys_[1]]));
    figure.layer = layer;
    figure.kv_head = head;
  }

  bool wide_;
  std::vector<std::size_t> keys_, values_;
  std::size_t derived_ = kNone;
};

/// Gathers the figures of heads by their other keys.
class Medians {
 public:
  void add(const TableFigure& figure) {
    if (figure.level() != Level::head) return;
    const auto [at, is_new] = names_.add(joined(figure.keys.subspan(kScopeKeys)));
    if (is_new) {
      keys_.emplace_back(figure.keys.begin(), figure.keys.end());
      std::fill_n(keys_.back().begin(), kScopeKeys, std::string());
      values_.emplace_back();
    }
    if (!std::isnan(figure.value)) values_[at].push_back(figure.value);
  }

  void visit(std::span<const std::string> names, const VisitFigure& visit) {
    for (std::size_t i = 0; i < keys_.size(); ++i)
      visit({.names = names, .keys = keys_[i], .value = quantile(values_[i], 0.5)});
  }

 private:
  Names names_;
  std::vector<std::vector<std::string>> keys_;
  std::vector<std::vector<double>> values_;
};

}  // namespace

const std::string& TableFigure::operator[](std::string_view name) const {
  const auto found = std::ranges::find(names, name);
  assert(found != names.end());
  return keys[found - names.begin()];
}

void each_figure(const ResultReader& results, Table table, const VisitFigure& visit) {
  const std::vector<std::string> names = figure_keys(table);
  std::vector<std::string> keys(names.size());
  TableFigure figure{.names = names, .keys = keys};
  std::optional<Columns> columns;
  results.each_row(table, [&](const CsvReader& csv, const std::vector<std::string>& row) {
    if (!columns) columns.emplace(csv, table);
    columns->visit(results, csv, row, keys, figure, visit);
  });
}

void each_figure_and_median(const ResultReader& results, Table table, const VisitFigure& visit) {
  const bool with_medians = facts_of(table).heads_only;
  Medians medians;
  each_figure(results, table, [&](const TableFigure& figure) {
    visit(figure);
    if (with_medians) medians.add(figure);
  });
  medians.visit(figure_keys(table), visit);
}

bool is_error_of_heads(const FigureFacts& figure) {
  return figure.unit == kErrorKind.unit && figure.scale == FigureScale::log && figure.levels.head &&
         figure.levels.model;
}

void each_median_head(const ResultReader& results, Table table, const VisitFigure& visit) {
  Medians medians;
  each_figure(results, table, [&](const TableFigure& figure) {
    const FigureFacts* const facts = figure_named(table, figure.metric());
    if (facts != nullptr && is_error_of_heads(*facts)) medians.add(figure);
  });
  medians.visit(figure_keys(table), [&](const TableFigure& figure) {
    std::vector<std::string> keys(figure.keys.begin(), figure.keys.end());
    keys.back() += kMedianHead;
    TableFigure median = figure;
    median.keys = keys;
    visit(median);
  });
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

void each_figure_of_prompt(const ResultReader& results, Table table, const VisitFigure& visit) {
  const std::vector<std::string> names = figure_keys(table), asked = asked_windows(results);
  const auto column = std::ranges::find(names, "window") - names.begin();
  std::vector<std::string> rows;
  each_figure_and_median(results, table, [&](const TableFigure& figure) {
    if (column == std::ssize(names)) return visit(figure);
    std::vector<std::string> keys(figure.keys.begin(), figure.keys.end());
    if (const std::size_t place = place_in(rows, keys[column]); place < asked.size())
      keys[column] = asked[place];
    TableFigure named = figure;
    named.keys = keys;
    visit(named);
  });
}

Level level_of(std::span<const std::string> keys) {
  return !keys[1].empty() ? Level::head : !keys[0].empty() ? Level::layer : Level::model;
}

std::string joined(std::span<const std::string> keys) {
  std::string row;
  for (const std::string& key : keys) {
    if (&key != keys.data()) row += ',';
    row += csv_field(key);
  }
  return row;
}

std::vector<std::string> split_fields(const std::string& row) { return CsvReader({}, row + "\n").columns(); }

std::pair<std::size_t, bool> Names::add(const std::string& name) {
  const auto [at, is_new] = numbers_.try_emplace(name, order_.size());
  if (is_new) order_.push_back(&at->first);
  return {at->second, is_new};
}

std::optional<std::size_t> Names::find(const std::string& name) const {
  const auto found = numbers_.find(name);
  return found == numbers_.end() ? std::nullopt : std::optional(found->second);
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
