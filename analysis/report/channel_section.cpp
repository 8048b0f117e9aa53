#include "analysis/report/figure.hpp"
#include "analysis/report/layer_lines.hpp"
#include "analysis/report/line_plot.hpp"
#include "analysis/report/query_figure.hpp"
#include "analysis/report/sections.hpp"
#include "analysis/results/figures.hpp"
#include "analysis/results/kept_text.hpp"

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

std::optional<Figure> ratio_figure(const FigureTable& table) {
  Variants variants("error-by-ratio");
  for (const FigureFacts* const facts : offered_by_gain()) {
    const std::string metric(facts->name);
    for (const std::string& rows : table.distinct("rows", {{"metric", metric}})) {
      const Wanted common = {{"metric", metric}, {"rows", rows}};
      for (const bool of_median_head : {false, true}) {
        if (of_median_head && !is_error_of_heads(*facts)) continue;
        LinePlot plot = model_plot(table, common, *facts, "method", "ratio",
                                   by_number(table.distinct("ratio", common)), of_median_head);
        if (plot.at.empty() || plot.lines.empty()) continue;
        const std::string shown = metric + (of_median_head ? kMedianHead : "");
        plot.x = linear_axis("share of channels pruned", plot.at, false);
        plot.id = variants.next_id();
        plot.title = fmt::format("{} by the share of channels pruned, on the {}", shown, rows_text(rows));
        variants.add({shown, rows_text(rows)}, plot);
      }
    }
  }
  if (variants.empty()) return std::nullopt;
  Figure figure = variants.figure({"metric", "on the"});
  figure.heading = "Error by the share of channels pruned";
  figure.shows = offered_by_gain();
  figure.reading =
      "A gain is the share of ThinK's error that a selection saves at the same ratio: above 0 it is better "
      "than ThinK, 1 is no error at all. Of errors lower is better. What wins on the logits of the window "
      "may lose in the outputs of the decoding steps.";
  return figure;
}

LayerLines layers_of_channels() {
  return {
      Table::channels,
      "selection-by-layer",
      "Gain and error by layer",
      "What each selection saves of ThinK's error, and what it costs, layer by layer (IAP, fig. 3): above "
      "0 a layer gains.",
      offered_by_gain(),
      "method",
      {{"rows", "on the"}, {"ratio", "share pruned"}, {"semantics", "semantics"}, {"recent", "recent"}},
      {"rows", "window"}};
}

}  // namespace

std::optional<Figure> channel_layers_figure(const OverDumpsReader& results) {
  return layer_lines(results, layers_of_channels());
}

Section channel_section(const Tables& tables) {
  return section_of(
      "channels", "Key channels",
      {ratio_figure(tables.channels), layer_lines(tables, tables.channels, layers_of_channels()),
       query_figure(tables.results), interaction_figure(tables)},
      "No channel interactions; kvreplay channels DUMP --out DIR computes them.");
}

}  // namespace kvreplay::report
