#pragma once

#include "analysis/measure/loss_columns.hpp"
#include "analysis/results/schema.hpp"

#include <cstddef>

namespace kvreplay {

/// Where a head's figures stand among those of HeadFigures: those of the whole head, then those of every
/// case.
class CompensationColumns {
 public:
  enum Head {
    window_full_sq,
    future_full_sq,
    window_layer_full_sq,
    future_layer_full_sq,
    reference_full_sq,
    kHeadFigures
  };
  enum Case {
    tokens,  ///< of the kept set
    bytes,
    window_change_sq,
    future_change_sq,
    window_layer_change_sq,
    future_layer_change_sq,
    reference_change_sq,
    /// The terms of an error, each on window, future and reference rows; nan where a method has none.
    window_selection,
    window_mass,
    window_values,
    window_bound,
    future_selection,
    future_mass,
    future_values,
    future_bound,
    reference_selection,
    reference_mass,
    reference_values,
    reference_bound,
    kCaseFigures
  };
  /// The first term on these rows.
  static constexpr Case terms_on(RowSet rows) {
    return rows == RowSet::window   ? window_selection
           : rows == RowSet::future ? future_selection
                                    : reference_selection;
  }

  CompensationColumns(Index begin, std::size_t cases, const LossRows& losses)
      : begin_(begin),
        losses_(losses, begin + kHeadFigures + static_cast<Index>(cases) * kCaseFigures, cases),
        count_(cases == 0 ? 0 : kHeadFigures + static_cast<Index>(cases) * kCaseFigures + losses_.count()) {}

  Index of(Head figure) const { return begin_ + figure; }
  Index of(std::size_t which, Case figure) const {
    return begin_ + kHeadFigures + static_cast<Index>(which) * kCaseFigures + figure;
  }
  Index begin() const { return begin_; }
  Index count() const { return count_; }
  const LossColumns& losses() const { return losses_; }

 private:
  Index begin_;
  LossColumns losses_;
  Index count_;
};

}  // namespace kvreplay
