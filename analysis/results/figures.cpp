#include "analysis/results/figures.hpp"

#include "analysis/results/csv.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

namespace kvreplay {
namespace {

constexpr std::string_view kMetric = "metric";
constexpr std::size_t kScopeKeys = 2;  // layer, kv_head

/// The columns that hold numbers.
std::vector<std::size_t> value_columns(const CsvReader& csv, const TableFormat& format) {
  std::vector<std::size_t> columns;
  for (const std::string& name : split_list(format.values)) columns.push_back(csv.need(name));
  if (!columns.empty()) return columns;
  const std::vector<std::string> keys = split_list(format.keys);
  for (std::size_t c = 0; c < csv.columns().size(); ++c)
    if (std::find(keys.begin(), keys.end(), csv.columns()[c]) == keys.end()) columns.push_back(c);
  return columns;
}

/// Gathers the figures of heads by their other keys.
class Medians {
 public:
  void add(std::span<const std::string> keys, double value) {
    const auto [at, is_new] = names_.add(joined(keys.subspan(kScopeKeys)));
    if (is_new) {
      keys_.emplace_back(keys.begin(), keys.end());
      std::fill_n(keys_.back().begin(), kScopeKeys, std::string());
      values_.emplace_back();
    }
    if (!std::isnan(value)) values_[at].push_back(value);
  }

  void visit(const VisitFigure& visit) {
    for (std::size_t i = 0; i < keys_.size(); ++i) visit(keys_[i], quantile(values_[i], 0.5));
  }

 private:
  Names names_;
  std::vector<std::vector<std::string>> keys_;
  std::vector<std::vector<double>> values_;
};

}  // namespace

std::vector<std::string> figure_keys(const TableFormat& format) {
  std::vector<std::string> keys = split_list(format.keys);
  if (keys.back() != kMetric) keys.emplace_back(kMetric);
  return keys;
}

void each_figure(const ResultReader& results, const TableFormat& format, const VisitFigure& visit) {
  const std::vector<std::string> names = split_list(format.keys);
  const bool wide = names.back() != kMetric;
  std::vector<std::size_t> key_columns, values;
  std::vector<std::string> keys(names.size() + (wide ? 1 : 0));
  const bool with_medians = format.heads_only;
  Medians medians;
  results.each_row(std::string(format.name) + ".csv",
                   [&](const CsvReader& csv, const std::vector<std::string>& row) {
                     if (key_columns.empty()) {
                       for (const std::string& name : names) key_columns.push_back(csv.need(name));
                       values = value_columns(csv, format);
                     }
                     for (std::size_t k = 0; k < key_columns.size(); ++k) keys[k] = row[key_columns[k]];
                     for (const std::size_t column : values) {
                       if (row[column].empty()) continue;
                       if (wide) keys.back() = csv.columns()[column];
                       const double value = csv.number(row, column);
                       visit(keys, value);
                       if (with_medians) medians.add(keys, value);
                     }
                   });
  medians.visit(visit);
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

std::vector<std::string> split_fields(const std::string& row) {
  std::vector<std::string> fields(1);
  bool quoted = false;
  for (std::size_t i = 0; i < row.size(); ++i) {
    const char c = row[i];
    if (c == '"' && quoted && i + 1 < row.size() && row[i + 1] == '"') {
      fields.back() += row[++i];
    } else if (c == '"') {
      quoted = !quoted;
    } else if (c == ',' && !quoted) {
      fields.emplace_back();
    } else {
      fields.back() += c;
    }
  }
  return fields;
}

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
  if (values.empty()) return std::numeric_limits<double>::quiet_NaN();
  std::sort(values.begin(), values.end());
  const double place = share * static_cast<double>(values.size() - 1);
  const auto below = static_cast<std::size_t>(place);
  const double part = place - static_cast<double>(below);
  if (part == 0 || below + 1 == values.size()) return values[below];
  if (part == 0.5) return (values[below] + values[below + 1]) / 2;
  return values[below] + part * (values[below + 1] - values[below]);
}

}  // namespace kvreplay
