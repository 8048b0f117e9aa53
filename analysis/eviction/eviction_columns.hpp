#pragma once

#include "analysis/eviction/eviction_plan.hpp"
#include "analysis/measure/loss_columns.hpp"
#include "analysis/results/schema.hpp"

#include <cstddef>
#include <vector>

namespace kvreplay {

/// Where a head's figures stand in its row of HeadFigures: those of the whole head, then those of every case.
class EvictionColumns {
 public:
  enum Head {
    window_full_sq,
    future_full_sq,
    window_layer_full_sq,
    future_layer_full_sq,
    window_residual_sq,  ///< of the residual stream, where the dump has its norms
    future_residual_sq,
    prompt_bytes,
    kHeadFigures
  };
  enum Case {
    tokens,         ///< of the cache, at the end where the phase decodes
    prompt_tokens,  ///< of the prompt among them
    window_change_sq,
    future_change_sq,
    window_layer_change_sq,
    future_layer_change_sq,
    eviction_loss,
    optimality_gap,
    oracle_recall,
    bytes,
    kCaseFigures
  };
  /// Where every query head has a cache of its own, a KV head has the mean of theirs; of all else their sum.
  static constexpr bool averages(Case figure) {
    return figure == tokens || figure == prompt_tokens || figure == oracle_recall;
  }

  explicit EvictionColumns(const EvictionPlan& plan) : steps_(plan.future.count()), count_(kHeadFigures) {
    for (const EvictionCase& which : plan.cases) {
      begin_.push_back(count_);
      count_ += kCaseFigures + (which.phase.decodes() ? steps_ : 0);
    }
    first_pair_ = count_;
    count_ += std::ssize(plan.pairs);
    losses_ = LossColumns(plan.losses, count_, plan.cases.size());
    count_ += losses_.count();
  }

  Index of(Head figure) const { return figure; }
  Index of(std::size_t which, Case figure) const { return begin_[which] + figure; }
  /// How many tokens both cases of a pair keep.
  Index common_of(std::size_t pair) const { return first_pair_ + static_cast<Index>(pair); }
  /// Where the relative errors of a decoding case begin: one a step.
  Index steps_of(std::size_t which) const { return begin_[which] + kCaseFigures; }
  Index steps() const { return steps_; }
  const LossColumns& losses() const { return losses_; }
  Index count() const { return count_; }

 private:
  std::vector<Index> begin_;
  Index first_pair_ = 0, steps_, count_;
  LossColumns losses_;
};

/// The figures of evictions.csv that stand in a column of their own. Over a layer or the model they are means
/// where the column averages(), else sums.
struct StoredFigure {
  EvictionFigure figure;
  EvictionColumns::Case column;
};
inline constexpr StoredFigure kStoredFigures[] = {
    {EvictionFigure::eviction_loss, EvictionColumns::eviction_loss},
    {EvictionFigure::optimality_gap, EvictionColumns::optimality_gap},
    {EvictionFigure::oracle_recall, EvictionColumns::oracle_recall},
    {EvictionFigure::bytes, EvictionColumns::bytes},
};

}  // namespace kvreplay
