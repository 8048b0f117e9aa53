#include "analysis/report/cell_map.hpp"
#include "analysis/report/figure.hpp"
#include "analysis/report/line_plot.hpp"
#include "analysis/report/picked_lines.hpp"
#include "analysis/report/sections.hpp"
#include "analysis/results/figures.hpp"
#include "analysis/results/kept_text.hpp"
#include "analysis/results/map_name.hpp"

#include <fmt/format.h>

#include <optional>

namespace kvreplay::report {
namespace {

std::optional<Figure> budget_figure(const Tables& tables) {
  const std::vector<const FigureFacts*> offered = offered_figures(Table::evictions);
  return model_figure(
      tables.evictions,
      {.name = "error-by-budget",
       .heading = "Error by budget",
       .reading = fmt::format(
           "Each line is a policy: the same base has the same colour and marker, the score on top of it "
           "another dash. {}; a line that falls late keeps the wrong tokens first. Zeros stand on the lower "
           "edge.",
           directions_text(offered)),
       .figures = offered,
       .item = "policy",
       .setting = "budget",
       .keys = {"rows", "phase", "semantics"},
       .labels = {"metric", "on the", "phase", "semantics"},
       .x = kTokensKept,
       .prompt = tables.results.shape().l,
       .title = [](const std::string& figure, const std::vector<std::string>& of) {
         return fmt::format("{} by tokens kept{}, phase {}, {}", figure,
                            of[0].empty() ? "" : ", on the " + of[0], of[1], of[2]);
       }});
}

std::optional<Figure> layer_figure(const Tables& tables) {
  const FigureTable& table = tables.evictions;
  const std::string rows = best_rows(table);
  Variants maps("error-by-layer");
  for (const Wanted& choice :
       table.choices({"phase", "semantics", "budget"}, {{"metric", "output_error"}, {"rows", rows}})) {
    const auto of = shown_keys(table.table(), std::span(choice).subspan(2));
    CellMap map = layer_map(tables.results, table, "policy", choice);
    map.title = fmt::format("Output error of every policy and layer, {}, phase {}", of[2], of[0]);
    map.value_label = fmt::format("output_error on the {}", rows_text(rows));
    maps.add({of[0], of[2], of[1]}, std::move(map));
  }
  return maps.figure(
      {"phase", "budget", "semantics"}, "Which layers lose",
      "Policies downwards, layers across: a dark column is a layer that no policy serves well, a dark row a "
      "policy that fails everywhere. An error is a share of its own layer's output.");
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
