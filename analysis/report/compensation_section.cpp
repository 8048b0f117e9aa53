#include "analysis/eviction/eviction_options.hpp"
#include "analysis/findings/findings.hpp"
#include "analysis/report/figure.hpp"
#include "analysis/report/figure_maps.hpp"
#include "analysis/report/line_plot.hpp"
#include "analysis/report/sections.hpp"
#include "analysis/report/text.hpp"
#include "analysis/results/kept_text.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace kvreplay::report {
namespace {

/// Of the rows there are in a table, those that judge first.
std::vector<std::string> rows_of(const FigureTable& table, const Wanted& common) {
  std::vector<std::string> rows = table.distinct("rows", common);
  std::stable_partition(rows.begin(), rows.end(),
                        [&](const std::string& one) { return one == best_rows(table); });
  return rows;
}

/// Calls back with what fixes a kept set and its rows, but for the policy: the values and their names in
/// lists.
template <class Visit>
void each_setting(const FigureTable& table, const Wanted& common, const Visit& visit) {
  for (const std::string& rows : rows_of(table, common))
    for (const std::string& phase : table.distinct("phase", common))
      for (const std::string& semantics : table.distinct("semantics", common)) {
        Wanted wanted = common;
        wanted.insert(wanted.end(), {{"rows", rows}, {"phase", phase}, {"semantics", semantics}});
        if (table.find(wanted) != nullptr) visit(wanted, std::vector{rows_text(rows), phase, semantics});
      }
}

std::vector<std::string> picks_with(std::vector<std::string> first, const std::vector<std::string>& second) {
  first.insert(first.end(), second.begin(), second.end());
  return first;
}

/// The same with policy and budget: what fixes a kept set and its rows.
template <class Visit>
void each_kept_set(const FigureTable& table, const Wanted& common, const Visit& visit) {
  each_setting(table, common, [&](const Wanted& setting, const std::vector<std::string>& names) {
    for (const std::string& policy : table.distinct("policy", setting))
      for (const std::string& budget : table.distinct("budget", setting))
        visit(with(with(setting, "policy", policy), "budget", budget), policy, kept_text(budget), names);
  });
}

std::optional<Figure> method_figure(const FigureTable& table) {
  Variants maps("methods");
  each_setting(table, {{"metric", "output_error"}}, [&](const Wanted& setting, const auto& names) {
    for (const std::string& budget : table.distinct("budget", setting)) {
      const Wanted common = with(setting, "budget", budget);
      CellMap map = model_map(table, "method", "policy", common);
      map.id = maps.next_id();
      map.title = fmt::format("Output error of every policy under every method, {}", kept_text(budget));
      map.column_label = "who chose the tokens";
      map.value_label = fmt::format("||o' - o||^2 / ||o||^2 on the {}", names.front());
      mark_lowest(map, table.table(), "method");
      maps.add(picks_with({kept_text(budget)}, names), map);
    }
  });
  if (maps.empty()) return std::nullopt;
  Figure figure = maps.figure({"budget", "on the", "phase", "semantics"});
  figure.heading = "What kept tokens make up for";
  figure.reading =
      "Policies choose the tokens, methods change what stands beside their keys: darker is worse, "
      "\"none\" is what is kept as it was, and bold the lowest of a column.";
  return figure;
}

std::optional<Figure> budget_figure(const FigureTable& table, Index l) {
  Variants plots("compensation-by-budget");
  const std::vector<const FigureFacts*> offered = offered_figures(Table::compensation);
  for (const FigureFacts* const facts : offered)
    each_setting(table, {{"metric", facts->name}}, [&](const Wanted& setting, const auto& names) {
      for (const std::string& policy : table.distinct("policy", setting)) {
        const Wanted common = with(setting, "policy", policy);
        std::vector<std::pair<double, std::string>> budgets;
        for (const std::string& budget : table.distinct("budget", common))
          budgets.emplace_back(tokens_kept(budget, table.find(with(common, "budget", budget))->kept, l),
                               budget);
        std::erase_if(budgets, [](const auto& one) { return std::isnan(one.first); });
        std::sort(budgets.begin(), budgets.end());
        LinePlot plot = model_plot(table, common, *facts, "method", "budget", budgets);
        std::erase_if(plot.lines, [](const auto& line) { return std::isnan(largest(line.values)); });
        if (plot.at.empty() || plot.lines.empty()) continue;
        plot.x = linear_axis("tokens kept of each head", plot.at, true);
        plot.x.high = plot.at.back();
        plot.id = plots.next_id();
        plot.title = fmt::format("{} of {} by tokens kept, on the {}", facts->name, policy, names.front());
        plots.add(picks_with({std::string(facts->name), policy}, names), plot);
      }
    });
  if (plots.empty()) return std::nullopt;
  Figure figure = plots.figure({"metric", "policy", "on the", "phase", "semantics"});
  figure.heading = "The same by budget";
  figure.shows = offered;
  figure.reading = fmt::format(
      "Each line is a method on the tokens that one policy keeps. {}. On the reference rows a fit is as good "
      "as it can be; what it is worth shows on rows that it has not seen.",
      directions_text(offered));
  return figure;
}

/// Where an error comes from, one row a method.
std::optional<Figure> split_figure(const FigureTable& table) {
  Variants maps("error-split");
  const std::vector<std::string> terms = {"output_error", "selection", "mass", "values", "bound"};
  each_kept_set(table, {},
                [&](const Wanted& common, const auto& policy, const auto& budget, const auto& names) {
                  if (table.find(with(common, "metric", "selection")) == nullptr) return;
                  CellMap map = model_map(table, "method", "metric", common, terms);
                  map.id = maps.next_id();
                  map.title = fmt::format("Terms of the output error of {}, {}", policy, budget);
                  map.value_label = fmt::format("squared norm over ||o||^2 on the {}", names.front());
                  maps.add(picks_with({policy, budget}, names), map);
                });
  if (maps.empty()) return std::nullopt;
  Figure figure = maps.figure({"policy", "budget", "on the", "phase", "semantics"});
  figure.heading = "Where the error comes from";
  figure.reading =
      "The change of an output is a sum of three vectors: selection, what is kept scaled to the whole "
      "prompt's mass; mass, what the mass that it really has and the biases change of that; values, what "
      "other values change of that. Their squared norms stand here; the vectors may cancel, so that they do "
      "not add up to output_error. bound is the least that any values could reach beside these keys and "
      "biases on these very rows; it is hatched unless rows outnumber tokens.";
  return figure;
}

std::optional<Figure> method_layer_figure(const Tables& tables) {
  const FigureTable& table = tables.compensation;
  Variants maps("compensation-by-layer");
  each_kept_set(table, {{"metric", "output_error"}},
                [&](const Wanted& common, const auto& policy, const auto& budget, const auto& names) {
                  CellMap map = layer_map(tables.results, table, "method", common);
                  if (map.rows.empty()) return;
                  map.id = maps.next_id();
                  map.title = fmt::format("Output error of {} by method and layer, {}", policy, budget);
                  map.value_label = fmt::format("output_error on the {}", names.front());
                  maps.add(picks_with({policy, budget}, names), map);
                });
  if (maps.empty()) return std::nullopt;
  Figure figure = maps.figure({"policy", "budget", "on the", "phase", "semantics"});
  figure.heading = "Which layers a method serves";
  figure.reading =
      "Methods downwards, layers across. An error is a share of its own layer's output. Single heads are "
      "among the maps of heads.";
  return figure;
}

}  // namespace

Section compensation_section(const Tables& tables) {
  const FigureTable& table = tables.compensation;
  Section section = section_of(
      "compensation", "What kept tokens make up for",
      {method_figure(table), budget_figure(table, tables.results.shape().l), split_figure(table),
       method_layer_figure(tables)},
      "Nothing makes up for what is evicted here; kvreplay evict DUMP --out DIR --compensate none,fit does.");
  for (Finding& one : compensation_findings(table)) section.findings.push_back(std::move(one.text));
  return section;
}

}  // namespace kvreplay::report
