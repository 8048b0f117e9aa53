#pragma once

#include "sim/compression/compressed_cache.hpp"
#include "sim/eviction/kept_outputs.hpp"
#include "sim/eviction/kept_tiles.hpp"
#include "sim/head_group.hpp"
#include "sim/schedule.hpp"

#include <memory>
#include <span>
#include <vector>

namespace kvreplay {

/// What a compressed cache does to a group's outputs on a set of rows, with the exact softmax. Row i attends
/// over the kept prompt positions, with the keys, values and biases that the cache holds for them, and over
/// every decoded position, with the group's own, all as far as they are visible; a row that sees none has
/// output 0. The full outputs are formed once and serve any number of caches.
template <class T>
class CompressedOutputs {
 public:
  /// `rows` are positions with a query, not empty. `group` and `workers` must outlive this. Cost: that of
  /// change() for a cache that holds everything; holds 2 G |rows| d_v numbers.
  CompressedOutputs(const HeadGroup<T>& group, RowRange rows, Workers& workers);

  double full_sq() const { return full_sq_; }         ///< sum over rows and query heads of ||o_i||^2
  const PanelRows<T>& full() const { return full_; }  ///< o_i, as in kept_outputs.hpp

  struct Change {
    double change_sq = 0;  ///< sum over rows and query heads of ||o_i' - o_i||^2
    PanelRows<T> vectors;  ///< where asked for: o_i' - o_i
  };
  /// In T (outputs that vanish beside the values, in float64: vanishing_outputs.hpp), sums over rows in
  /// float64: within about 1e-6 (float) or 1e-14 (double) of the full output's norm,
  /// the same bytes for any number of threads. A cache that holds everything as it was gives exactly 0, one
  /// that only evicts the bytes of output_changes(). Keys' pruned channels are skipped, not multiplied by 0.
  /// Throws InputError where a number overflows T. Cost: 2 G |rows| |M| (d' + d_v) flops, d' the channels
  /// left; memory O(T d), and a tile of columns a thread.
  Change change(const CompressedCache<T>& cache, bool with_vectors) const {
    return change(HeadMatrix<T>::of(cache.k), HeadMatrix<T>::of(cache.v), cache.bias, cache.kept,
                  cache.pruned, cache.prunable, with_vectors);
  }
  /// The same of the group's own keys and values where nothing is quantized, without a copy of them.
  Change change(const KeptSet& kept, const ChannelSet& pruned, const KeptSet& prunable,
                bool with_vectors) const {
    return change(group_.k, group_.v, Vector<T>(), kept, pruned, prunable, with_vectors);
  }

 private:
  template <class>
  friend class CompressedOutputs;

  CompressedOutputs(const HeadGroup<T>& group, RowRange rows, Workers& workers, Vector<T> centre);
  Change change(const HeadMatrix<T>& k, const HeadMatrix<T>& v, const Vector<T>& bias, const KeptSet& kept,
                const ChannelSet& pruned, const KeptSet& prunable, bool with_vectors) const;

  const HeadGroup<T>& group_;
  RowRange rows_;
  Workers& workers_;
  Vector<T> centre_;  // [d_v], what values are centred with
  double full_sq_ = 0;
  PanelRows<T> full_;
  std::vector<AttendedOutput<T>> attended_;  // [G][panels], what full_ is made of
  struct Wide;
  std::shared_ptr<const Wide> wide_;  // what gives the changes where the outputs vanish, else null
};

/// The judge: brute-force attention over the cache's keys and values as they are, in float64.
OutputChangeReference compressed_change_reference(const HeadGroup<double>& group, RowRange rows,
                                                  const CompressedCache<double>& cache);
/// The same of each of `caches`, which share the full outputs.
std::vector<OutputChangeReference> compressed_change_references(
    const HeadGroup<double>& group, RowRange rows, std::span<const CompressedCache<double>> caches);

}  // namespace kvreplay
