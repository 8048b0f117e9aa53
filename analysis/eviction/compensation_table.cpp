#include "analysis/eviction/compensation_table.hpp"

#include "analysis/results/kept_text.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace kvreplay {
namespace {

using Cc = CompensationColumns;

}  // namespace

std::optional<double> CompensationTable::error_on(std::size_t which, Scope scope, RowSet rows) const {
  if (rows != RowSet::reference) return output_error(which, scope, rows);
  const double full_sq = sum(scope, columns_.of(Cc::reference_full_sq));
  if (std::isnan(full_sq)) return std::nullopt;  // nothing was fitted
  const double change_sq = sum(scope, columns_.of(which, Cc::reference_change_sq));
  return std::isnan(change_sq) ? std::nullopt : std::optional(relative_error(change_sq, full_sq));
}

std::optional<double> CompensationTable::term(std::size_t which, Scope scope, Index number,
                                              RowSet rows) const {
  const double found = sum(scope, columns_.of(which, Cc::terms_on(rows)) + number);
  if (std::isnan(found)) return std::nullopt;
  const auto full = rows == RowSet::window   ? Cc::window_full_sq
                    : rows == RowSet::future ? Cc::future_full_sq
                                             : Cc::reference_full_sq;
  return relative_error(found, sum(scope, columns_.of(full)));
}

std::optional<double> CompensationTable::value(std::size_t which, Scope scope, CompensationFigure figure,
                                               RowSet rows) const {
  const FigureFacts& facts = facts_of(figure);
  if (scoped_.empty() || !facts.rows.has(rows) || !facts.levels.has(level_of(scope))) return std::nullopt;
  if ((rows == RowSet::window && plan_.window.count() == 0) ||
      (rows == RowSet::future && plan_.future.count() == 0))
    return std::nullopt;
  switch (figure) {
    case CompensationFigure::output_error:
      return error_on(which, scope, rows);
    case CompensationFigure::layer_output_error:
      return layer_output_error(which, scope, rows);
    case CompensationFigure::selection:
    case CompensationFigure::mass:
    case CompensationFigure::values:
    case CompensationFigure::bound:
      return term(which, scope,
                  static_cast<Index>(figure) - static_cast<Index>(CompensationFigure::selection), rows);
    case CompensationFigure::bytes:
      return sum(scope, columns_.of(which, Cc::bytes));
    case CompensationFigure::loss_row:
    case CompensationFigure::loss_head:
    case CompensationFigure::loss_layer:
    case CompensationFigure::loss_step:
    case CompensationFigure::loss_joint:
    case CompensationFigure::dnll:
      return loss(which, scope, name_of(figure), rows);
  }
  return std::nullopt;
}

std::optional<Index> CompensationTable::kept(std::size_t which, Scope scope) const {
  const auto tokens = scoped_.common(scope, columns_.of(which, Cc::tokens));
  return tokens ? std::optional(static_cast<Index>(*tokens)) : std::nullopt;
}

std::size_t CompensationTable::write(const ResultFolder& folder) const {
  TableWriter csv(folder, Table::compensation);
  for (const Scope scope : scoped_.scopes())
    for (std::size_t c = 0; c < plan_.cases.size(); ++c) {
      const EvictionCase& eviction = evictions_.cases[plan_.cases[c].eviction];
      csv.at(scoped_.layer_of(scope), scope.head);
      csv.set("policy", eviction.policy).set("semantics", eviction.semantics);
      csv.set("phase", eviction.phase.name()).set("budget", eviction.budget_label);
      if (const auto tokens = kept(c, scope)) csv.set("kept", *tokens);
      csv.set("method", name_of(plan_.cases[c].method)).set("reference", name_of(plan_.reference.kind));
      for (const CompensationFigure figure : kCompensationFigures.all())
        for (const RowSet rows : kRowSets)
          if (const auto found = value(c, scope, figure, rows))
            csv.set("rows", name_of(rows)).add(figure, *found);
    }
  for (std::size_t c = 0; c < plan_.cases.size(); ++c)
    for (const CompensationFigure figure : kCompensationFigures.all())
      for (const RowSet rows : {RowSet::window, RowSet::future, RowSet::reference})
        write_map_of(folder,
                     {.table = Table::compensation,
                      .figure = std::string(name_of(figure)),
                      .item = file_name(evictions_, plan_.cases[c]),
                      .against = std::string(name_of(rows))},
                     [&](Scope scope) { return value(c, scope, figure, rows); });
  return csv.finish();
}

std::string CompensationTable::report() const {
  std::string text = fmt::format("\noutput error {} on the {} rows, by what makes up for evicted tokens",
                                 kOverHeads, name_of(best_rows()));
  if (plan_.fits()) text += fmt::format(" (fitted to {} rows)", name_of(plan_.reference.kind));
  std::vector<Compensation> methods;
  std::size_t width = 6;
  for (const CompensationCase& which : plan_.cases) {
    if (std::find(methods.begin(), methods.end(), which.method) == methods.end())
      methods.push_back(which.method);
    const EvictionCase& eviction = evictions_.cases[which.eviction];
    width = std::max(width, eviction.file_name().size());
  }
  text += fmt::format("\n{:{}}", "kept", width);
  for (const Compensation method : methods) text += fmt::format("  {:>20}", name_of(method));
  for (std::size_t e = 0; e < evictions_.cases.size(); ++e) {
    text += fmt::format("\n{:{}}", evictions_.cases[e].file_name(), width);
    for (const Compensation method : methods) {
      std::string cell = "-";
      for (std::size_t c = 0; c < plan_.cases.size(); ++c)
        if (plan_.cases[c].eviction == e && plan_.cases[c].method == method)
          if (const auto error = value(c, {}, CompensationFigure::output_error, best_rows()); error)
            cell = with_median_head(*error, scoped_.median_head([&](Scope scope) {
              return value(c, scope, CompensationFigure::output_error, best_rows());
            }));
      text += fmt::format("  {:>20}", cell);
    }
  }
  return text + "\n";
}

}  // namespace kvreplay
