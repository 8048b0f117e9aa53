#pragma once

#include "analysis/eviction/eviction_plan.hpp"
#include "analysis/eviction/head_evictions.hpp"
#include "sim/compute.hpp"
#include "sim/eviction/decode/decode.hpp"
#include "sim/head_group.hpp"

#include <memory>
#include <optional>
#include <vector>

namespace kvreplay {

/// A head group's cache that grows while a model reads and decodes. Rows of a chunk are added once the model
/// has computed them; add() returns the positions that the policy evicts, so that the next rows can skip
/// them. With the rows of a dump it evicts exactly the tokens that `evict` does.
template <class T>
class GrowingCache {
 public:
  /// `group` has room for every position, queries included; its numbers are not set yet. The plan, which must
  /// outlive this object, has one case, in a phase that evicts more than once.
  GrowingCache(HeadGroup<T> group, const EvictionPlan& plan);

  /// Number of rows in the next chunk; 0: any number, because nothing will be evicted any more.
  Index next_rows() const;
  Index size() const { return next_; }

  /// Adds the next rows: queries [G][rows, d], keys [rows, d], values [rows, d_v]. Returns the positions
  /// evicted after them, ascending.
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
