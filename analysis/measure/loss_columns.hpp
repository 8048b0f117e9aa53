#pragma once

#include "analysis/results/figure_facts.hpp"
#include "analysis/run/left_out.hpp"
#include "data/dump.hpp"
#include "sim/row_range.hpp"

#include <cstddef>
#include <string>
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

}  // namespace kvreplay
