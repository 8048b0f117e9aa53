#include "analysis/report/picked_lines.hpp"

#include "analysis/options/option.hpp"
#include "analysis/report/plots.hpp"
#include "analysis/report/text.hpp"
#include "analysis/results/csv.hpp"
#include "analysis/results/figures.hpp"
#include "analysis/results/kept_text.hpp"
#include "analysis/results/metric_table.hpp"
#include "data/error.hpp"
#include "data/npy_header.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <utility>

namespace kvreplay::report {
namespace {

std::string csv_of(const PickedLines& drawn) {
  std::vector<std::string> columns;
  for (const Pick& pick : drawn.picks) columns.push_back(pick.label);
  columns.insert(columns.end(), {"line", drawn.x.label, "value"});
  CsvTable csv(joined(columns));
  for (const auto& [picked, choice] : drawn.choices)
    for (std::size_t i = 0; i < drawn.lines.size(); ++i)
      for (std::size_t j = 0; j < drawn.at.size(); ++j) {
        if (std::isnan(choice.values[i][j])) continue;
        for (std::size_t p = 0; p < picked.size(); ++p) csv.add(drawn.picks[p].options[picked[p]]);
        csv.row(drawn.lines[i].key.empty() ? drawn.lines[i].name : drawn.lines[i].key, drawn.at[j],
                choice.values[i][j]);
      }
  return csv.take();
}

bool is_same(const Axis& a, const Axis& b) {
  return a.label == b.label && a.low == b.low && a.high == b.high && a.log == b.log;
}

}  // namespace

Figure figure_of(PickedLines drawn) {
  const PickedLines::Choice& first = drawn.choices.begin()->second;
  const bool one_axis = std::ranges::all_of(
      drawn.choices, [&](const auto& choice) { return is_same(choice.second.y, first.y); });
  std::string values, axes;
  for (const auto& [picked, choice] : drawn.choices) {
    const std::string key = fmt::format("{}\"{}\":", values.empty() ? "" : ",", fmt::join(picked, ","));
    values += key + json_list(choice.values, json_numbers);
    if (!one_axis) axes += key + axis_json(choice.y);
  }
  LinePlot plot;
  plot.id = drawn.name;
  plot.title = drawn.heading;
  for (const Pick& pick : drawn.picks)
    if (pick.options.size() > 1) plot.title += ", " + pick.options.front();
  plot.at = drawn.at;
  plot.x = drawn.x;
  plot.y = first.y;
  plot.listed = true;
  plot.bridged = drawn.bridged;
  plot.lines = drawn.lines;
  for (std::size_t i = 0; i < plot.lines.size(); ++i) {
    plot.lines[i].values = first.values[i];
    plot.lines[i].markers = false;  // which the page's script does not move
  }
  Figure figure;
  figure.name = drawn.name;
  figure.heading = drawn.heading;
  figure.reading = drawn.reading;
  figure.note = drawn.note;
  figure.shows = drawn.shows;
  add_drawing(
      figure, drawn.picks, "series", svg_of(plot),
      fmt::format("{{\"bridged\":{},\"values\":{{{}}},\"axes\":{{{}}}}}", drawn.bridged, values, axes),
      drawn.csv.empty() ? csv_of(drawn) : std::move(drawn.csv));
  return figure;
}

namespace {

constexpr Index kMostPoints = 64;
constexpr std::size_t kMostLineValues = 600'000;

std::string csv_of(const SeriesFigure& series) {
  CsvTable csv(
      fmt::format("{},head,line,{},value", csv_field(series.second.label), csv_field(series.x_label)));
  for (std::size_t o = 0; o < series.values.size(); ++o)
    for (std::size_t h = 0; h < series.heads.size(); ++h)
      for (std::size_t i = 0; i < series.lines.size(); ++i)
        for (std::size_t j = 0; j < series.at.size(); ++j)
          if (const double value = series.values[o][h][i][j]; !std::isnan(value))
            csv.row(series.second.options[o], series.heads[h], series.lines[i],
                    static_cast<Index>(series.at[j]), value);
  return csv.take();
}

}  // namespace

Lines medians_of(const std::vector<Lines>& heads) {
  Lines medians = heads.front();
  for (std::size_t i = 0; i < medians.size(); ++i)
    for (std::size_t j = 0; j < medians[i].size(); ++j) {
      std::vector<double> values;
      for (const Lines& head : heads) values.push_back(head[i][j]);
      medians[i][j] = median(std::move(values));
    }
  return medians;
}

void SeriesFigure::add(std::size_t option, std::size_t line, const ResultReader::Array& array,
                       const ResultReader& results) {
  const auto layers = std::ssize(results.layers());
  const bool fits = array.shape.size() == 3 && array.shape[0] == layers &&
                    array.shape[1] == results.shape().n_kv && array.shape[2] > 0 &&
                    (length == 0 || array.shape[2] == length);
  if (!fits)
    throw InputError(fmt::format("{}: an array of {}", results.folder().string(), lines[line]),
                     fmt::format("shape [{}, {}, {}]", layers, results.shape().n_kv,
                                 length == 0 ? "n" : std::to_string(length)),
                     "shape " + shape_text(array.shape));
  if (length == 0) {
    length = array.shape[2];
    const Index count = std::min(length, kMostPoints);
    for (Index i = 0; i < count; ++i)
      at.push_back(static_cast<double>(count == 1 ? 0 : i * (length - 1) / (count - 1)));
    values.assign(second.options.size(),
                  std::vector(heads.size(), Lines(lines.size(), std::vector<double>(at.size(), kNan))));
  }
  for (std::size_t h = 0; h < heads.size(); ++h) {
    const double* const of_head = array.values.data() + static_cast<Index>(h) * length;
    const double unit = share ? of_head[0] : 1;
    for (std::size_t j = 0; j < at.size(); ++j)
      values[option][h][line][j] = unit == 0 ? kNan : of_head[static_cast<Index>(at[j])] / unit;
  }
}

std::optional<Figure> figure_of(const SeriesFigure& series) {
  if (series.values.empty()) return std::nullopt;
  const bool all_heads =
      series.values.size() * series.heads.size() * series.lines.size() * series.at.size() <= kMostLineValues;
  PickedLines drawn;
  drawn.name = series.name;
  drawn.heading = series.heading;
  drawn.reading = series.reading;
  drawn.at = series.at;
  drawn.x = linear_axis(series.x_label, series.at, true);
  if (series.at.back() > 0) drawn.x.high = series.at.back();
  const std::vector<LineStyle> styles = styles_by_name(series.lines);
  for (std::size_t i = 0; i < series.lines.size(); ++i)
    drawn.lines.push_back({series.lines[i], styles[i], {}});
  std::vector<double> medians;  // single heads would stretch the axis
  for (std::size_t o = 0; o < series.values.size(); ++o) {
    Lines of_all = medians_of(series.values[o]);
    for (const auto& line : of_all) medians.insert(medians.end(), line.begin(), line.end());
    drawn.choices[{0, o}].values = std::move(of_all);
    for (std::size_t h = 0; h < series.heads.size() && all_heads; ++h)
      drawn.choices[{h + 1, o}].values = series.values[o][h];
  }
  Axis y = series.share    ? Axis{series.y_label, 0, 1, false}
           : series.counts ? Axis{series.y_label, 0, 1.05 * *std::ranges::max_element(medians), false}
                           : log_axis(series.y_label, medians, 6);
  if (!series.share && !series.counts) y.low /= 10, y.high *= 10;
  for (auto& [picked, choice] : drawn.choices) choice.y = y;
  Pick heads{"head", {kMedian}};
  if (all_heads) heads.options.insert(heads.options.end(), series.heads.begin(), series.heads.end());
  drawn.picks = {heads, series.second};
  if (std::ssize(series.at) < series.length)
    drawn.note = fmt::format("{} of {} points of every line are drawn, evenly spaced. ", series.at.size(),
                             series.length);
  if (!all_heads) drawn.note += "Single heads are in the CSV.";
  drawn.csv = csv_of(series);
  return figure_of(std::move(drawn));
}

namespace {

using Picks = std::vector<std::string>;

/// The lines of a figure as they come in: by what lists pick, a name, and a value each layer.
class Gathered {
 public:
  Gathered(const LayerLines& wanted, const std::vector<Index>& layers) : wanted_(wanted) {
    for (const Index layer : layers) drawn_.at.push_back(static_cast<double>(layer));
  }

  void add(const FigureFacts& figure, const Picks& picked, const LinePlot::Line& line,
           const std::vector<double>& values) {
    if (drawn_.picks.empty()) drawn_.picks.resize(picked.size());
    std::vector<std::size_t> numbers;
    for (std::size_t i = 0; i < picked.size(); ++i)
      numbers.push_back(place_in(drawn_.picks[i].options, picked[i]));
    const auto known = std::ranges::find_if(
        drawn_.lines, [&](const LinePlot::Line& other) { return other.name == line.name; });
    const auto at = static_cast<std::size_t>(known - drawn_.lines.begin());
    if (known == drawn_.lines.end()) drawn_.lines.push_back(line);
    Lines& lines = drawn_.choices[numbers].values;
    lines.resize(std::max(lines.size(), at + 1), std::vector<double>(drawn_.at.size(), kNan));
    lines[at] = values;
    facts_[numbers] = &figure;
  }

  std::optional<Figure> figure(const std::vector<std::string>& labels) {
    if (drawn_.choices.empty() || drawn_.at.size() < 2) return std::nullopt;
    drawn_.name = wanted_.name;
    drawn_.heading = wanted_.heading;
    drawn_.reading = wanted_.reading;
    drawn_.shows = wanted_.figures;
    drawn_.x = {"layer", drawn_.at.front(), drawn_.at.back(), false};
    for (std::size_t i = 0; i < labels.size(); ++i) drawn_.picks[i].label = labels[i];
    for (auto& [picked, choice] : drawn_.choices) {
      choice.values.resize(drawn_.lines.size(), std::vector<double>(drawn_.at.size(), kNan));
      std::vector<double> all;
      for (const auto& line : choice.values) all.insert(all.end(), line.begin(), line.end());
      choice.y = figure_axis(std::string(facts_[picked]->name), facts_[picked]->scale, all);
    }
    return figure_of(std::move(drawn_));
  }

 private:
  const LayerLines& wanted_;
  PickedLines drawn_;
  std::map<std::vector<std::size_t>, const FigureFacts*> facts_;
};

/// The entries of a figure, those that the lists begin with first.
std::vector<const MetricEntry*> entries_of(const MetricTable& table, const LayerLines& wanted,
                                           const FigureFacts& figure) {
  std::vector<const MetricEntry*> found;
  for (const MetricEntry& entry : table.entries())
    if (table.key(entry, "metric") == figure.name && !std::isnan(largest(entry.layers)))
      found.push_back(&entry);
  std::stable_partition(found.begin(), found.end(), [&](const MetricEntry* entry) {
    return table.key(*entry, wanted.first.first) == wanted.first.second;
  });
  return found;
}

Picks picks_of(const MetricTable& table, const MetricEntry& entry, const LayerLines& wanted) {
  Picks picked{table.key(entry, "metric")};
  for (const auto& [key, label] : wanted.keys)
    picked.push_back(shown_key(table.table(), key, table.key(entry, key)));
  return picked;
}

std::vector<std::string> labels_of(const LayerLines& wanted) {
  std::vector<std::string> labels{"figure"};
  for (const auto& [key, label] : wanted.keys) labels.push_back(label);
  return labels;
}

}  // namespace

std::optional<Figure> layer_lines(const Tables& tables, const MetricTable& table, const LayerLines& wanted) {
  const std::vector<std::string> items = table.distinct(wanted.item);
  const std::vector<LineStyle> styles = styles_by_name(items);
  Gathered gathered(wanted, tables.layers);
  for (const FigureFacts* const figure : wanted.figures)
    for (const MetricEntry* const entry : entries_of(table, wanted, *figure)) {
      const std::string& item = table.key(*entry, wanted.item);
      const auto at = static_cast<std::size_t>(std::ranges::find(items, item) - items.begin());
      gathered.add(*figure, picks_of(table, *entry, wanted),
                   {shown_key(table.table(), wanted.item, item), styles[at], {}, item}, entry->layers);
    }
  return gathered.figure(labels_of(wanted));
}

std::optional<Figure> layer_lines(const OverDumpsReader& results, const LayerLines& wanted) {
  const std::size_t n = results.dumps().size();
  std::vector<MetricTable> tables;
  for (const ResultReader& dump : results.dumps()) {
    if (dump.layers() != results.dumps().front().layers()) return std::nullopt;
    tables.emplace_back(dump, wanted.table);
  }
  Gathered gathered(wanted, results.dumps().front().layers());
  const MetricTable& first = tables.front();
  for (const FigureFacts* const figure : wanted.figures)
    for (const MetricEntry* const entry : entries_of(first, wanted, *figure)) {
      // The baseline of a gain has gain 0 everywhere: no line for it.
      if (figure->scale == FigureScale::gain && largest(entry->layers) == 0 && smallest(entry->layers) == 0)
        continue;
      Picks picked = picks_of(first, *entry, wanted);
      picked.insert(picked.begin() + 1, shown_key(wanted.table, wanted.item, first.key(*entry, wanted.item)));
      Wanted same;
      for (std::size_t i = 0; i < entry->key.size(); ++i)
        same.emplace_back(first.key_columns()[i], entry->key[i]);
      std::vector<double> sums(entry->layers.size(), 0.0);
      for (std::size_t dump = 0; dump < n; ++dump) {
        const MetricEntry* const its = tables[dump].find(same);
        std::vector<double> values(sums.size(), kNan);
        if (its != nullptr) values = its->layers;
        for (std::size_t i = 0; i < sums.size(); ++i) sums[i] += values[i];
        gathered.add(*figure, picked, {results.names()[dump], {0, 0, 0, true}, {}}, values);
      }
      for (double& sum : sums) sum /= static_cast<double>(n);
      gathered.add(*figure, picked, {fmt::format("mean of the {} prompts", n), {1, 0, 0}, {}, "mean"}, sums);
    }
  std::vector<std::string> labels = labels_of(wanted);
  labels.insert(labels.begin() + 1, wanted.item);
  return gathered.figure(labels);
}

}  // namespace kvreplay::report
