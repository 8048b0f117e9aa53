#include "analysis/eviction/eviction_tables.hpp"

#include "analysis/results/csv.hpp"
#include "analysis/tokens/agreement.hpp"
#include "data/npy_write.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <span>
#include <string>

namespace kvreplay {
namespace {

constexpr std::array kRowSets{RowSet::window, RowSet::future, RowSet::none};
using C = EvictionColumns;

Index rows_in(const EvictionPlan& plan, RowSet rows) {
  return rows == RowSet::window ? plan.window.count() : rows == RowSet::future ? plan.future.count() : 0;
}

/// Metrics have one set of rows each, but for the errors, which have both, and bytes, which have none.
bool has_rows(EvictionMetric metric, RowSet rows) {
  switch (metric) {
    case EvictionMetric::bytes:
      return rows == RowSet::none;
    case EvictionMetric::eviction_loss:
    case EvictionMetric::optimality_gap:
    case EvictionMetric::oracle_recall:
      return rows == RowSet::future;
    case EvictionMetric::output_error:
    case EvictionMetric::layer_output_error:
    case EvictionMetric::excess_over_greedy_exact:
    case EvictionMetric::excess_over_exchange:
      break;
  }
  return rows != RowSet::none;
}

}  // namespace

std::string_view name_of(EvictionMetric metric) {
  constexpr std::array<std::string_view, kEvictionMetrics.size()> names{
      "output_error",  "layer_output_error",       "eviction_loss",        "optimality_gap",
      "oracle_recall", "excess_over_greedy_exact", "excess_over_exchange", "bytes"};
  return names[static_cast<std::size_t>(metric)];
}

EvictionTable::EvictionTable(const EvictionPlan& plan, const EvictionColumns& columns,
                             const HeadFigures& figures, bool with_layer_output)
    : plan_(plan),
      columns_(columns),
      figures_(figures),
      scoped_(figures),
      with_layer_output_(with_layer_output) {}

std::optional<double> EvictionTable::output_error(std::size_t which, Scope scope, RowSet rows) const {
  const bool window = rows == RowSet::window;
  if (window && plan_.cases[which].phase.decodes()) return std::nullopt;
  return relative_error(sum(scope, columns_.of(which, window ? C::window_change_sq : C::future_change_sq)),
                        sum(scope, columns_.of(window ? C::window_full_sq : C::future_full_sq)));
}

std::optional<double> EvictionTable::layer_output_error(std::size_t which, Scope scope, RowSet rows) const {
  const bool window = rows == RowSet::window;
  if (!with_layer_output_ || !scope.layer || scope.head) return std::nullopt;
  if (window && plan_.cases[which].phase.decodes()) return std::nullopt;
  const Scope first{scope.layer, 0};  // every head carries its layer's figure
  return relative_error(
      sum(first, columns_.of(which, window ? C::window_layer_change_sq : C::future_layer_change_sq)),
      sum(first, columns_.of(window ? C::window_layer_full_sq : C::future_layer_full_sq)));
}

std::optional<double> EvictionTable::excess(std::size_t which, Scope scope, RowSet rows,
                                            Base reference) const {
  const EvictionCase& mine = plan_.cases[which];
  if (mine.phase.decodes() || !mine.kept) return std::nullopt;
  for (std::size_t c = 0; c < plan_.cases.size(); ++c) {
    const EvictionCase& other = plan_.cases[c];
    if (!other.run || other.phase.kind != Phase::Kind::prefill || other.kept != mine.kept) continue;
    const Policy& policy = plan_.runs[*other.run].policy;
    if (policy.base != reference || policy.metric || policy.given || policy.start) continue;
    return *output_error(which, scope, rows) - *output_error(c, scope, rows);
  }
  return std::nullopt;
}

std::optional<double> EvictionTable::value(std::size_t which, Scope scope, EvictionMetric metric,
                                           RowSet rows) const {
  if (scoped_.empty()) return std::nullopt;  // a shard without a layer
  if (!has_rows(metric, rows) || (rows != RowSet::none && rows_in(plan_, rows) == 0)) return std::nullopt;
  switch (metric) {
    case EvictionMetric::output_error:
      return output_error(which, scope, rows);
    case EvictionMetric::layer_output_error:
      return layer_output_error(which, scope, rows);
    case EvictionMetric::eviction_loss:
      return sum(scope, columns_.of(which, C::eviction_loss));
    case EvictionMetric::optimality_gap:
      return sum(scope, columns_.of(which, C::optimality_gap));
    case EvictionMetric::oracle_recall:
      return scoped_.mean(scope, columns_.of(which, C::oracle_recall));
    case EvictionMetric::excess_over_greedy_exact:
      return excess(which, scope, rows, Base::greedy_exact);
    case EvictionMetric::excess_over_exchange:
      return excess(which, scope, rows, Base::exchange);
    case EvictionMetric::bytes:
      return sum(scope, columns_.of(which, C::bytes));
  }
  return std::nullopt;
}

std::optional<Index> EvictionTable::kept(std::size_t which, Scope scope) const {
  const auto tokens = scoped_.common(scope, columns_.of(which, C::tokens));
  if (!tokens || *tokens != std::floor(*tokens)) return std::nullopt;
  return static_cast<Index>(*tokens);
}

double EvictionTable::common(std::size_t pair, Scope scope) const {
  return sum(scope, columns_.common_of(pair));
}

double EvictionTable::shared(std::size_t pair) const {
  const double here = sum({}, columns_.of(plan_.pairs[pair].first, C::prompt_tokens));
  const double there = sum({}, columns_.of(plan_.pairs[pair].second, C::prompt_tokens));
  return relative_error(common(pair, {}), std::max(here, there));
}

double EvictionTable::share_of_bytes(std::size_t which) const {
  return sum({}, columns_.of(which, C::bytes)) / sum({}, columns_.of(C::prompt_bytes));
}

RowSet EvictionTable::best_rows() const { return plan_.future.count() > 0 ? RowSet::future : RowSet::window; }

std::size_t EvictionTable::write_evictions(const ResultFolder& folder) const {
  CsvFile csv(folder.path() / "evictions.csv",
              "layer,kv_head,policy,semantics,phase,budget,kept,rows,metric,value");
  for (const Scope scope : scoped_.scopes())
    for (std::size_t c = 0; c < plan_.cases.size(); ++c)
      for (const EvictionMetric metric : kEvictionMetrics)
        for (const RowSet rows : kRowSets) {
          const auto found = value(c, scope, metric, rows);
          if (!found) continue;
          const EvictionCase& which = plan_.cases[c];
          scoped_.add_to(csv, scope);
          csv.add(which.policy).add(which.semantics).add(which.phase.name()).add(which.budget_label);
          const auto tokens = kept(c, scope);
          csv.add(tokens ? fmt::format("{}", *tokens) : std::string());
          csv.add(name_of(rows)).add(name_of(metric)).add(*found);
          csv.end_row();
        }
  csv.finish();
  return csv.rows();
}

void EvictionTable::write_decoding(const ResultFolder& folder) const {
  const auto decodes = [](const EvictionCase& which) { return which.phase.decodes(); };
  if (std::none_of(plan_.cases.begin(), plan_.cases.end(), decodes)) return;
  CsvFile csv(folder.path() / "decode.csv", "layer,kv_head,policy,semantics,budget,metric,value");
  const std::size_t shape[] = {figures_.layers.size(), static_cast<std::size_t>(figures_.n_kv),
                               static_cast<std::size_t>(columns_.steps())};
  for (Index row = 0; row < figures_.values.rows(); ++row)
    for (std::size_t c = 0; c < plan_.cases.size(); ++c) {
      const EvictionCase& which = plan_.cases[c];
      if (!decodes(which)) continue;
      const auto steps = figures_.values.row(row).segment(columns_.steps_of(c), columns_.steps());
      const auto add = [&](std::string_view metric, double value) {
        csv.add(figures_.layers[static_cast<std::size_t>(row / figures_.n_kv)]).add(row % figures_.n_kv);
        csv.add(which.decode_name()).add(which.semantics).add(which.budget_label).add(metric).add(value);
        csv.end_row();
      };
      add("mean", steps.mean());
      add("max", steps.maxCoeff());
      add("last", steps[steps.size() - 1]);
    }
  csv.finish();
  for (std::size_t c = 0; c < plan_.cases.size(); ++c) {
    const EvictionCase& which = plan_.cases[c];
    if (!decodes(which)) continue;
    const Matrix<double> steps = figures_.values.middleCols(columns_.steps_of(c), columns_.steps());
    write_npy(folder.path() / "decode" /
                  fmt::format("{}-{}-{}.npy", which.decode_name(), which.semantics, which.budget_label),
              shape, std::span<const double>(steps.data(), static_cast<std::size_t>(steps.size())));
  }
}

void EvictionTable::write_differences(const ResultFolder& folder) const {
  if (plan_.pairs.empty()) return;
  CsvFile csv(folder.path() / "diff.csv",
              "layer,kv_head,policy,phase,budget,semantics,other,rows,metric,value");
  for (const Scope scope : scoped_.scopes())
    for (std::size_t pair = 0; pair < plan_.pairs.size(); ++pair) {
      const std::size_t a = plan_.pairs[pair].first, b = plan_.pairs[pair].second;
      const auto add = [&](RowSet rows, std::string_view metric, double value) {
        scoped_.add_to(csv, scope);
        csv.add(plan_.cases[a].policy).add(plan_.cases[a].phase.name()).add(plan_.cases[a].budget_label);
        csv.add(plan_.cases[a].semantics).add(plan_.cases[b].semantics);
        csv.add(name_of(rows)).add(metric).add(value);
        csv.end_row();
      };
      add(RowSet::none, "kept", sum(scope, columns_.of(a, C::prompt_tokens)));
      add(RowSet::none, "kept_by_other", sum(scope, columns_.of(b, C::prompt_tokens)));
      add(RowSet::none, "kept_by_both", common(pair, scope));
      for (const RowSet rows : {RowSet::window, RowSet::future}) {
        if (rows_in(plan_, rows) == 0) continue;
        const auto here = output_error(a, scope, rows), there = output_error(b, scope, rows);
        if (!here || !there) continue;
        add(rows, "output_error", *here);
        add(rows, "output_error_of_other", *there);
      }
    }
  csv.finish();
}

void EvictionTable::write_maps(const ResultFolder& folder) const {
  const std::size_t shape[] = {figures_.layers.size(), static_cast<std::size_t>(figures_.n_kv)};
  for (std::size_t c = 0; c < plan_.cases.size(); ++c)
    for (const EvictionMetric metric : kEvictionMetrics)
      for (const RowSet rows : {RowSet::window, RowSet::future}) {
        std::vector<double> map;
        for (const Scope scope : scoped_.scopes())
          if (scope.head)
            if (const auto found = value(c, scope, metric, rows)) map.push_back(*found);
        if (map.size() != shape[0] * shape[1]) continue;
        write_npy(folder.path() / "maps" /
                      fmt::format("{}~{}~{}.npy", plan_.cases[c].file_name(), name_of(rows), name_of(metric)),
                  shape, std::span<const double>(map));
      }
}

std::size_t EvictionTable::write(const ResultFolder& folder) const {
  const std::size_t rows = write_evictions(folder);
  write_decoding(folder);
  write_differences(folder);
  write_maps(folder);
  return rows;
}

Json EvictionTable::totals() const {
  Json errors = Json::object();
  for (std::size_t c = 0; c < plan_.cases.size(); ++c)
    if (const auto found = value(c, {}, EvictionMetric::output_error, best_rows()))
      errors[plan_.cases[c].file_name()] = *found;
  return errors;
}

void write_kept_differences(const ResultFolder& folder, Index layer, const EvictionPlan& plan,
                            const std::vector<std::vector<KeptSet>>& kept) {
  for (const SemanticsPair& pair : plan.pairs) {
    const EvictionCase &a = plan.cases[pair.first], &b = plan.cases[pair.second];
    std::vector<std::int32_t> difference;
    for (std::size_t row = 0; row < kept[pair.first].size(); ++row) {
      const KeptSet &here = kept[pair.first][row], &there = kept[pair.second][row];
      for (std::size_t p = 0; p < here.size(); ++p)
        difference.push_back(static_cast<std::int32_t>(here[p]) - static_cast<std::int32_t>(there[p]));
    }
    const std::size_t rows = kept[pair.first].size();
    const std::size_t shape[] = {rows, difference.size() / rows};
    write_npy(folder.layer_path(layer) / "diff" /
                  fmt::format("{}-{}-{}-{}-{}.npy", a.policy, a.semantics, b.semantics, a.phase.file_name(),
                              a.budget_label),
              shape, std::span<const std::int32_t>(difference));
  }
}

}  // namespace kvreplay
