#include "analysis/eviction/eviction_options.hpp"
#include "analysis/findings/findings.hpp"
#include "analysis/report/cell_map.hpp"
#include "analysis/report/figure.hpp"
#include "analysis/report/line_plot.hpp"
#include "analysis/report/sections.hpp"
#include "analysis/results/kept_text.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace kvreplay::report {
namespace {

const std::vector<std::string_view> kKeptSet = {"rows", "phase", "semantics", "policy", "budget"};

/// A choice as lists show it: how much is kept and by whom, then rows, phase and semantics.
std::vector<std::string> picks_of(const FigureTable& table, const Wanted& choice, std::size_t common) {
  std::vector<std::string> picks = shown_keys(table.table(), std::span(choice).subspan(common));
  std::rotate(picks.begin(), picks.begin() + 3, picks.end());
  return picks;
}

std::optional<Figure> method_figure(const FigureTable& table) {
  Variants maps("methods");
  for (const Wanted& choice :
       table.choices({"rows", "phase", "semantics", "budget"}, {{"metric", "output_error"}})) {
    const std::vector<std::string> picks = picks_of(table, choice, 1);
    CellMap map = model_map(table, "method", "policy", choice);
    map.title = fmt::format("Output error of every policy under every method, {}", picks[0]);
    map.column_label = "who chose the tokens";
    map.value_label = fmt::format("||o' - o||^2 / ||o||^2 on the {}", picks[1]);
    mark_lowest(map, table.table(), "method");
    maps.add(picks, std::move(map));
  }
  return maps.figure(
      {"budget", "on the", "phase", "semantics"}, "What kept tokens make up for",
      "Policies choose the tokens, methods change what stands beside their keys: darker is worse, "
      "\"none\" is what is kept as it was, and bold the lowest of a column.");
}

std::optional<Figure> budget_figure(const FigureTable& table, Index l) {
  const std::vector<const FigureFacts*> offered = offered_figures(Table::compensation);
  return model_figure(
      table,
      {.name = "compensation-by-budget",
       .heading = "The same by budget",
       .reading = fmt::format("Each line is a method on the tokens that one policy keeps. {}. On the "
                              "reference rows a fit is as good as it can be; what it is worth shows on rows "
                              "that it has not seen.",
                              directions_text(offered)),
       .figures = offered,
       .item = "method",
       .setting = "budget",
       .keys = {"rows", "phase", "semantics", "policy"},
       .labels = {"metric", "policy", "on the", "phase", "semantics"},
       .first_lists = 1,
       .x = kTokensKept,
       .prompt = l,
       .median_heads = false,
       .title = [](const std::string& figure, const std::vector<std::string>& of) {
         return fmt::format("{} of {} by tokens kept, on the {}", figure, of[3], of[0]);
       }});
}

/// Where an error comes from, one row a method.
std::optional<Figure> split_figure(const FigureTable& table) {
  Variants maps("error-split");
  for (const Wanted& choice : table.choices(kKeptSet, {})) {
    if (table.find(with(choice, "metric", "selection")) == nullptr) continue;
    const std::vector<std::string> picks = picks_of(table, choice, 0);
    CellMap map = model_map(table, "method", "metric", choice,
                            {"output_error", "selection", "mass", "values", "bound"});
    map.title = fmt::format("Terms of the output error of {}, {}", picks[0], picks[1]);
    map.value_label = fmt::format("squared norm over ||o||^2 on the {}", picks[2]);
    maps.add(picks, std::move(map));
  }
  return maps.figure(
      {"policy", "budget", "on the", "phase", "semantics"}, "Where the error comes from",
      "The change of an output is a sum of three vectors: selection, what is kept scaled to the whole "
      "prompt's mass; mass, what the mass that it really has and the biases change of that; values, what "
      "other values change of that. Their squared norms stand here; the vectors may cancel, so that they do "
      "not add up to output_error. bound is the least that any values could reach beside these keys and "
      "biases on these very rows; it is hatched unless rows outnumber tokens.");
}

std::optional<Figure> method_layer_figure(const Tables& tables) {
  const FigureTable& table = tables.compensation;
  Variants maps("compensation-by-layer");
  for (const Wanted& choice : table.choices(kKeptSet, {{"metric", "output_error"}})) {
    const std::vector<std::string> picks = picks_of(table, choice, 1);
    CellMap map = layer_map(tables.results, table, "method", choice);
    map.title = fmt::format("Output error of {} by method and layer, {}", picks[0], picks[1]);
    map.value_label = fmt::format("output_error on the {}", picks[2]);
    maps.add(picks, std::move(map));
  }
  return maps.figure(
      {"policy", "budget", "on the", "phase", "semantics"}, "Which layers a method serves",
      "Methods downwards, layers across. An error is a share of its own layer's output. Single heads are "
      "among the maps of heads.");
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
