#pragma once

#include "analysis/run/bytes.hpp"
#include "data/dump.hpp"
#include "sim/eviction/kept_outputs.hpp"
#include "sim/schedule.hpp"

#include <limits>
#include <utility>
#include <vector>

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

  /// The query heads first .. first + count - 1, from one process to another.
  void save(Index first, Index count, ByteWriter& out) const {
    for (Index h = first; h < first + count; ++h) {
      out.put(full_[h]);
      for (const PanelRows<T>& heads : change_) out.put(heads[h]);
    }
  }
  void load(Index first, Index count, ByteReader& in) {
    for (Index h = first; h < first + count; ++h) {
      full_[h] = in.get<T>();
      for (PanelRows<T>& heads : change_) heads[h] = in.get<T>();
    }
  }

  /// Sums over rows of ||sum_h o_i W_O(h)||^2, and of the changes; nan where a head was not set.
  double full_sq(const std::vector<Matrix<T>>& wo, Workers& workers) const { return sq(full_, wo, workers); }
  double change_sq(std::size_t which, const std::vector<Matrix<T>>& wo, Workers& workers) const {
    return sq(change_[which], wo, workers);
  }

 private:
  static void set(PanelRows<T>& layer, Index first, PanelRows<T>&& heads) {
    for (std::size_t g = 0; g < heads.size(); ++g)
      layer[static_cast<std::size_t>(first) + g] = std::move(heads[g]);
  }
  static double sq(const PanelRows<T>& layer, const std::vector<Matrix<T>>& wo, Workers& workers) {
    std::vector<const std::vector<T>*> heads;
    for (const std::vector<T>& head : layer) {
      if (head.empty()) return std::numeric_limits<double>::quiet_NaN();
      heads.push_back(&head);
    }
    return projected_sq(heads, wo, workers);
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

}  // namespace kvreplay
