#pragma once

#include "analysis/measure/loss_columns.hpp"
#include "analysis/results/schema.hpp"
#include "analysis/results/scoped_figures.hpp"
#include "analysis/results/table_writer.hpp"

#include <limits>
#include <optional>
#include <string_view>
#include <vector>

namespace kvreplay {

/// A predicted loss over the heads in scope, by its name in any table; empty for all other figures, and where
/// the dump has no gradients of such rows.
std::optional<double> predicted_loss(const ScopedFigures& figures, const LossColumns& columns,
                                     std::size_t which, Scope scope, std::string_view figure, RowSet rows);

/// The figures of all heads that were measured in the cases of a plan, read as those of a table. `Columns`
/// has those that measure_columns() names.
template <class Plan, class Columns>
class MeasuredTable {
 public:
  MeasuredTable(const Plan& plan, const Columns& columns, const HeadFigures& figures, bool with_layer_output)
      : plan_(plan),
        columns_(columns),
        figures_(figures),
        scoped_(figures),
        with_layer_output_(with_layer_output) {}

  /// The rows that errors are best reported on: the future where there is one.
  RowSet best_rows() const { return plan_.future.count() > 0 ? RowSet::future : RowSet::window; }

 protected:
  double sum(Scope scope, Index column) const { return scoped_.sum(scope, column); }

  double output_error(std::size_t which, Scope scope, RowSet rows) const {
    const bool window = rows == RowSet::window;
    const Index change = columns_.of(which, window ? Columns::window_change_sq : Columns::future_change_sq),
                full = columns_.of(window ? Columns::window_full_sq : Columns::future_full_sq);
    return relative_error(sum(scope, change), sum(scope, full));
  }
  /// Empty without W_O.
  std::optional<double> layer_output_error(std::size_t which, Scope scope, RowSet rows) const {
    if (!with_layer_output_) return std::nullopt;
    const bool window = rows == RowSet::window;
    const Scope first{scope.layer, 0};  // every head carries its layer's figure
    const Index change = columns_.of(
                    which, window ? Columns::window_layer_change_sq : Columns::future_layer_change_sq),
                full = columns_.of(window ? Columns::window_layer_full_sq : Columns::future_layer_full_sq);
    return relative_error(sum(first, change), sum(first, full));
  }

  std::optional<double> loss(std::size_t which, Scope scope, std::string_view figure, RowSet rows) const {
    return predicted_loss(scoped_, columns_.losses(), which, scope, figure, rows);
  }

  /// The map of a figure of every head: nan where value_of(scope) has none; no map where none has one.
  template <class ValueOf>
  void write_map_of(const ResultFolder& folder, const MapName& name, const ValueOf& value_of) const {
    std::vector<double> map;
    bool any = false;
    for (const Scope scope : scoped_.scopes()) {
      if (!scope.head) continue;
      const std::optional<double> found = value_of(scope);
      map.push_back(found.value_or(std::numeric_limits<double>::quiet_NaN()));
      any = any || found;
    }
    if (any) write_map(folder, name, figures_, map);
  }

  const Plan& plan_;
  const Columns& columns_;
  const HeadFigures& figures_;
  ScopedFigures scoped_;
  bool with_layer_output_;
};

}  // namespace kvreplay
