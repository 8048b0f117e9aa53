#include "analysis/report/series.hpp"

#include "analysis/report/line_plot.hpp"
#include "analysis/results/csv.hpp"
#include "analysis/results/figure_table.hpp"
#include "data/error.hpp"
#include "data/npy_header.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace kvreplay::report {
namespace {

constexpr Index kMostPoints = 64;
constexpr std::size_t kMostLineValues = 600'000;

std::string csv_of(const SeriesFigure& series) {
  std::string csv =
      fmt::format("{},head,line,{},value\n", csv_field(series.second.label), csv_field(series.x_label));
  for (std::size_t o = 0; o < series.values.size(); ++o)
    for (std::size_t h = 0; h < series.heads.size(); ++h)
      for (std::size_t i = 0; i < series.lines.size(); ++i)
        for (std::size_t j = 0; j < series.at.size(); ++j)
          if (const double value = series.values[o][h][i][j]; !std::isnan(value))
            csv += fmt::format("{},{},{},{},{}\n", csv_field(series.second.options[o]),
                               csv_field(series.heads[h]), csv_field(series.lines[i]), series.at[j],
                               csv_number(value));
  return csv;
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
  Axis y = series.share ? Axis{series.y_label, 0, 1, false} : log_axis(series.y_label, medians, 6);
  if (!series.share) y.low /= 10, y.high *= 10;
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

}  // namespace kvreplay::report
