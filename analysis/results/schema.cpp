#include "analysis/results/schema.hpp"

#include "analysis/results/figures.hpp"
#include "sim/tokens/token_facts.hpp"

#include <fmt/format.h>

#include <algorithm>

namespace kvreplay {
namespace {

constexpr std::string_view kMetric = "metric";

template <class Rows>
std::vector<const FigureFacts*> pointers_to(const Rows& rows) {
  std::vector<const FigureFacts*> all;
  for (const FigureFacts& row : rows) all.push_back(&row);
  return all;
}

/// Token metrics summed over all tokens of a head.
std::vector<const FigureFacts*> sums_of_metrics() {
  struct Sum {
    std::string title;
    FigureFacts facts;
  };
  static const std::vector<Sum> sums = [] {
    std::vector<Sum> all(kTokenMetrics.size());
    for (const TokenMetricFacts& metric : kTokenMetrics) {
      Sum& sum = all[static_cast<std::size_t>(metric.id)];
      sum.title = fmt::format("{}, summed over tokens", metric.name);
      const bool score = metric.kind == MetricKind::score;
      sum.facts = {{.unit = name_of(metric.unit),
                    .better = score ? Better::neither : Better::smaller,
                    .scale = metric.linear ? FigureScale::linear : FigureScale::log,
                    .exact = !score,
                    .levels = kHeadsOnly},
                   metric.name,
                   sum.title,
                   metric.meaning};
    }
    return all;
  }();
  std::vector<const FigureFacts*> all;
  for (const Sum& sum : sums) all.push_back(&sum.facts);
  return all;
}

std::vector<const FigureFacts*> all_figures(Table table) {
  switch (table) {
    case Table::heads:
      return sums_of_metrics();
    case Table::agreement:
      return pointers_to(kAgreementFigures);
    case Table::evictions:
      return pointers_to(kEvictionFigures);
    case Table::decode:
      return pointers_to(kDecodeFigures);
    case Table::diff:
      return pointers_to(kDiffFigures);
    case Table::budgets:
      return pointers_to(kBudgetFigures);
    case Table::channels:
      return pointers_to(kChannelFigures);
    case Table::compensation:
      return pointers_to(kCompensationFigures);
  }
  return {};
}

}  // namespace

std::string file_of(Table table) { return std::string(name_of(table)) + ".csv"; }

std::span<const FigureFacts* const> figures_of(Table table) {
  static const std::vector<std::vector<const FigureFacts*>> all = [] {
    std::vector<std::vector<const FigureFacts*>> tables;
    for (const Table one : kTables.all()) tables.push_back(all_figures(one));
    return tables;
  }();
  return all[static_cast<std::size_t>(table)];
}

const FigureFacts* figure_named(Table table, std::string_view name) {
  for (const FigureFacts* const facts : figures_of(table))
    if (facts->name == name) return facts;
  return nullptr;
}

std::vector<const FigureFacts*> offered_figures(Table table) {
  const bool medians = facts_of(table).heads_only;
  std::vector<const FigureFacts*> offered;
  for (const FigureFacts* const facts : figures_of(table))
    if (facts->offered && (medians || facts->levels.model)) offered.push_back(facts);
  return offered;
}

std::string meaning_of(const FigureFacts& facts, std::string_view before, std::string_view between) {
  std::vector<std::string> traits;
  if (facts.name.empty()) return "";
  if (!facts.unit.empty()) traits.emplace_back(facts.unit);
  traits.emplace_back(facts.exact ? "exact" : "an approximation");
  if (facts.better != Better::neither)
    traits.emplace_back(facts.better == Better::smaller ? "smaller is better" : "larger is better");
  return fmt::format("{}{}{}{}", before, facts.what, facts.what.empty() ? "" : between,
                     fmt::join(traits, ", "));
}

std::vector<std::string> split_list(std::string_view text) {
  std::vector<std::string> parts;
  while (!text.empty()) {
    const std::size_t end = std::min(text.find(','), text.size());
    parts.emplace_back(text.substr(0, end));
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return parts;
}

bool is_swept(Table table, std::string_view key) {
  const std::vector<std::string> keys = split_list(facts_of(table).swept);
  return is_in(keys, key);
}

bool is_wide(Table table) { return !facts_of(table).columns.ends_with("metric,value"); }

std::vector<std::string> key_columns(Table table) {
  std::vector<std::string> keys = split_list(facts_of(table).columns);
  const std::vector<std::string> derived = split_list(facts_of(table).derived);
  const bool wide = is_wide(table);
  std::erase_if(keys, [&](const std::string& column) {
    return is_in(derived, column) || (wide ? figure_named(table, column) != nullptr : column == "value");
  });
  return keys;
}

std::vector<std::string> figure_keys(Table table) {
  std::vector<std::string> keys = key_columns(table);
  if (is_wide(table)) keys.emplace_back(kMetric);
  return keys;
}

}  // namespace kvreplay
