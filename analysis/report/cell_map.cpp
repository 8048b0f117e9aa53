#include "analysis/report/cell_map.hpp"

#include "analysis/report/figure.hpp"
#include "analysis/report/plot_frame.hpp"
#include "analysis/report/text.hpp"
#include "analysis/results/csv.hpp"
#include "analysis/results/figures.hpp"
#include "analysis/results/kept_text.hpp"
#include "sim/eviction/policy.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <span>
#include <utility>

namespace kvreplay::report {
namespace {

constexpr std::size_t kLongestLabel = 34;
constexpr Index kLegendSteps = 40;

double widest(const std::vector<std::string>& labels) {
  double width = 0;
  for (const std::string& label : labels)
    width = std::max(width, text_width(shortened(label, kLongestLabel)));
  return width;
}

struct Layout {
  double cell_width, cell_height, left, top, width, height;
  bool slanted;  // column labels
  Index every_row = 1, every_column = 1;

  double x(Index column) const { return left + cell_width * static_cast<double>(column); }
  double y(Index row) const { return top + cell_height * static_cast<double>(row); }
};

Layout layout_of(const CellMap& map) {
  const auto rows = static_cast<double>(map.rows.size()), columns = static_cast<double>(map.columns.size());
  Layout layout{};
  const double label = widest(map.columns);
  if (map.numbers) {
    layout.cell_width = std::clamp(label + 14, 64.0, 104.0);
    layout.cell_height = 21;
  } else {
    layout.cell_width = std::clamp(560 / std::max(columns, 1.0), 6.0, 40.0);
    layout.cell_height = std::clamp(500 / std::max(rows, 1.0), 6.0, 26.0);
  }
  layout.slanted = map.numbers && label + 8 > layout.cell_width;
  if (!map.numbers) {
    layout.every_column = static_cast<Index>(std::ceil((label + 6) / layout.cell_width));
    layout.every_row = static_cast<Index>(std::ceil(13 / layout.cell_height));
  }
  layout.left = widest(map.rows) + 12 + (map.row_label.empty() ? 0 : 20);
  const double over = layout.slanted ? 0.75 * label : 0;
  layout.top = 24 + over + (map.column_label.empty() ? 0 : 18);
  layout.width = std::max({layout.left + layout.cell_width * columns + over + 10, layout.left + 190.0,
                           layout.left + 20 + text_width(map.value_label)});
  layout.height = layout.top + layout.cell_height * rows + 12 + 46;
  return layout;
}

void draw_labels(Svg& svg, const CellMap& map, const Layout& at) {
  for (Index r = 0; r < std::ssize(map.rows); r += at.every_row)
    svg.text(at.left - 7, at.y(r) + at.cell_height / 2 + 4, "end", shortened(map.rows[r], kLongestLabel));
  for (Index c = 0; c < std::ssize(map.columns); c += at.every_column) {
    const double x = at.x(c) + at.cell_width / 2, y = at.top - 7;
    const std::string label = shortened(map.columns[c], kLongestLabel);
    if (at.slanted)
      svg.text(x - 4, y, "start", label, "",
               fmt::format("transform=\"rotate(-45 {} {})\"", px(x - 4), px(y)));
    else
      svg.text(x, y, "middle", label);
  }
  if (!map.column_label.empty()) svg.text(at.left, 13, "start", map.column_label, "label");
  if (!map.row_label.empty()) {
    const double y = at.top + at.cell_height * static_cast<double>(map.rows.size()) / 2;
    svg.text(12, y, "middle", map.row_label, "label", fmt::format("transform=\"rotate(-90 12 {})\"", px(y)));
  }
}

void draw_legend(Svg& svg, const CellMap& map, const Layout& at) {
  const ColorScale& scale = map.scale;
  const double y = at.height - 40, width = 180, step = width / static_cast<double>(kLegendSteps);
  const auto value_at = [&](double t) {
    return scale.log ? scale.low * std::pow(scale.high / scale.low, t)
                     : scale.low + (scale.high - scale.low) * t;
  };
  for (Index i = 0; i < kLegendSteps; ++i)
    svg.rect(at.left + step * static_cast<double>(i), y, step + 0.4, 9,
             fmt::format("fill=\"{}\" data-legend=\"{}\"",
                         hex(scale.color(value_at((static_cast<double>(i) + 0.5) / kLegendSteps))), i));
  svg.text(at.left, y + 21, "start", shown(scale.low), "", "data-low=\"\"");
  svg.text(at.left + width, y + 21, "end", shown(scale.high), "", "data-high=\"\"");
  svg.text(at.left + width / 2, y + 21, "middle", scale.log ? "log" : shown(value_at(0.5)), "",
           "data-middle=\"\"");
  svg.text(at.left, y + 35, "start", map.value_label, "label", "data-value-label=\"\"");
}

}  // namespace

CellMap map_of_heads(const std::vector<Index>& layers, Matrix<double> values) {
  CellMap map;
  map.row_label = "layer";
  map.column_label = "KV head";
  for (const Index layer : layers) map.rows.push_back(std::to_string(layer));
  for (Index head = 0; head < values.cols(); ++head) map.columns.push_back(std::to_string(head));
  map.numbers = values.cols() <= 8 && values.rows() <= 40;
  map.values = std::move(values);
  return map;
}

std::string svg_of(const CellMap& map) {
  const Layout at = layout_of(map);
  Svg svg(map.id, at.width, at.height, map.title);
  svg.raw(
      fmt::format("<defs><pattern id=\"{}-none\" width=\"5\" height=\"5\" patternUnits=\"userSpaceOnUse\">"
                  "<path d=\"M0 5L5 0\" class=\"hatch\"/></pattern></defs>",
                  map.id));
  draw_labels(svg, map, at);
  const double gap = at.cell_width < 9 || at.cell_height < 9 ? 0 : 1;
  for (Index r = 0; r < map.values.rows(); ++r) {
    for (Index c = 0; c < map.values.cols(); ++c) {
      const double value = map.values(r, c);
      const auto row = static_cast<std::size_t>(r), column = static_cast<std::size_t>(c);
      const ColorScale& scale = map.scale;
      const std::string fill =
          std::isnan(value) ? fmt::format("url(#{}-none)", map.id) : hex(scale.color(value));
      svg.rect(at.x(c), at.y(r), at.cell_width - gap, at.cell_height - gap,
               fmt::format("fill=\"{}\" data-cell=\"{}\"", fill, r * map.values.cols() + c),
               fmt::format("{} {}, {} {}: {}", map.row_label, map.rows[row], map.column_label,
                           map.columns[column], shown(value)));
      if (map.numbers) {
        const bool marked = is_in(map.marked, std::pair(r, c));
        svg.text(
            at.x(c) + (at.cell_width - gap) / 2, at.y(r) + at.cell_height / 2 + 4, "middle",
            std::isnan(value) ? "" : shown(value),
            fmt::format("{}{}", is_dark(scale.color(value)) ? "on-dark" : "on-light", marked ? " best" : ""),
            fmt::format("data-number=\"{}\"", r * map.values.cols() + c));
      }
    }
  }
  draw_legend(svg, map, at);
  return svg.finish();
}

std::string csv_of(const CellMap& map) {
  const auto name = [](const std::string& label, const char* otherwise) {
    return csv_field(label.empty() ? otherwise : label);
  };
  CsvTable csv(fmt::format("{},{},value", name(map.row_label, "row"), name(map.column_label, "column")));
  for (Index r = 0; r < map.values.rows(); ++r)
    for (Index c = 0; c < map.values.cols(); ++c)
      csv.row(map.row_keys.empty() ? map.rows[r] : map.row_keys[r], map.columns[c], map.values(r, c));
  return csv.take();
}

namespace {

void scale_to_values(CellMap& map) {
  map.scale = color_scale(FigureScale::log,
                          std::span(map.values.data(), static_cast<std::size_t>(map.values.size())));
}

}  // namespace

CellMap model_map(const MetricTable& table, std::string_view row_key, std::string_view column_key,
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

void add_median_heads(CellMap& map, const MetricTable& table, std::string_view row_key,
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

CellMap layer_map(const ResultReader& results, const MetricTable& table, std::string_view row_key,
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
  const bool any_evicts = key == "policy" && !std::ranges::all_of(map.row_keys, evicts_nothing);
  for (Index c = 0; c < map.values.cols(); ++c) {
    Index best = -1;
    for (Index r = 0; r < map.values.rows(); ++r)
      if (!std::isnan(map.values(r, c)) && !is_oracle(table, key, map.row_keys[r]) &&
          !(any_evicts && evicts_nothing(map.row_keys[r])) &&
          (best < 0 || map.values(r, c) < map.values(best, c)))
        best = r;
    if (best >= 0) map.marked.emplace_back(best, c);
  }
}

}  // namespace kvreplay::report
