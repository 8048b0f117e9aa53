#include "analysis/report/figure.hpp"
#include "analysis/report/plots.hpp"
#include "analysis/report/sections.hpp"
#include "analysis/report/text.hpp"
#include "analysis/results/validation.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace kvreplay::report {
namespace {

using Cases = std::vector<const ValidatedCase*>;

bool is_in_nats(const FigureFacts& figure) { return figure.unit == kLossKind.unit; }

/// A mark for each case; of a figure in nats also where it would be right.
LinePlot plot_of(const FigureFacts& figure, const Cases& cases) {
  LinePlot plot;
  plot.listed = true;
  std::vector<double> measured;
  for (const ValidatedCase* const one : cases) {
    const double predicted = one->predicted_by(figure.name), kl = one->measured_as(ValidationFigure::kl);
    if (std::isnan(predicted) || std::isnan(kl)) continue;
    place_in(plot.at, predicted);
    measured.push_back(kl);
  }
  if (plot.at.empty()) return plot;
  std::ranges::sort(plot.at);
  std::vector<double> range = plot.at;
  if (is_in_nats(figure)) {
    range.insert(range.end(), measured.begin(), measured.end());
    measured = range;
    plot.lines.push_back({"as predicted", {.color = 7, .dash = 1}, plot.at, "", false});
  }
  plot.x = figure_axis(fmt::format("{}, predicted from the dump", figure.name), figure.scale, range);
  plot.y = figure_axis("KL measured, nats a step", FigureScale::log, measured);
  int next = 0;  // marks alone tell the cases apart: no two alike
  for (const ValidatedCase* const one : cases) {
    const double predicted = one->predicted_by(figure.name), kl = one->measured_as(ValidationFigure::kl);
    if (std::isnan(predicted) || std::isnan(kl)) continue;
    constexpr int kColors = 8, kMarkers = 6;
    const LineStyle style{.color = next % kColors, .marker = (next + next / kColors) % kMarkers};
    ++next;
    LinePlot::Line line{shown_policy(*one), style, std::vector<double>(plot.at.size(), kNan), one->policy};
    line.values[std::ranges::lower_bound(plot.at, predicted) - plot.at.begin()] = kl;
    plot.lines.push_back(std::move(line));
  }
  return plot;
}

std::optional<Figure> figure_of(const Validation& validation, Table table) {
  Variants variants(fmt::format("measured-{}", name_of(table)));
  std::vector<const FigureFacts*> predictors = validation.predictors(table);
  std::stable_partition(predictors.begin(), predictors.end(), [](const auto* f) { return is_in_nats(*f); });
  std::stable_partition(predictors.begin(), predictors.end(), [](const auto* f) {
    return f->name == kLossStep.name || f->name == kLossLayer.name;
  });
  for (const FigureFacts* const figure : predictors)
    for (const Cases& setting : settings_of(validation, table)) {
      LinePlot plot = plot_of(*figure, setting);
      if (plot.at.empty()) continue;
      plot.title = fmt::format("KL measured, by {}, {}", figure->name, setting_text(*setting.front()));
      variants.add({std::string(figure->name), setting_text(*setting.front())}, std::move(plot));
    }
  return variants.figure(
      {"predicted by", "setting"}, fmt::format("{}: predicted and measured", facts_of(table).title),
      "A mark is a case: to the right what the dump alone says of it, upwards what the model really loses. A "
      "figure that rises from mark to mark orders the cases as the model does; one in nats is right on the "
      "dashed line.",
      predictors);
}

/// Table of the agreement between every metric's order of the cases and the measured order, for every
/// setting.
std::string table_of(const Validation& validation, Table table) {
  const auto settings = settings_of(validation, table);
  std::string rows;
  std::vector<std::string> headings{"figure"};
  for (const Cases& setting : settings) headings.push_back(setting_text(*setting.front()));
  for (const FigureFacts* const figure : validation.predictors(table)) {
    rows += fmt::format("<tr><td>{}</td>", escaped(figure->name));
    for (const Cases& setting : settings) {
      const OrderByFigure found = order_by(figure->name, setting);
      const std::string ratio = is_in_nats(*figure) ? fmt::format("; {}", shown(found.ratio)) : "";
      rows += found.cases == 0 ? "<td></td>"
                               : fmt::format("<td>{:.2f}; {} of {}{}</td>", found.spearman, found.in_order,
                                             found.pairs, ratio);
    }
    rows += "</tr>\n";
  }
  if (rows.empty()) return "";
  return fmt::format(
      "<h3>{}: does a figure order them as the model does?</h3>\n<p>The rank correlation with the KL that "
      "was "
      "measured; how many of the pairs whose KL differs {} times or more a figure puts in that order; of "
      "figures in "
      "nats the median of predicted over measured.</p>\n{}\n",
      escaped(facts_of(table).title), kApart, table_html(headings, rows));
}

/// The measured figures of every case.
std::string cases_table(const Validation& validation) {
  std::string rows;
  std::vector<std::string> headings{"case"};
  const std::vector<ValidationFigure> measured = validation.measured();
  for (const ValidationFigure figure : measured) headings.emplace_back(facts_of(figure).name);
  for (const ValidatedCase& one : validation.cases) {
    rows += fmt::format("<tr><td>{}, {}</td>", escaped(shown_policy(one)), escaped(setting_text(one)));
    for (const ValidationFigure figure : measured) {
      const double value = one.measured_as(figure);
      rows += fmt::format("<td>{}</td>", std::isnan(value) ? "" : shown(value));
    }
    rows += "</tr>\n";
  }
  return fmt::format("<details><summary>Every case, as measured</summary>{}</details>\n",
                     table_html(headings, rows));
}

}  // namespace

Section validation_section(const Tables& tables) {
  const Validation validation = read_validation(tables.results);
  Section section{"model", "What the model loses", validation.missing, {}, ""};
  if (validation.cases.empty()) return section;
  section.findings.push_back(
      "Measured with the model in the loop: its decoding steps fed again, seeing of the prompt what every "
      "case kept.");
  if (!validation.finished)
    section.findings.emplace_back(
        "The validation was interrupted: kvvalidate.py --resume measures the rest.");
  for (const Table table : kValidatedTables) {
    if (auto figure = figure_of(validation, table)) section.figures.push_back(std::move(*figure));
    section.html += table_of(validation, table);
  }
  section.html += cases_table(validation);
  return section;
}

}  // namespace kvreplay::report
