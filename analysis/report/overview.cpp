#include "analysis/eviction/eviction_options.hpp"
#include "analysis/report/cell_map.hpp"
#include "analysis/report/figure.hpp"
#include "analysis/report/sections.hpp"
#include "analysis/results/comparisons.hpp"
#include "analysis/results/kept_text.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace kvreplay::report {
namespace {

/// Scores down; Spearman and recall, of the median and the worst head, across.
CellMap agreement_map(const MetricTable& agreement, const Wanted& common) {
  CellMap map;
  map.title =
      fmt::format("How well each score follows {} on the {}", common[0].second, rows_text(common[1].second));
  map.column_label = "rank correlation (Spearman), and recall of the costliest 10 %";
  map.columns = {"rho median", "rho worst", "recall median", "recall worst"};
  // Dark means bad, as in the maps of errors. A score that ranks in reverse order is as bad as none.
  map.scale = {.low = 0, .high = 1, .flipped = true};
  map.value_label = "darker is worse";
  map.numbers = true;
  map.rows = agreement.distinct("score", common);
  map.values.resize(std::ssize(map.rows), 4);
  for (std::size_t i = 0; i < map.rows.size(); ++i) {
    const auto of = [&](const char* metric, double (*figure)(const std::vector<double>&)) {
      const auto* const entry = agreement.find(with(with(common, "score", map.rows[i]), "metric", metric));
      return entry == nullptr ? kNan : figure(entry->heads);
    };
    const auto middle = [](const std::vector<double>& values) { return median(values); };
    map.values.row(static_cast<Index>(i)) << of("spearman", middle), of("spearman", smallest),
        of("recall@10%", middle), of("recall@10%", smallest);
  }
  return map;
}

std::optional<Figure> agreement_figure(const MetricTable& agreement) {
  // The exact cost of a removal first, then the other references as the table has them.
  std::vector<std::string> references = agreement.distinct("reference");
  const auto remove = std::ranges::find(references, "exact_remove");
  if (remove != references.end()) std::rotate(references.begin(), remove, remove + 1);
  Variants maps("scores");
  for (const std::string& reference : references)
    for (const Wanted& choice :
         agreement.choices({"rows", "window", "reserve"}, {{"reference", reference}})) {
      const auto of = shown_keys(agreement.table(), choice);
      maps.add({fmt::format("{} ({})", reference, of[1]), of[2], of[3]}, agreement_map(agreement, choice));
    }
  return maps.figure(
      {"against", "window", "last tokens reserved"},
      fmt::format("How well each score follows the exact error of {}",
                  references.empty() || references.front() == "exact_remove" ? "removing a token"
                                                                             : references.front()),
      "Rows are scores that eviction methods rank tokens by; darker is worse. 1 is perfect: the score ranks "
      "a head's tokens as the exact error does (rho), or finds all of the tenth that costs most (recall). "
      "\"Worst\" is the head that it misleads most.");
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

/// The output error of the model: rows are the values of `item`, columns those of `setting`, the median head
/// beside each, and the lowest marked.
CellMap error_map(const MetricTable& table, CellMap map, std::string_view item, std::string_view setting,
                  const Wanted& choice, const std::string& rows) {
  map.value_label = fmt::format("||o' - o||^2 / ||o||^2 on the {}, darker is worse", rows);
  add_median_heads(map, table, item, setting, choice);
  mark_lowest(map, table.table(), item);
  return map;
}

std::optional<Figure> eviction_figure(const Tables& tables) {
  const MetricTable& table = tables.evictions;
  Variants maps("policies");
  for (const Wanted& choice : table.choices({"rows", "phase", "semantics"}, {{"metric", "output_error"}})) {
    const auto of = shown_keys(table.table(), std::span(choice).subspan(1));
    CellMap map = error_map(table, policy_map(tables, choice), "policy", "budget", choice, of[0]);
    map.title = fmt::format("Output error of every policy on the {}, phase {}", of[0], of[1]);
    maps.add(of, std::move(map));
  }
  return maps.figure(
      {"on the", "phase", "semantics"}, "What each policy loses, by tokens kept",
      "The exact change of all heads' outputs when only so many tokens a head stay: darker is worse, 0.01 is "
      "one per cent of the output's energy; the median head stands beside what a few heads may rule. Bold: "
      "the lowest of the column, oracles (which know the decoding steps) apart.");
}

/// In nats, by name: the sums that come nearest to what the model loses.
std::optional<Figure> nats_figure(const Tables& tables) {
  const MetricTable& table = tables.evictions;
  const std::string rows = best_rows(table);
  Variants maps("nats");
  for (const FigureFacts* const facts : {&kLossStep, &kLossLayer})
    for (const Wanted& choice :
         table.choices({"phase", "semantics"}, {{"metric", facts->name}, {"rows", rows}})) {
      const std::string phase(choice[2].second), semantics(choice[3].second);
      CellMap map = policy_map(tables, choice);
      map.title = fmt::format("{} of every policy, phase {}", facts->name, phase);
      map.value_label =
          fmt::format("{}, nats a step on the {}, darker is worse", facts->name, rows_text(rows));
      mark_lowest(map, table.table(), "policy");
      maps.add({std::string(facts->name), phase, semantics}, std::move(map));
    }
  return maps.figure(
      {"by", "phase", "semantics"}, "What each policy is predicted to cost the model, in nats",
      fmt::format("The dump's gradients say what a change of the outputs costs the predictions: loss_step "
                  "adds up what all heads and layers do in a row before it is squared, loss_layer what the "
                  "rows and heads of a layer do. In short: {}; {}.",
                  kNatsPromise, how_large(judged_cases(tables.results))));
}

std::optional<Figure> budget_figure(const MetricTable& table) {
  Variants maps("shares");
  for (const Wanted& choice : table.choices({"order"}, {{"metric", "output_error"}})) {
    const std::string order(choice[1].second);
    CellMap map = model_map(table, "method", "sigma", choice);
    map.column_label = "of all heads' tokens";
    for (std::string& sigma : map.columns) sigma = kept_text(sigma);
    map = error_map(table, std::move(map), "method", "sigma", choice, "decoding steps");
    map.title = fmt::format("Output error of every way to share a budget, order {}", order);
    maps.add({order}, std::move(map));
  }
  return maps.figure(
      {"tokens ranked by"}, "What it is worth to share one budget between heads",
      "Every row divides the same number of tokens differently between the heads; darker is worse, bold is "
      "the lowest, oracles (which know the decoding steps) apart. The median head stands beside the error of "
      "all.");
}

std::optional<Figure> channel_figure(const MetricTable& table) {
  Variants maps("pruning");
  for (const Wanted& choice : table.choices({"rows"}, {{"metric", "output_error"}})) {
    const std::string rows = rows_text(choice[1].second);
    CellMap map =
        error_map(table, model_map(table, "method", "ratio", choice), "method", "ratio", choice, rows);
    map.title = fmt::format("Output error of every channel selection on the {}", rows);
    map.column_label = "share of key channels pruned";
    maps.add({rows}, std::move(map));
  }
  return maps.figure(
      {"on the"}, "What pruning key channels costs",
      "The exact change of the outputs when a share of every key's channels is set to 0; darker is worse, "
      "bold is the lowest. The median head stands beside the error of all.");
}

}  // namespace

std::vector<std::string> head_names(const ResultReader& results) {
  std::vector<std::string> names;
  for (const Index layer : results.layers())
    for (Index head = 0; head < results.shape().n_kv; ++head)
      names.push_back(fmt::format("layer {}, head {}", layer, head));
  return names;
}

Section overview_section(const Tables& tables) {
  return section_of(
      "overview", "How good each approximation is",
      {agreement_figure(tables.agreement), budget_figure(tables.budgets), eviction_figure(tables),
       nats_figure(tables), channel_figure(tables.channels)},
      "These results hold no table of figures; kvreplay analyze DUMP --out DIR writes them all.");
}

}  // namespace kvreplay::report
