#include "analysis/eviction/eviction_options.hpp"
#include "analysis/report/figure.hpp"
#include "analysis/report/figure_maps.hpp"
#include "analysis/report/line_plot.hpp"
#include "analysis/report/sections.hpp"
#include "analysis/report/series.hpp"
#include "analysis/results/figures.hpp"
#include "analysis/results/kept_text.hpp"
#include "analysis/results/map_name.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <optional>

namespace kvreplay::report {
namespace {

/// One line a policy; x is the number of tokens kept, ascending.
LinePlot budget_plot(const Tables& tables, const Wanted& common, const FigureFacts& figure,
                     bool of_median_head) {
  const FigureTable& table = tables.evictions;
  const Index l = tables.results.shape().l;
  std::vector<std::pair<double, std::string>> budgets;
  for (const std::string& budget : table.distinct("budget", common)) {
    Wanted wanted = common;
    wanted.emplace_back("budget", budget);
    const auto* const entry = table.find(wanted);
    if (const double kept = tokens_kept(budget, entry->kept, l); !std::isnan(kept))
      budgets.emplace_back(kept, budget);
  }
  std::stable_sort(budgets.begin(), budgets.end(),
                   [](const auto& a, const auto& b) { return a.first < b.first; });
  LinePlot plot = model_plot(table, common, figure, "policy", "budget", budgets, of_median_head);
  std::erase_if(plot.lines, [](const auto& line) {
    return std::all_of(line.values.begin(), line.values.end(), [](double v) { return std::isnan(v); });
  });
  plot.x = linear_axis("tokens kept of each head", plot.at, true);
  if (!plot.at.empty()) plot.x.high = plot.at.back();
  return plot;
}

std::optional<Figure> budget_figure(const Tables& tables) {
  const FigureTable& table = tables.evictions;
  Variants variants("error-by-budget");
  for (const FigureFacts* const facts : offered_figures(Table::evictions)) {
    const std::string metric(facts->name);
    std::vector<std::string> rows_list = table.distinct("rows", {{"metric", metric}});
    std::sort(rows_list.begin(), rows_list.end());
    for (const std::string& rows : rows_list)
      for (const std::string& phase : table.distinct("phase", {{"metric", metric}, {"rows", rows}}))
        for (const std::string& semantics : table.distinct("semantics", {{"phase", phase}})) {
          const Wanted common = {
              {"metric", metric}, {"rows", rows}, {"phase", phase}, {"semantics", semantics}};
          if (table.find(common) == nullptr) continue;
          for (const bool of_median_head : {false, true}) {
            if (of_median_head && !is_error_of_heads(*facts)) continue;
            LinePlot plot = budget_plot(tables, common, *facts, of_median_head);
            if (plot.at.empty() || plot.lines.empty()) continue;
            const std::string shown = metric + (of_median_head ? kMedianHead : "");
            plot.id = variants.next_id();
            plot.title = fmt::format("{} by tokens kept{}, phase {}, {}", shown,
                                     rows.empty() ? "" : ", on the " + rows_text(rows), phase, semantics);
            variants.add({shown, rows_text(rows), phase, semantics}, plot);
          }
        }
  }
  if (variants.empty()) return std::nullopt;
  Figure figure = variants.figure({"metric", "on the", "phase", "semantics"});
  figure.heading = "Error by budget";
  figure.shows = offered_figures(Table::evictions);
  figure.reading = fmt::format(
      "Each line is a policy: the same base has the same colour and marker, the score on top of it another "
      "dash. {}; a line that falls late keeps the wrong tokens first. Zeros stand on the lower edge.",
      directions_text(figure.shows));
  return figure;
}

std::optional<Figure> layer_figure(const Tables& tables) {
  const FigureTable& table = tables.evictions;
  const std::string rows = best_rows(table);
  Variants maps("error-by-layer");
  for (const std::string& phase : table.distinct("phase"))
    for (const std::string& semantics : table.distinct("semantics", {{"phase", phase}}))
      for (const std::string& budget : table.distinct("budget", {{"phase", phase}})) {
        const Wanted common = {{"metric", "output_error"},
                               {"rows", rows},
                               {"phase", phase},
                               {"semantics", semantics},
                               {"budget", budget}};
        CellMap map = layer_map(tables.results, table, "policy", common);
        if (map.rows.empty()) continue;
        map.id = maps.next_id();
        map.title =
            fmt::format("Output error of every policy and layer, {}, phase {}", kept_text(budget), phase);
        map.value_label = fmt::format("output_error on the {}", rows_text(rows));
        maps.add({phase, kept_text(budget), semantics}, map);
      }
  if (maps.empty()) return std::nullopt;
  Figure figure = maps.figure({"phase", "budget", "semantics"});
  figure.heading = "Which layers lose";
  figure.reading =
      "Policies downwards, layers across: a dark column is a layer that no policy serves well, a dark row a "
      "policy that fails everywhere. An error is a share of its own layer's output.";
  return figure;
}

/// decode/ holds runs that only append under a name of their own.
constexpr std::string_view kAppendOnly = "~append-only";

struct DecodeRun {
  std::string option, policy, file;
};

DecodeRun decode_run(const FigureTable& table, const FigureTable::Entry& entry) {
  const std::string &name = table.key(entry, "policy"), &semantics = table.key(entry, "semantics"),
                    &budget = table.key(entry, "budget");
  const bool appends = name.ends_with(kAppendOnly);
  return {fmt::format("{}{}, {}", budget, appends ? ", append-only" : "", semantics),
          appends ? name.substr(0, name.size() - kAppendOnly.size()) : name,
          fmt::format("{}-{}-{}.npy", file_word(name), semantics, budget)};
}

/// Every entry of the last axis becomes the mean of those up to it.
void running_means(ResultReader::Array& array) {
  const Index steps = array.shape.empty() ? 0 : array.shape.back();
  for (Index first = 0; steps > 0 && first < std::ssize(array.values); first += steps) {
    double sum = 0;
    for (Index step = 0; step < steps; ++step) {
      double& value = array.values[first + step];
      sum += value;
      value = sum / static_cast<double>(step + 1);
    }
  }
}

std::optional<Figure> decode_figure(const Tables& tables) {
  const FigureTable& table = tables.decode;
  if (table.empty()) return std::nullopt;
  SeriesFigure series;
  series.name = "decode";
  series.heading = "Output error while decoding";
  series.reading =
      "The cache is cut again at every step (append-only: never). Each line is the output error, ||o' - "
      "o||^2 / ||o||^2, as its mean over the steps so far; the last point is the mean of decode.csv. A line "
      "that climbs is a policy that throws away what later steps need. Zeros stand on the lower edge.";
  series.x_label = "decoding step";
  series.y_label = "mean output error of the steps so far";
  series.second = {"budget", {}};
  series.heads = head_names(tables.results);
  for (const auto& entry : table.entries()) {
    const DecodeRun run = decode_run(table, entry);
    place_in(series.second.options, run.option);
    place_in(series.lines, run.policy);
  }
  for (const auto& entry : table.entries()) {
    if (table.key(entry, "metric") != "mean") continue;
    const DecodeRun run = decode_run(table, entry);
    auto array = tables.results.array(std::filesystem::path("decode") / run.file);
    running_means(array);
    series.add(place_in(series.second.options, run.option), place_in(series.lines, run.policy), array,
               tables.results);
  }
  return figure_of(series);
}

}  // namespace

Section eviction_section(const Tables& tables) {
  return section_of("evictions", "Evictions",
                    {budget_figure(tables), layer_figure(tables), decode_figure(tables)},
                    "No evictions; kvreplay evict DUMP --out DIR measures them.");
}

}  // namespace kvreplay::report
