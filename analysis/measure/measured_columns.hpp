#pragma once

#include "analysis/results/figure_facts.hpp"
#include "analysis/results/metric_table.hpp"
#include "analysis/results/schema.hpp"
#include "analysis/results/scoped_figures.hpp"
#include "analysis/run/stage.hpp"
#include "data/dump.hpp"
#include "sim/row_range.hpp"

#include <algorithm>
#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

namespace kvreplay {

/// The rows of a stage's cases that a dump has gradients of.
struct LossRows {
  RowRange window, future, nll;
  Index samples = 0;

  /// The rows with gradients among those on which a stage measures; empty where the dump has none of them.
  static LossRows of(const Dump& dump, RowRange window, RowRange future);
  bool any() const { return window.count() + future.count() + nll.count() > 0; }
  RowRange on(RowSet rows) const { return rows == RowSet::window ? window : future; }
};

/// Predicted losses that a dump cannot provide on the rows that a stage measures, and why; and notes on
/// losses taken on fewer rows than are measured, a line each.
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
  Index begin() const { return begin_; }
  std::size_t cases() const { return static_cast<std::size_t>(cases_); }
  Index count() const { return cases_ * of_case(); }
  /// Columns of a case on rows that there are gradients of: loss_row, loss_head, what loss_step of the layer
  /// is, which every head of it carries, then the samples' sums [S].
  Index row(std::size_t which, RowSet rows) const {
    return begin_ + static_cast<Index>(which) * of_case() + (rows == RowSet::window ? 0 : sums(rows_.window));
  }
  Index head(std::size_t which, RowSet rows) const { return row(which, rows) + 1; }
  Index step(std::size_t which, RowSet rows) const { return row(which, rows) + 2; }
  Index samples(std::size_t which, RowSet rows) const { return row(which, rows) + 3; }
  Index nll(std::size_t which) const { return row(which, RowSet::future) + sums(rows_.future); }

  /// The number of figures of a layer as a whole: for every case, sums over all heads in each row, [S, rows].
  std::size_t per_layer() const { return static_cast<std::size_t>(cases_ * steps_of_case()); }
  Index steps(std::size_t which, RowSet rows) const {
    return static_cast<Index>(which) * steps_of_case() +
           (rows == RowSet::window ? 0 : rows_.samples * rows_.window.count());
  }

 private:
  Index steps_of_case() const { return rows_.samples * (rows_.window.count() + rows_.future.count()); }
  Index sums(RowRange rows) const { return rows.count() > 0 ? 3 + rows_.samples : 0; }
  Index of_case() const { return sums(rows_.window) + sums(rows_.future) + (rows_.nll.count() > 0 ? 1 : 0); }

  LossRows rows_;
  Index begin_ = 0, cases_ = 0;
};

/// A predicted loss over the heads in scope, by its name in any table; empty for all other figures, and where
/// the dump has no gradients of such rows.
std::optional<double> predicted_loss(const ScopedFigures& figures, const LossColumns& columns,
                                     std::size_t which, Scope scope, std::string_view figure, RowSet rows);

/// Where the sums of squares of outputs and of their changes in every case stand in a head's row of figures:
/// those of the head, and those of the layer behind W_O. -1: nowhere.
struct MeasureColumns {
  struct OnRows {
    Index full = -1, layer_full = -1;
    std::vector<Index> change, layer_change;  ///< [cases]
  };
  OnRows window, future;
  LossColumns losses = {};
  const OnRows& on(RowSet rows) const { return rows == RowSet::window ? window : future; }

  /// Columns of what is measured on one set of rows, where a head has no other figures.
  static MeasureColumns alone(std::size_t cases, RowSet rows, const LossRows& losses);
  Index end() const { return losses.begin() + losses.count(); }  ///< behind the last of them
};
/// The measured columns among those of a stage that measures on both sets of rows.
template <class Columns>
MeasureColumns measure_columns(const Columns& columns, std::size_t cases) {
  using C = Columns;
  const auto on = [&](auto full, auto layer_full, auto change, auto layer_change) {
    MeasureColumns::OnRows rows{columns.of(full), columns.of(layer_full), {}, {}};
    for (std::size_t c = 0; c < cases; ++c) {
      rows.change.push_back(columns.of(c, change));
      rows.layer_change.push_back(columns.of(c, layer_change));
    }
    return rows;
  };
  return {on(C::window_full_sq, C::window_layer_full_sq, C::window_change_sq, C::window_layer_change_sq),
          on(C::future_full_sq, C::future_layer_full_sq, C::future_change_sq, C::future_layer_change_sq),
          columns.losses()};
}

/// Where a head's figures stand among those of HeadFigures: those of the whole head, then those of every
/// case, then its predicted losses; nowhere without cases. A case has the metrics of the table `kMetrics`
/// that are sums or means over heads, besides those that `Names` lists: an enum Head that ends in
/// kHeadFigures, and an enum Case that ends in kCaseFigures.
template <class Names, const auto& kMetrics>
class CaseColumns : public Names {
 public:
  using typename Names::Case;
  using typename Names::Head;
  using Metric = typename std::remove_cvref_t<decltype(kMetrics)>::Enum;

  CaseColumns(Index begin, std::size_t cases, const LossRows& losses)
      : begin_(begin), losses_(losses, of(cases, Case{}), cases) {
    if (cases > 0) count_ = losses_.begin() + losses_.count() - begin;
  }

  Index of(Head figure) const { return begin_ + figure; }
  Index of(std::size_t which, Case figure) const {
    return begin_ + Names::kHeadFigures + static_cast<Index>(which) * (Names::kCaseFigures + kept_before()) +
           figure;
  }
  Index of(std::size_t which, Metric metric, RowSet rows) const {
    const RowSets on = kMetrics[metric].rows;
    return of(which, Names::kCaseFigures) + kept_before(metric) +
           std::ranges::count_if(kRowSets, [&](RowSet one) { return one < rows && on.has(one); });
  }
  Index begin() const { return begin_; }
  Index count() const { return count_; }
  const LossColumns& losses() const { return losses_; }

 private:
  /// The numbers that a case keeps of the metrics in front of this one; of all without one.
  static constexpr Index kept_before(std::optional<Metric> metric = {}) {
    Index count = 0;
    for (const auto& facts : kMetrics)
      if (!metric || facts.id < *metric) count += kept_numbers(facts);
    return count;
  }

  Index begin_;
  LossColumns losses_;
  Index count_ = 0;
};

/// The outputs of all heads that were measured, and how cases change them, read as figures of a table.
class MeasuredFigures {
 public:
  /// `figures` must outlive this.
  MeasuredFigures(MeasureColumns columns, const HeadFigures& figures, bool with_layer_output)
      : figures_(figures),
        scoped_(figures),
        measured_(std::move(columns)),
        with_layer_output_(with_layer_output) {}

  double sum(Scope scope, Index column) const { return scoped_.sum(scope, column); }
  double output_error(std::size_t which, Scope scope, RowSet rows) const {
    return relative_error(sum(scope, measured_.on(rows).change[which]), sum(scope, measured_.on(rows).full));
  }
  /// Empty without W_O.
  std::optional<double> layer_output_error(std::size_t which, Scope scope, RowSet rows) const {
    if (!with_layer_output_) return std::nullopt;
    const Scope first{scope.layer, 0};  // every head carries its layer's figure
    return relative_error(sum(first, measured_.on(rows).layer_change[which]),
                          sum(first, measured_.on(rows).layer_full));
  }
  std::optional<double> loss(std::size_t which, Scope scope, std::string_view figure, RowSet rows) const {
    return predicted_loss(scoped_, measured_.losses, which, scope, figure, rows);
  }

 protected:
  /// A table of the run without entries.
  MetricTable table_of(Table table, Index prompt = 0) const {
    return MetricTable(table, figures_.layers, figures_.n_kv, prompt);
  }

  const HeadFigures& figures_;
  ScopedFigures scoped_;
  MeasureColumns measured_;
  bool with_layer_output_;
};

/// The figures of the cases of a plan. `Columns` has those that measure_columns() names.
template <class Plan, class Columns>
class MeasuredTable : public MeasuredFigures {
 public:
  MeasuredTable(const Plan& plan, const Columns& columns, const HeadFigures& figures, bool with_layer_output)
      : MeasuredFigures(measure_columns(columns, plan.cases.size()), figures, with_layer_output),
        plan_(plan),
        columns_(columns) {}

  /// The rows that errors are best reported on: the future where there is one.
  RowSet best_rows() const { return plan_.future.count() > 0 ? RowSet::future : RowSet::window; }

 protected:
  /// A metric that is a sum or a mean over heads.
  template <class Metric>
  double kept_number(std::size_t which, Scope scope, Metric metric, RowSet rows) const {
    const Index column = columns_.of(which, metric, rows);
    return facts_of(metric).over_heads == HeadTotal::sum ? sum(scope, column) : scoped_.mean(scope, column);
  }

  const Plan& plan_;
  const Columns& columns_;
};

}  // namespace kvreplay
