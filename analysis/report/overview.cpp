#include "analysis/eviction/eviction_options.hpp"
#include "analysis/report/cell_map.hpp"
#include "analysis/report/figure.hpp"
#include "analysis/report/figure_maps.hpp"
#include "analysis/report/sections.hpp"
#include "analysis/results/how_large.hpp"
#include "analysis/results/kept_text.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace kvreplay::report {
namespace {

/// Scores down; Spearman and recall, of the median and the worst head, across.
CellMap agreement_map(const FigureTable& agreement, const std::string& reference, const std::string& rows,
                      const std::string& window, const std::string& reserve) {
  CellMap map;
  map.title = fmt::format("How well each score follows {} on the {}", reference, rows_text(rows));
  map.column_label = "rank correlation (Spearman), and recall of the costliest 10 %";
  map.columns = {"rho median", "rho worst", "recall median", "recall worst"};
  // As errors beside it: what is bad is dark. A score that ranks the wrong way round is as bad as none.
  map.scale = {.low = 0, .high = 1, .flipped = true};
  map.value_label = "darker is worse";
  map.numbers = true;
  const Wanted common = {{"reference", reference}, {"rows", rows}, {"window", window}, {"reserve", reserve}};
  map.rows = agreement.distinct("score", common);
  map.values.resize(std::ssize(map.rows), 4);
  for (std::size_t i = 0; i < map.rows.size(); ++i) {
    const auto of = [&](const char* metric, double (*figure)(const std::vector<double>&)) {
      Wanted wanted = common;
      wanted.emplace_back("score", map.rows[i]);
      wanted.emplace_back("metric", metric);
      const auto* const entry = agreement.find(wanted);
      return entry == nullptr ? kNan : figure(entry->heads);
    };
    const auto middle = [](const std::vector<double>& values) { return median(values); };
    map.values.row(static_cast<Index>(i)) << of("spearman", middle), of("spearman", smallest),
        of("recall@10%", middle), of("recall@10%", smallest);
  }
  return map;
}

std::optional<Figure> agreement_figure(const FigureTable& agreement) {
  // The exact cost of a removal first, then the other references as the table has them.
  std::vector<std::string> references = agreement.distinct("reference");
  const auto remove = std::find(references.begin(), references.end(), "exact_remove");
  if (remove != references.end()) std::rotate(references.begin(), remove, remove + 1);
  Variants maps("scores");
  for (const std::string& reference : references)
    for (const std::string& rows : agreement.distinct("rows", {{"reference", reference}}))
      for (const std::string& window : agreement.distinct("window", {{"reference", reference}}))
        for (const std::string& reserve : agreement.distinct("reserve", {{"reference", reference}})) {
          CellMap map = agreement_map(agreement, reference, rows, window, reserve);
          map.id = maps.next_id();
          maps.add({fmt::format("{} ({})", reference, rows_text(rows)), window, reserve}, map);
        }
  if (maps.empty()) return std::nullopt;
  Figure figure = maps.figure({"against", "window", "last tokens reserved"});
  figure.heading =
      fmt::format("How well each score follows the exact error of {}",
                  references.front() == "exact_remove" ? "removing a token" : references.front());
  figure.reading =
      "Rows are scores that eviction methods rank tokens by; darker is worse. 1 is perfect: the score ranks "
      "a "
      "head's tokens as the exact error does (rho), or finds all of the tenth that costs most (recall). "
      "\"Worst\" is the head that it misleads most.";
  return figure;
}

void budgets_in_words(CellMap& map, Index l) {
  for (std::string& budget : map.columns) {
    const double kept = tokens_kept(budget, "", l);
    const bool share = budget.find('.') != std::string::npos;
    budget = kept_text(budget) + (share && !std::isnan(kept) ? fmt::format(" ({:g})", kept) : "");
  }
}

/// A figure of evictions of the whole model: policies down, budgets across.
CellMap policy_map(const Tables& tables, const Wanted& common) {
  CellMap map = model_map(tables.evictions, "policy", "budget", common);
  map.column_label = "of the prompt's tokens";
  budgets_in_words(map, tables.results.shape().l);
  return map;
}

std::optional<Figure> eviction_figure(const Tables& tables) {
  const FigureTable& table = tables.evictions;
  Variants maps("policies");
  std::vector<std::string> rows_list = table.distinct("rows", {{"metric", "output_error"}});
  std::sort(rows_list.begin(), rows_list.end());  // "future" first
  for (const std::string& rows : rows_list)
    for (const std::string& phase : table.distinct("phase"))
      for (const std::string& semantics : table.distinct("semantics", {{"phase", phase}})) {
        const Wanted common = {
            {"metric", "output_error"}, {"rows", rows}, {"phase", phase}, {"semantics", semantics}};
        if (table.find(common) == nullptr) continue;
        CellMap map = policy_map(tables, common);
        map.id = maps.next_id();
        map.title = fmt::format("Output error of every policy on the {}, phase {}", rows_text(rows), phase);
        map.value_label = fmt::format("||o' - o||^2 / ||o||^2 on the {}, darker is worse", rows_text(rows));
        add_median_heads(map, table, "policy", "budget", common);
        mark_lowest(map, table.table(), "policy");
        maps.add({rows_text(rows), phase, semantics}, map);
      }
  if (maps.empty()) return std::nullopt;
  Figure figure = maps.figure({"on the", "phase", "semantics"});
  figure.heading = "What each policy loses, by tokens kept";
  figure.reading =
      "The exact change of all heads' outputs when only so many tokens a head stay: darker is worse, 0.01 is "
      "one per cent of the output's energy; the median head stands beside what a few heads may rule. Bold: "
      "the "
      "lowest of the column, oracles (which know the decoding steps) apart.";
  return figure;
}

/// In nats, by name: the sums that come nearest to what the model loses.
std::optional<Figure> nats_figure(const Tables& tables) {
  const FigureTable& table = tables.evictions;
  const std::string rows = best_rows(table);
  Variants maps("nats");
  for (const FigureFacts* const facts : {&kLossStep, &kLossLayer})
    for (const std::string& phase : table.distinct("phase"))
      for (const std::string& semantics : table.distinct("semantics", {{"phase", phase}})) {
        const Wanted common = {
            {"metric", facts->name}, {"rows", rows}, {"phase", phase}, {"semantics", semantics}};
        if (table.find(common) == nullptr) continue;
        CellMap map = policy_map(tables, common);
        map.id = maps.next_id();
        map.title = fmt::format("{} of every policy, phase {}", facts->name, phase);
        map.value_label =
            fmt::format("{}, nats a step on the {}, darker is worse", facts->name, rows_text(rows));
        mark_lowest(map, table.table(), "policy");
        maps.add({std::string(facts->name), phase, semantics}, map);
      }
  if (maps.empty()) return std::nullopt;
  Figure figure = maps.figure({"by", "phase", "semantics"});
  figure.heading = "What each policy is predicted to cost the model, in nats";
  figure.reading =
      "The dump's gradients say what a change of the outputs costs the predictions: loss_step adds up what "
      "all "
      "heads and layers do in a row before it is squared, loss_layer what the rows and heads of a layer do. "
      "In "
      "short: " +
      fmt::format("{}; {}.", kNatsPromise, how_large(judged_cases(tables.results)));
  return figure;
}

std::optional<Figure> budget_figure(const FigureTable& table) {
  Variants maps("shares");
  for (const std::string& order : table.distinct("order")) {
    CellMap map = model_map(table, "method", "sigma", {{"order", order}, {"metric", "output_error"}});
    map.id = maps.next_id();
    map.title = fmt::format("Output error of every way to share a budget, order {}", order);
    map.column_label = "of all heads' tokens";
    for (std::string& sigma : map.columns) sigma = kept_text(sigma);
    map.value_label = "||o' - o||^2 / ||o||^2 on the decoding steps, darker is worse";
    add_median_heads(map, table, "method", "sigma", {{"order", order}, {"metric", "output_error"}});
    mark_lowest(map, table.table(), "method");
    maps.add({order}, map);
  }
  if (maps.empty()) return std::nullopt;
  Figure figure = maps.figure({"tokens ranked by"});
  figure.heading = "What it is worth to share one budget between heads";
  figure.reading =
      "Every row divides the same number of tokens differently between the heads; darker is worse, bold is "
      "the lowest, oracles (which know the decoding steps) apart. The median head stands beside the error of "
      "all.";
  return figure;
}

std::optional<Figure> channel_figure(const FigureTable& table) {
  Variants maps("pruning");
  std::vector<std::string> rows_list = table.distinct("rows", {{"metric", "output_error"}});
  std::sort(rows_list.begin(), rows_list.end());
  for (const std::string& rows : rows_list) {
    const Wanted common = {{"metric", "output_error"}, {"rows", rows}};
    CellMap map = model_map(table, "method", "ratio", common);
    map.id = maps.next_id();
    map.title = fmt::format("Output error of every channel selection on the {}", rows_text(rows));
    map.column_label = "share of key channels pruned";
    map.value_label = fmt::format("||o' - o||^2 / ||o||^2 on the {}, darker is worse", rows_text(rows));
    add_median_heads(map, table, "method", "ratio", common);
    mark_lowest(map, table.table(), "method");
    maps.add({rows_text(rows)}, map);
  }
  if (maps.empty()) return std::nullopt;
  Figure figure = maps.figure({"on the"});
  figure.heading = "What pruning key channels costs";
  figure.reading =
      "The exact change of the outputs when a share of every key's channels is set to 0; darker is worse, "
      "bold is the lowest. The median head stands beside the error of all.";
  return figure;
}

}  // namespace

std::vector<std::string> head_names(const ResultReader& results) {
  std::vector<std::string> names;
  for (const Index layer : results.layers())
    for (Index head = 0; head < results.shape().n_kv; ++head)
      names.push_back(fmt::format("layer {}, head {}", layer, head));
  return names;
}

std::string best_rows(const FigureTable& table) {
  const std::vector<std::string> rows = table.distinct("rows");
  return std::find(rows.begin(), rows.end(), "future") != rows.end() ? "future" : "window";
}

Section overview_section(const Tables& tables) {
  return section_of(
      "overview", "How good each approximation is",
      {agreement_figure(tables.agreement), budget_figure(tables.budgets), eviction_figure(tables),
       nats_figure(tables), channel_figure(tables.channels)},
      "These results hold no table of figures; kvreplay analyze DUMP --out DIR writes them all.");
}

}  // namespace kvreplay::report
