#pragma once

#include "sim/head_group.hpp"
#include "sim/kept_set.hpp"
#include "sim/row_range.hpp"
#include "sim/schedule.hpp"
#include "sim/simd/panel.hpp"

#include <cstddef>
#include <span>
#include <vector>

// What a kept set does to the outputs: o_i^M is the attention over M and every decoded position visible to i;
// a row that sees none of them has output 0.

namespace kvreplay {

template <class T>
struct OutputChanges {
  double full_sq = 0;             ///< sum over rows and query heads of ||o_i||^2
  std::vector<double> change_sq;  ///< the same of ||o_i^M - o_i||^2, for every kept set
  /// Where asked for: o_i, and o_i^M - o_i for every kept set.
  PanelRows<T> full;
  std::vector<PanelRows<T>> change;
};

/// The exact change that each of `sets` makes to a group's outputs on `rows` (positions with a query, not
/// empty). In T, sums over rows in float64: within about 1e-6 (float) or 1e-14 (double) of the full output's
/// norm, which may be next to nothing (vanishing_outputs.hpp); keeping everything gives exactly 0. Cost: 2 G
/// |rows| T d flops once, 2 G |rows| |M| d_v a set; memory O(T W) a thread. Throws InputError where a number
/// overflows T.
template <class T>
OutputChanges<T> output_changes(const HeadGroup<T>& group, RowRange rows, std::span<const KeptSet> sets,
                                bool with_vectors, Workers& workers);

/// Bytes of device memory that output_changes_cuda may take for a block of rows.
inline constexpr std::size_t kKeptWorkspace = std::size_t{1} << 30;

/// The same on the calling thread's device, in float32 with the sums over segments of tokens in float64. A
/// block's logits are formed once and serve every set; two runs give the same bits, whatever `workspace` is.
/// Device memory: the group, O((|sets| + 1) T) of columns and the smaller of `workspace` and half of what is
/// free, or what 64 rows take if that is more. Throws InputError as above; cuda::OutOfDeviceMemory and
/// cuda::DeviceError.
OutputChanges<float> output_changes_cuda(const HeadGroup<float>& group, RowRange rows,
                                         std::span<const KeptSet> sets, bool with_vectors, Workers& workers,
                                         std::size_t workspace = kKeptWorkspace);

/// The judge: a kept set's change_sq and full_sq by brute-force masked attention in float64.
struct OutputChangeReference {
  double full_sq = 0, change_sq = 0;
  std::vector<Matrix<double>> change;  ///< G of [rows, d_v], o_i^M - o_i
};
OutputChangeReference output_change_reference(const HeadGroup<double>& group, RowRange rows,
                                              const KeptSet& kept);
/// The same of each of `sets`, which share the rows' logits.
std::vector<OutputChangeReference> output_change_references(const HeadGroup<double>& group, RowRange rows,
                                                            std::span<const KeptSet> sets);

/// One vector for every row and query head of a layer: [h] in panels as above, all of as many rows.
template <class T>
using LayerRows = std::vector<const std::vector<T>*>;

/// ||sum over all query heads of a layer of x W_O(h)||^2, summed over the rows, for each x of `cases`: wo[h]
/// [d_v, d_model]. Heads add up in order; a case's bits do not depend on the others.
template <class T>
std::vector<double> projected_sq(std::span<const LayerRows<T>> cases, const std::vector<Matrix<T>>& wo,
                                 Workers& workers);

}  // namespace kvreplay
