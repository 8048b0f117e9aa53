#pragma once

#include "analysis/eviction/eviction_plan.hpp"
#include "sim/compute.hpp"
#include "sim/eviction/decode/decode.hpp"
#include "sim/head_group.hpp"

#include <memory>
#include <optional>
#include <vector>

namespace kvreplay {

/// A head group's cache while a model reads and decodes over it: the rows of a chunk come when the model has
/// computed them, and what the policy then evicts is told, so that the next rows may do without. On the rows
/// of a dump it evicts what `evict` does.
template <class T>
class GrowingCache {
 public:
  /// `group` has room for every position, queries included; its numbers are none yet. The plan, which
  /// outlives this, has one case, in a phase that evicts more than once.
  GrowingCache(HeadGroup<T> group, const EvictionPlan& plan);

  /// How many rows the next chunk has; 0: as many as one likes, since nothing will be evicted any more.
  Index next_rows() const;
  Index positions() const { return group_->T_all(); }
  Index size() const { return next_; }

  /// The next rows: queries [G][rows, d], keys [rows, d], values [rows, d_v]. What leaves the cache behind
  /// them, ascending.
  std::vector<Index> add(const std::vector<Matrix<T>>& q, const Matrix<T>& k, const Matrix<T>& v,
                         const Compute& compute);

 private:
  std::shared_ptr<HeadGroup<T>> group_;
  const EvictionPlan& plan_;
  const EvictionCase& case_;
  const EvictionRule& rule_;
  Index next_ = 0;
  std::vector<Index> cache_;                  // of the prompt, in blocks
  std::optional<DecodingCache<T>> decoding_;  // behind the prompt

  std::vector<Index> cut_block(Index rows, const Compute& compute);
  std::vector<Index> begin_decoding(const Compute& compute);
};

}  // namespace kvreplay
