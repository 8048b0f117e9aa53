#include "analysis/report/allocation_figure.hpp"
#include "analysis/report/cell_map.hpp"
#include "analysis/report/figure.hpp"
#include "analysis/report/layer_lines.hpp"
#include "analysis/report/line_plot.hpp"
#include "analysis/report/sections.hpp"
#include "analysis/report/series.hpp"
#include "analysis/results/budget_methods.hpp"
#include "analysis/results/figures.hpp"
#include "analysis/results/kept_text.hpp"
#include "analysis/results/map_name.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <optional>

namespace kvreplay::report {
namespace {

std::optional<Figure> loss_figure(const FigureTable& table) {
  Variants variants("loss-by-sigma");
  for (const FigureFacts* const facts : offered_figures(Table::budgets)) {
    const std::string metric(facts->name);
    for (const std::string& order : table.distinct("order")) {
      for (const bool of_median_head : {false, true}) {
        if (of_median_head && !is_error_of_heads(*facts)) continue;
        LinePlot plot = model_plot(table, {{"order", order}, {"metric", metric}}, *facts, "method", "sigma",
                                   by_number(table.distinct("sigma", {{"order", order}})), of_median_head);
        const bool drawn = std::any_of(plot.lines.begin(), plot.lines.end(),
                                       [](const auto& line) { return !std::isnan(largest(line.values)); });
        if (!drawn) continue;
        const std::string shown = metric + (of_median_head ? kMedianHead : "");
        plot.id = variants.next_id();
        plot.title = fmt::format("{} of every way to share the budget, order {}", shown, order);
        plot.x = linear_axis("sigma, the share of tokens evicted", plot.at, false);
        variants.add({shown, order}, plot);
      }
    }
  }
  if (variants.empty()) return std::nullopt;
  Figure figure = variants.figure({"figure", "tokens ranked by"});
  figure.heading = "Loss by method and compression";
  figure.shows = offered_figures(Table::budgets);
  figure.reading = fmt::format(
      "All methods keep the same number of tokens over all heads and differ in who gets them. loss is what "
      "the methods minimise, a sum over evicted tokens; output_error is what the outputs really change by. A "
      "method may lower the one and not the other. {}.",
      oracles_of_budgets());
  return figure;
}

std::optional<Figure> share_figure(const Tables& tables) {
  const FigureTable& table = tables.budgets;
  Variants maps("shared-budget");
  // What is shared unevenly first.
  std::vector<const FigureTable::Entry*> entries;
  for (const auto& entry : table.entries())
    if (table.key(entry, "metric") == "budget") entries.push_back(&entry);
  std::stable_partition(entries.begin(), entries.end(),
                        [&](const auto* entry) { return table.key(*entry, "method") == "lu"; });
  for (const auto* const entry : entries) {
    CellMap map = map_of_heads(tables.results, Eigen::Map<const Matrix<double>>(
                                                   entry->heads.data(), std::ssize(tables.results.layers()),
                                                   tables.results.shape().n_kv));
    map.id = maps.next_id();
    const std::string method = shown_name(table.key(*entry, "method")),
                      budget = kept_text(table.key(*entry, "sigma"));
    map.title =
        fmt::format("Tokens of every head, {}, order {}, {}", method, table.key(*entry, "order"), budget);
    map.scale = {false, false, 0, static_cast<double>(std::max<Index>(tables.results.shape().l, 1))};
    map.value_label = "tokens kept, of the whole prompt";
    maps.add({method, table.key(*entry, "order"), budget}, map);
  }
  if (maps.empty()) return std::nullopt;
  Figure figure = maps.figure({"method", "tokens ranked by", "budget"});
  figure.heading = "Who gets the tokens";
  figure.reading =
      "The tokens that each head keeps. Dark heads are those that the method found to need the most; a map "
      "of one colour is an even split.";
  return figure;
}

std::optional<Figure> curve_figure(const Tables& tables) {
  SeriesFigure series;
  series.name = "loss-curves";
  series.heading = "Loss curves";
  series.reading =
      "What a head still loses when the first b tokens of its order are kept, as a share of what it loses "
      "without any. A curve that falls at once belongs to a head that needs few tokens; one that falls along "
      "the diagonal has no order to speak of.";
  series.x_label = "b, tokens kept of the head";
  series.y_label = "share of the loss that is left";
  series.share = true;
  series.second = {"", {""}};
  series.heads = head_names(tables.results);
  const std::vector<std::string> orders = tables.budgets.distinct("order");
  const auto file_of = [](const std::string& order) {
    return std::filesystem::path("curves") / (file_word(order) + ".npy");
  };
  for (const std::string& order : orders)
    if (tables.results.has(file_of(order))) series.lines.push_back(order);
  for (std::size_t i = 0; i < series.lines.size(); ++i)
    series.add(0, i, tables.results.array(file_of(series.lines[i])), tables.results);
  return figure_of(series);
}

LayerLines layers_of_budgets() {
  return {Table::budgets,
          "budget-by-layer",
          "Loss by layer",
          "What each way to share the budget loses, layer by layer (LU-KV, fig. 3): a line that stays low "
          "everywhere has no layer that pays for the others.",
          offered_figures(Table::budgets),
          "method",
          {{"order", "tokens ranked by"}, {"sigma", "budget"}}};
}

}  // namespace

std::optional<Figure> budget_layers_figure(const OverDumpsReader& results) {
  return layer_lines(results, layers_of_budgets());
}

Section budget_section(const Tables& tables) {
  return section_of("budgets", "Head budgets",
                    {loss_figure(tables.budgets), layer_lines(tables, tables.budgets, layers_of_budgets()),
                     share_figure(tables), allocation_figure(tables), curve_figure(tables)},
                    "No budgets shared between heads; kvreplay budget DUMP --out DIR computes them.");
}

}  // namespace kvreplay::report
