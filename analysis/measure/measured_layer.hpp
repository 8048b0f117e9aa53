#pragma once

#include "analysis/measure/case_outputs.hpp"
#include "analysis/measure/measured_columns.hpp"
#include "analysis/results/result_folder.hpp"
#include "analysis/run/stage.hpp"
#include "data/dump.hpp"
#include "sim/eviction/kept_outputs.hpp"
#include "sim/schedule.hpp"

#include <algorithm>
#include <cstdint>
#include <limits>
#include <span>
#include <string>
#include <utility>
#include <vector>

// What a stage keeps of the cases of one layer, from its heads to its end.

namespace kvreplay {

/// One layer's outputs and their changes in a number of cases, collected query head by query head, for what
/// the layer's W_O makes of them: heads add up there and cancel. Several threads may add heads at once.
/// Memory: rows x n_q x d_v numbers of T a case.
template <class T>
class LayerOutputs {
 public:
  void begin(Index n_q, std::size_t cases) {
    full_.assign(n_q, {});
    change_.assign(cases, full_);
  }

  void set_full(Index first_query_head, PanelRows<T>&& heads) {
    set(full_, first_query_head, std::move(heads));
  }
  void set_change(std::size_t which, Index first_query_head, PanelRows<T>&& heads) {
    set(change_[which], first_query_head, std::move(heads));
  }

  /// Sums over rows of ||sum_h o_i W_O(h)||^2, then of the changes; nan where a head was not set.
  std::vector<double> projected_sq(const std::vector<Matrix<T>>& wo, Workers& workers) const {
    std::vector<double> sums(1 + change_.size(), std::numeric_limits<double>::quiet_NaN());
    std::vector<LayerRows<T>> cases;
    std::vector<std::size_t> of;
    for (std::size_t c = 0; c < sums.size(); ++c) {
      const PanelRows<T>& heads = c == 0 ? full_ : change_[c - 1];
      const auto is_set = [](const std::vector<T>& head) { return !head.empty(); };
      if (!std::all_of(heads.begin(), heads.end(), is_set)) continue;
      of.push_back(c);
      for (LayerRows<T>& rows = cases.emplace_back(); const std::vector<T>& head : heads)
        rows.push_back(&head);
    }
    const std::vector<double> found = kvreplay::projected_sq<T>(cases, wo, workers);
    for (std::size_t c = 0; c < of.size(); ++c) sums[of[c]] = found[c];
    return sums;
  }

 private:
  static void set(PanelRows<T>& layer, Index first, PanelRows<T>&& heads) {
    for (std::size_t g = 0; g < heads.size(); ++g)
      layer[static_cast<std::size_t>(first) + g] = std::move(heads[g]);
  }

  PanelRows<T> full_;                 // [n_q]
  std::vector<PanelRows<T>> change_;  // [cases][n_q]
};

/// W_O of all query heads of a layer, [n_q] of [d_v, d_model].
template <class T>
std::vector<Matrix<T>> read_layer_wo(const Dump& dump, Index layer) {
  const DumpShape& shape = dump.shape();
  std::vector<Matrix<T>> wo(shape.n_q);
  for (Index h = 0; h < shape.n_q; ++h) {
    Matrix<T>& head = wo[h];
    head.resize(shape.d_v, shape.d_model);
    dump.read<T>(Tensor::wo, layer, h, head.data());
  }
  return wo;
}

/// The outputs of a layer's heads in all cases. Several threads may add heads at once.
class MeasuredLayer {
 public:
  MeasuredLayer(const Dump& dump, Precision precision, MeasureColumns columns);

  /// Whether vectors are needed: the dump has W_O, behind which those of all heads add up, or gradients.
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
  template <class T>
  struct Outputs {
    LayerOutputs<T> window, future;
  };
  template <class T>
  Outputs<T>& in();
  template <class T>
  void add_losses(const OutputChanges<T>& outputs, const HeadGroup<T>& group, RowRange measured, RowSet rows,
                  std::span<double> figures, Workers& workers);
  void project(Index layer, Workers& workers, Eigen::Ref<Matrix<double>> heads) const;

  const Dump& dump_;
  Precision precision_;
  MeasureColumns columns_;
  bool with_layer_;  // the dump has W_O
  Outputs<float> single_;
  Outputs<double> wide_;
  std::vector<std::vector<double>> steps_;  // of every KV head, as a layer's `whole`
};

/// Numbers of every row of a layer (its KV heads, or its query heads) in every case: booleans, or int32.
template <class T>
class CaseRows {
 public:
  /// `names` are those of the cases' files, layer_XX/KIND/NAME.npy, [rows, length].
  CaseRows(std::string kind, Index rows, Index length, std::vector<std::string> names);
  void begin();
  std::vector<T>& at(std::size_t which, Index row) { return cases_[which][row]; }
  const std::vector<std::vector<std::vector<T>>>& all() const { return cases_; }  ///< [cases][rows][length]
  /// Those that any row has something in.
  void write(const ResultFolder& folder, Index layer) const;

 private:
  std::string kind_;
  std::size_t rows_, length_;
  std::vector<std::string> names_;
  std::vector<std::vector<std::vector<T>>> cases_;
};
using KeptLayer = CaseRows<std::uint8_t>;

}  // namespace kvreplay
