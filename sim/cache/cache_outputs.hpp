#pragma once

#include "sim/cache/cache.hpp"
#include "sim/cache/kept_tiles.hpp"
#include "sim/head_group.hpp"
#include "sim/row_range.hpp"
#include "sim/schedule.hpp"
#include "sim/simd/panel.hpp"

#include <cstddef>
#include <limits>
#include <memory>
#include <span>
#include <type_traits>
#include <vector>

// Changes of the attention outputs by a cache. Row i attends with the exact softmax to the prompt tokens that
// the cache holds for it and to every decoded position, as far as they are visible. A row that sees none of
// them has output 0.

namespace kvreplay {

template <class T>
struct OutputChanges {
  double full_sq = 0;             ///< sum over rows and query heads of ||o_i||^2
  std::vector<double> change_sq;  ///< sum over rows and query heads of ||o_i' - o_i||^2, for every cache
  /// Only on request: o_i, and o_i' - o_i for every cache.
  PanelRows<T> full;
  std::vector<PanelRows<T>> change;
};

/// Exact change that each of `caches` makes to a group's outputs on `rows` (positions with a query, not
/// empty). In T (outputs that vanish beside the values, in float64), with sums over rows in float64.
/// Accuracy: about 1e-6 (float) or 1e-14 (double) of the full output's norm, the same bytes for any number of
/// threads. A cache that holds everything unchanged gives exactly 0. Keys' pruned channels are skipped, not
/// multiplied by 0. Throws InputError where a number overflows T. Cost: 2 G |rows| T d flops once, whose
/// logits serve all caches with the group's own keys whole; then 2 G |rows| |M| d_v a cache, and for a cache
/// of other keys as much times d' / d_v, where d' is the number of channels left. Memory: O(T d) for a cache
/// of other keys, O(T W) a thread.
template <class T>
OutputChanges<T> output_changes(const HeadGroup<T>& group, RowRange rows,
                                std::span<const std::type_identity_t<Cache<T>>> caches, bool with_vectors,
                                Workers& workers);

/// output_changes() for one cache after another; the full outputs are computed once. Holds 2 G |rows| d_v
/// numbers. The arguments must outlive this object.
template <class T>
class CacheOutputs {
 public:
  CacheOutputs(const HeadGroup<T>& group, RowRange rows, Workers& workers);

  double full_sq() const { return full_sq_; }
  const PanelRows<T>& full() const { return full_; }

  struct Change {
    double change_sq = 0;
    PanelRows<T> vectors;  ///< where asked for
  };
  /// Cost: 2 G |rows| |M| (d' + d_v) flops.
  Change change(const Cache<T>& cache, bool with_vectors) const;

 private:
  template <class>
  friend class CacheOutputs;
  struct Wide;  // the same in float64, from the values as they are

  CacheOutputs(const HeadGroup<T>& group, RowRange rows, Workers& workers, Vector<T> centre);

  const HeadGroup<T>& group_;
  RowRange rows_;
  Workers& workers_;
  Vector<T> centre_;  // [d_v], what values are centred with
  double full_sq_ = 0;
  PanelRows<T> full_;
  std::vector<AttendedOutput<T>> attended_;  // [G][panels], what full_ is made of
  std::shared_ptr<const Wide> wide_;         // what gives the changes where the outputs vanish, else null
};

/// Bytes of device memory that output_changes_cuda may take for a block of rows.
inline constexpr std::size_t kKeptWorkspace = std::size_t{1} << 30;

/// True if a device can compute the output changes of this cache.
inline bool fits_devices(const Cache<float>& cache) {
  return cache.bias.size() == 0 && cache.pages.size == 0;
}

/// output_changes() of caches that fits_devices(), on the calling thread's device, in float32 with the sums
/// over segments of tokens in float64. A block's logits are computed once for all caches that only evict.
/// Another cache's keys and values are copied to the device for each block. Two runs give the same bits,
/// whatever `workspace` is. Device memory: the group; one cache's keys and values; O((|caches| + 1) T) of
/// columns; and the smaller of `workspace` and a fifth of the free memory, or the need of 64 rows if that is
/// more. Throws InputError as above; cuda::OutOfDeviceMemory and cuda::DeviceError.
OutputChanges<float> output_changes_cuda(const HeadGroup<float>& group, RowRange rows,
                                         std::span<const Cache<float>> caches, bool with_vectors,
                                         Workers& workers, std::size_t workspace = kKeptWorkspace);

/// Reference: a cache's change_sq and full_sq by brute-force attention over its contents, in float64.
struct OutputChangeReference {
  double full_sq = 0, change_sq = 0;
  std::vector<Matrix<double>> change;  ///< G of [rows, d_v], o_i' - o_i
};
OutputChangeReference output_change_reference(const HeadGroup<double>& group, RowRange rows,
                                              const Cache<double>& cache);
/// Reference of output_changes() for each of `caches`, which share the rows' full outputs.
std::vector<OutputChangeReference> output_change_references(const HeadGroup<double>& group, RowRange rows,
                                                            std::span<const Cache<double>> caches);

/// True if the outputs of `rows` almost vanish beside the centre that they were taken about: about half of
/// T's digits are lost. full_sq is the sum of the outputs' squared norms. An example is a sink of value 0
/// that holds nearly all of every row's weight. Nothing cancels if the values are used without a centre.
template <class T>
bool vanishing(const HeadGroup<T>& group, RowRange rows, const Vector<T>& centre, double full_sq) {
  constexpr double kShare = sizeof(T) == 4 ? 1e-6 : 1e-12;  // of squares
  const double centre_sq = centre.template cast<double>().squaredNorm();
  return full_sq <= kShare * static_cast<double>(rows.count() * group.G()) * centre_sq;
}
/// output_changes() of outputs that vanish: right to about 1e-14 of them, however small they are. Where their
/// squares are below float64's range, every change but that of a cache that holds everything is above 0.
template <class T>
OutputChanges<T> vanishing_output_changes(const HeadGroup<T>& group, RowRange rows,
                                          std::span<const Cache<T>> caches, bool with_vectors,
                                          Workers& workers);

/// A sum of squares of changes whose square may lie below float64's range: a change is never taken for none.
inline double at_least_some(double change_sq) {
  return change_sq > 0 ? change_sq : std::numeric_limits<double>::denorm_min();
}

/// One vector for every row and query head of a layer: [h] in panels as above, all of as many rows.
template <class T>
using LayerRows = std::vector<const std::vector<T>*>;

/// ||sum over all query heads of a layer of x W_O(h)||^2, summed over the rows, for each x of `cases`: wo[h]
/// [d_v, d_model]. Heads add up in order; a case's bits do not depend on the others.
template <class T>
std::vector<double> projected_sq(std::span<const LayerRows<T>> cases, const std::vector<Matrix<T>>& wo,
                                 Workers& workers);

}  // namespace kvreplay
