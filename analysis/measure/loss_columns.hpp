#pragma once

#include "analysis/results/figure_facts.hpp"
#include "analysis/results/schema.hpp"
#include "analysis/results/scoped_figures.hpp"
#include "analysis/results/table_writer.hpp"
#include "analysis/run/stage.hpp"
#include "data/dump.hpp"
#include "sim/row_range.hpp"

#include <cstddef>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace kvreplay {

/// The rows of a stage's cases that a dump has gradients of.
struct LossRows {
  RowRange window, future, nll;
  Index samples = 0;

  /// Of the rows on which a stage measures; empty ones where the dump has no gradients of them.
  static LossRows of(const Dump& dump, RowRange window, RowRange future);
  bool any() const { return window.count() + future.count() + nll.count() > 0; }
  RowRange on(RowSet rows) const { return rows == RowSet::window ? window : future; }
};

/// What predicted losses a dump cannot give of rows on which a stage measures, and why; and what is taken on
/// fewer rows than are measured, a line each.
std::vector<LeftOut> losses_left_out(const Dump& dump, RowRange window, RowRange future);
std::vector<std::string> loss_notes(const Dump& dump, RowRange window, RowRange future);

/// Where the predicted losses of a stage's cases stand in a head's row of figures: sums over its query heads
/// (sim/loss/change_loss.hpp), with the samples' own, which add up over heads before they are squared; and
/// where those of every row stand among the figures of a layer.
class LossColumns {
 public:
  LossColumns() = default;
  /// `begin`: the first of them.
  LossColumns(const LossRows& rows, Index begin, std::size_t cases)
      : rows_(rows), begin_(begin), cases_(static_cast<Index>(cases)) {}

  const LossRows& rows() const { return rows_; }
  Index count() const { return cases_ * of_case(); }
  /// Of a case on rows that there are gradients of: loss_row, then loss_head, then the samples' sums [S].
  Index row(std::size_t which, RowSet rows) const {
    return begin_ + static_cast<Index>(which) * of_case() + (rows == RowSet::window ? 0 : sums(rows_.window));
  }
  Index head(std::size_t which, RowSet rows) const { return row(which, rows) + 1; }
  Index samples(std::size_t which, RowSet rows) const { return row(which, rows) + 2; }
  Index nll(std::size_t which) const { return row(which, RowSet::future) + sums(rows_.future); }

  /// What is kept of a layer as a whole: of every case what all its heads do in a row, [S, rows].
  std::size_t per_layer() const { return static_cast<std::size_t>(cases_ * steps_of_case()); }
  Index steps(std::size_t which, RowSet rows) const {
    return static_cast<Index>(which) * steps_of_case() +
           (rows == RowSet::window ? 0 : rows_.samples * rows_.window.count());
  }

 private:
  Index steps_of_case() const { return rows_.samples * (rows_.window.count() + rows_.future.count()); }
  Index sums(RowRange rows) const { return rows.count() > 0 ? 2 + rows_.samples : 0; }
  Index of_case() const { return sums(rows_.window) + sums(rows_.future) + (rows_.nll.count() > 0 ? 1 : 0); }

  LossRows rows_;
  Index begin_ = 0, cases_ = 0;
};

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
