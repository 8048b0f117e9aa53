#include "analysis/report/figure_scale.hpp"
#include "analysis/report/interaction.hpp"
#include "analysis/report/line_plot.hpp"
#include "analysis/report/sections.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>

namespace kvreplay::report {
namespace {

/// What the schema offers, gains first: they compare methods at a glance.
std::vector<const FigureFacts*> offered_by_gain() {
  std::vector<const FigureFacts*> figures = offered_figures(Table::channels);
  std::stable_partition(figures.begin(), figures.end(),
                        [](const FigureFacts* facts) { return facts->scale == FigureScale::gain; });
  return figures;
}

LinePlot ratio_plot(const FigureTable& table, const Wanted& common, const FigureFacts& figure) {
  LinePlot plot;
  std::vector<std::string> ratios = table.distinct("ratio", common);
  std::stable_sort(ratios.begin(), ratios.end(), [](const std::string& a, const std::string& b) {
    return std::strtod(a.c_str(), nullptr) < std::strtod(b.c_str(), nullptr);
  });
  for (const std::string& ratio : ratios) plot.at.push_back(std::strtod(ratio.c_str(), nullptr));
  const std::vector<std::string> methods = table.distinct("method", common);
  const std::vector<LineStyle> styles = styles_by_name(methods);
  std::vector<double> all;
  for (std::size_t m = 0; m < methods.size(); ++m) {
    LinePlot::Line line{methods[m], styles[m], {}};
    for (const std::string& ratio : ratios) {
      Wanted wanted = common;
      wanted.emplace_back("method", methods[m]);
      wanted.emplace_back("ratio", ratio);
      const auto* const entry = table.find(wanted);
      line.values.push_back(entry == nullptr ? kNan : entry->model);
    }
    all.insert(all.end(), line.values.begin(), line.values.end());
    plot.lines.push_back(std::move(line));
  }
  plot.x = linear_axis("share of channels pruned", plot.at, false);
  plot.y = figure_axis(std::string(figure.name), figure.scale, all);
  return plot;
}

std::optional<Figure> ratio_figure(const FigureTable& table) {
  Variants variants("error-by-ratio");
  for (const FigureFacts* const facts : offered_by_gain()) {
    const std::string metric(facts->name);
    for (const std::string& rows : table.distinct("rows", {{"metric", metric}})) {
      LinePlot plot = ratio_plot(table, {{"metric", metric}, {"rows", rows}}, *facts);
      if (plot.at.empty() || plot.lines.empty()) continue;
      plot.id = variants.next_id();
      plot.title = fmt::format("{} by the share of channels pruned, on the {}", metric, rows_text(rows));
      variants.add({metric, rows_text(rows)}, plot);
    }
  }
  if (variants.empty()) return std::nullopt;
  Figure figure = variants.figure({"metric", "on the"});
  figure.heading = "Error by the share of channels pruned";
  figure.shows = offered_by_gain();
  figure.reading =
      "A gain is the share of ThinK's error that a selection saves at the same ratio: above 0 it is better "
      "than ThinK, 1 is "
      "no error at all. Of errors lower is better. What wins on the logits of the window may lose in the "
      "outputs of the "
      "decoding steps.";
  return figure;
}

}  // namespace

Section channel_section(const Tables& tables) {
  Section section{"channels", "Key channels", "", {}, ""};
  for (auto figure : {ratio_figure(tables.channels), interaction_figure(tables)})
    if (figure) section.figures.push_back(std::move(*figure));
  if (section.figures.empty())
    section.missing = "No channel interactions; kvreplay channels DUMP --out DIR computes them.";
  return section;
}

}  // namespace kvreplay::report
