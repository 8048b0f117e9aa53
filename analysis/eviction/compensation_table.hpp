#pragma once

#include "analysis/eviction/compensation_columns.hpp"
#include "analysis/eviction/compensation_plan.hpp"
#include "analysis/measure/measured_table.hpp"

#include <optional>
#include <string>

namespace kvreplay {

/// The figures of all heads, read as those of compensation.csv.
class CompensationTable : public MeasuredTable<CompensationPlan, CompensationColumns> {
 public:
  CompensationTable(const CompensationPlan& plan, const EvictionPlan& evictions,
                    const CompensationColumns& columns, const HeadFigures& figures, bool with_layer_output)
      : MeasuredTable(plan, columns, figures, with_layer_output), evictions_(evictions) {}

  /// Empty where the figure is not there for such a scope, rows and case.
  std::optional<double> value(std::size_t which, Scope scope, CompensationFigure figure, RowSet rows) const;

  /// compensation.csv, maps/; the number of rows.
  std::size_t write(const ResultFolder& folder) const;
  /// A short plain text: the output error of every policy under every method.
  std::string report() const;

 private:
  std::optional<double> term(std::size_t which, Scope scope, Index number, RowSet rows) const;
  std::optional<double> error_on(std::size_t which, Scope scope, RowSet rows) const;
  std::optional<Index> kept(std::size_t which, Scope scope) const;

  const EvictionPlan& evictions_;
};

}  // namespace kvreplay
