#pragma once

#include "analysis/measure/measured_columns.hpp"
#include "analysis/results/result_folder.hpp"
#include "analysis/run/stage.hpp"
#include "data/dump.hpp"
#include "sim/cache/cache.hpp"
#include "sim/cache/cache_outputs.hpp"
#include "sim/compute.hpp"
#include "sim/head_group.hpp"
#include "sim/schedule.hpp"

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <variant>
#include <vector>

namespace kvreplay {

/// Calls visit(part, group) for the groups that have a cache of their own: the group itself, or each of its
/// query heads.
template <class T, class Visit>
void each_part(const HeadGroup<T>& group, bool per_query_head, const Visit& visit) {
  if (!per_query_head) return visit(Index{0}, group);
  for (Index g = 0; g < group.G(); ++g) visit(g, query_head_group(group, g));
}

/// Outputs and how every case changes them, on the rows that cases are measured on. Where there are none, the
/// sums are nan and there are no vectors.
template <class T>
struct CaseOutputs {
  OutputChanges<T> window, future;
};

/// `with_vectors` the outputs too, not just their squares. Either set of rows may be empty. Cases that are
/// equal are computed once: methods often agree on what goes.
template <class T>
CaseOutputs<T> case_outputs(const HeadGroup<T>& group, RowRange window, RowRange future,
                            std::span<const CacheCase> cases, bool with_vectors, const Compute& compute);

/// Outputs over `cases` caches, which cache(c) makes, from any thread.
template <class T>
CaseOutputs<T> cache_outputs(const HeadGroup<T>& group, RowRange window, RowRange future, std::size_t cases,
                             const std::function<Cache<T>(std::size_t)>& cache, bool with_vectors,
                             const Compute& compute);

// Collected results of the cases of one layer, from its first head to its end.

/// The outputs of a layer's heads and their changes in all cases, collected head by head. The layer's W_O
/// adds the heads up, so that their changes may cancel. Several threads may add heads at once. Memory: rows x
/// n_q x d_v numbers of T a case.
class MeasuredLayer {
 public:
  MeasuredLayer(const Dump& dump, Precision precision, MeasureColumns columns);

  /// True if vectors are needed: the dump has W_O, which adds up those of all heads, or gradients.
  bool with_vectors() const { return with_layer_ || columns_.losses.count() > 0; }
  void begin();
  /// Adds the sums to a head's figures, and keeps the vectors of its query heads from `first_query_head` on.
  /// The outputs are those of `group`, on the rows `window` and `future`.
  template <class T>
  void add(CaseOutputs<T>&& outputs, const HeadGroup<T>& group, RowRange window, RowRange future,
           Index first_query_head, std::span<double> figures, Workers& workers);
  /// Fills in the sums of the layer.
  void end(Index layer, Workers& workers, const LayerFigures& figures);

 private:
  /// [1 + cases][n_q]: of the outputs themselves, then of their change in each case.
  template <class T>
  struct Outputs {
    std::vector<PanelRows<T>> window, future;
  };
  template <class T>
  void add_losses(const OutputChanges<T>& outputs, const HeadGroup<T>& group, RowRange measured, RowSet rows,
                  std::span<double> figures, Workers& workers);
  void project(Index layer, Workers& workers, Eigen::Ref<Matrix<double>> heads);

  const Dump& dump_;
  Precision precision_;
  MeasureColumns columns_;
  bool with_layer_;  // the dump has W_O
  std::variant<Outputs<float>, Outputs<double>> outputs_;
  std::vector<std::vector<double>> steps_;  // of every KV head, as a layer's `whole`
};

/// Numbers of every row of a layer (its KV heads, or its query heads) in every case: booleans, int32,
/// float64, or bytes of bits.
template <class T>
class CaseRows {
 public:
  /// `names` are those of the cases' files, layer_XX/KIND/NAME.npy, [rows, length]; with `last`, which
  /// divides it, [rows, length / last, last].
  CaseRows(std::string kind, Index rows, Index length, std::vector<std::string> names, Index last = 0);
  void begin();
  std::vector<T>& at(std::size_t which, Index row) { return cases_[which][row]; }
  const std::vector<std::vector<std::vector<T>>>& all() const { return cases_; }  ///< [cases][rows][length]
  /// Writes the cases that any row has something in.
  void write(const ResultFolder& folder, Index layer) const;

 private:
  std::string kind_;
  std::size_t rows_, length_, last_;
  std::vector<std::string> names_;
  std::vector<std::vector<std::vector<T>>> cases_;
};
using KeptLayer = CaseRows<std::uint8_t>;

}  // namespace kvreplay
