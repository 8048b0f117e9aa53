#include "analysis/report/picked_lines.hpp"

#include "analysis/report/text.hpp"
#include "analysis/results/csv.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <utility>

namespace kvreplay::report {
namespace {

std::string csv_of(const PickedLines& drawn) {
  std::string csv;
  for (const Pick& pick : drawn.picks) csv += csv_field(pick.label) + ",";
  csv += fmt::format("line,{},value\n", csv_field(drawn.x.label));
  for (const auto& [picked, choice] : drawn.choices) {
    std::string of_choice;
    for (std::size_t i = 0; i < picked.size(); ++i)
      of_choice += csv_field(drawn.picks[i].options[picked[i]]) + ",";
    for (std::size_t i = 0; i < drawn.lines.size(); ++i)
      for (std::size_t j = 0; j < drawn.at.size(); ++j)
        if (const double value = choice.values[i][j]; !std::isnan(value))
          csv += fmt::format("{}{},{},{}\n", of_choice,
                             csv_field(drawn.lines[i].key.empty() ? drawn.lines[i].name : drawn.lines[i].key),
                             csv_number(drawn.at[j]), csv_number(value));
  }
  return csv;
}

bool is_same(const Axis& a, const Axis& b) {
  return a.label == b.label && a.low == b.low && a.high == b.high && a.log == b.log;
}

}  // namespace

Figure figure_of(PickedLines drawn) {
  const PickedLines::Choice& first = drawn.choices.begin()->second;
  const bool one_axis = std::all_of(drawn.choices.begin(), drawn.choices.end(),
                                    [&](const auto& choice) { return is_same(choice.second.y, first.y); });
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

}  // namespace kvreplay::report
