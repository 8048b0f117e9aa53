#include "analysis/report/figure_maps.hpp"

#include "analysis/report/figure.hpp"
#include "analysis/results/figures.hpp"
#include "analysis/results/oracles.hpp"

#include <cmath>
#include <span>
#include <utility>

namespace kvreplay::report {
namespace {

void scale_to_values(CellMap& map) {
  map.scale = color_scale(FigureScale::log,
                          std::span(map.values.data(), static_cast<std::size_t>(map.values.size())));
}

}  // namespace

CellMap model_map(const FigureTable& table, std::string_view row_key, std::string_view column_key,
                  const Wanted& common, std::vector<std::string> columns) {
  CellMap map;
  map.row_keys = table.distinct(row_key, common);
  for (const std::string& key : map.row_keys) map.rows.push_back(shown_key(table.table(), row_key, key));
  map.columns = columns.empty() ? table.distinct(column_key, common) : std::move(columns);
  map.values = Matrix<double>::Constant(std::ssize(map.rows), std::ssize(map.columns), kNan);
  for (Index r = 0; r < map.values.rows(); ++r)
    for (Index c = 0; c < map.values.cols(); ++c)
      if (const auto* const entry =
              table.find(with(with(common, row_key, map.row_keys[r]), column_key, map.columns[c])))
        map.values(r, c) = entry->model;
  map.numbers = true;
  scale_to_values(map);
  return map;
}

void add_median_heads(CellMap& map, const FigureTable& table, std::string_view row_key,
                      std::string_view column_key, const Wanted& common) {
  const std::vector<std::string> keys = table.distinct(column_key, common);
  const std::vector<std::string> columns = std::move(map.columns);
  const Matrix<double> values = map.values;
  map.columns.clear();
  map.values.resize(values.rows(), 2 * values.cols());
  for (Index c = 0; c < values.cols(); ++c) {
    map.columns.insert(map.columns.end(), {columns[c], columns[c] + kMedianHead});
    map.values.col(2 * c) = values.col(c);
    for (Index r = 0; r < values.rows(); ++r) {
      const auto* const entry = table.find(with(with(common, row_key, map.row_keys[r]), column_key, keys[c]));
      map.values(r, 2 * c + 1) = entry == nullptr ? kNan : median(entry->heads);
    }
  }
  scale_to_values(map);
}

CellMap layer_map(const ResultReader& results, const FigureTable& table, std::string_view row_key,
                  const Wanted& common) {
  constexpr std::size_t kMostWithNumbers = 8;
  CellMap map;
  map.rows = table.distinct(row_key, common);
  for (const Index layer : results.layers()) map.columns.push_back(std::to_string(layer));
  map.values.resize(std::ssize(map.rows), std::ssize(map.columns));
  for (Index r = 0; r < map.values.rows(); ++r) {
    const auto& layers = table.find(with(common, row_key, map.rows[r]))->layers;
    for (Index c = 0; c < map.values.cols(); ++c) map.values(r, c) = layers[c];
  }
  map.column_label = "layer";
  map.numbers = map.columns.size() <= kMostWithNumbers;
  scale_to_values(map);
  return map;
}

void mark_lowest(CellMap& map, Table table, std::string_view key) {
  for (Index c = 0; c < map.values.cols(); ++c) {
    Index best = -1;
    for (Index r = 0; r < map.values.rows(); ++r)
      if (!std::isnan(map.values(r, c)) && !is_oracle(table, key, map.row_keys[r]) &&
          (best < 0 || map.values(r, c) < map.values(best, c)))
        best = r;
    if (best >= 0) map.marked.emplace_back(best, c);
  }
}

}  // namespace kvreplay::report
