#pragma once

#include "analysis/measure/loss_columns.hpp"
#include "data/dump.hpp"

#include <cstddef>

namespace kvreplay {

/// Where a head's figures stand in its row of HeadFigures: those of the whole head, then those of every case.
class ChannelColumns {
 public:
  enum Head {
    off_diagonal_share,
    rope_pair_share,
    window_full_sq,  ///< sum of ||o_i||^2
    future_full_sq,
    window_layer_full_sq,
    future_layer_full_sq,
    kHeadFigures
  };
  enum Case {
    pruned,  ///< channels; the mean over query heads where each has its own
    window_reconstruction,
    future_reconstruction,
    window_logits_sq,  ///< ||Q K^T||_F^2 of the window's queries and the prunable keys
    future_logits_sq,
    lower_bound,
    proven,
    window_change_sq,  ///< sum of ||o_i' - o_i||^2
    future_change_sq,
    window_layer_change_sq,
    future_layer_change_sq,
    bytes,
    kCaseFigures
  };
  ChannelColumns(std::size_t cases, const LossRows& losses)
      : losses_(losses, kHeadFigures + static_cast<Index>(cases) * kCaseFigures, cases),
        count_(kHeadFigures + static_cast<Index>(cases) * kCaseFigures + losses_.count()) {}

  Index of(Head figure) const { return figure; }
  Index of(std::size_t which, Case figure) const {
    return kHeadFigures + static_cast<Index>(which) * kCaseFigures + figure;
  }
  Index count() const { return count_; }
  const LossColumns& losses() const { return losses_; }

 private:
  LossColumns losses_;
  Index count_;
};

}  // namespace kvreplay
