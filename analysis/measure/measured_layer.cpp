#include "analysis/measure/measured_layer.hpp"

#include "data/npy_write.hpp"
#include "sim/eviction/vanishing_outputs.hpp"
#include "sim/loss/change_loss.hpp"

#include <algorithm>
#include <functional>
#include <type_traits>
#include <utility>

namespace kvreplay {

MeasuredLayer::MeasuredLayer(const Dump& dump, Precision precision, MeasureColumns columns)
    : dump_(dump), precision_(precision), columns_(std::move(columns)), with_layer_(dump.has(Tensor::wo)) {}

template <class T>
MeasuredLayer::Outputs<T>& MeasuredLayer::in() {
  if constexpr (std::is_same_v<T, float>)
    return single_;
  else
    return wide_;
}

void MeasuredLayer::begin() {
  const auto reset = [&](auto& outputs) {
    outputs.window.begin(dump_.shape().n_q, columns_.window.change.size());
    outputs.future.begin(dump_.shape().n_q, columns_.future.change.size());
  };
  in_float32(precision_) ? reset(single_) : reset(wide_);
  steps_.assign(dump_.shape().n_kv, std::vector<double>(columns_.losses.per_layer()));
}

/// What the gradients of a group make of the changes in all cases that have vectors.
template <class T>
void MeasuredLayer::add_losses(const OutputChanges<T>& outputs, const HeadGroup<T>& group, RowRange measured,
                               RowSet rows, std::span<double> figures, Workers& workers) {
  const LossColumns& columns = columns_.losses;
  const auto G = static_cast<std::size_t>(group.G()), cases = outputs.change.size();
  const RowRange on = columns.rows().on(rows), nll = rows == RowSet::future ? columns.rows().nll : RowRange{};
  const std::vector<ChangeLoss> sampled = change_losses(
      rows == RowSet::window ? group.g_window : group.g_future, on, outputs.change, measured, workers);
  const std::vector<ChangeLoss> of_nll = change_losses(group.g_nll, nll, outputs.change, measured, workers);
  for (std::size_t c = 0; c < cases; ++c)
    for (std::size_t g = 0; g < G && !outputs.change[c].empty(); ++g) {
      if (!sampled.empty()) {
        const ChangeLoss& loss = sampled[g * cases + c];
        figures[columns.row(c, rows)] += loss.row;
        figures[columns.head(c, rows)] += loss.head;
        for (std::size_t s = 0; s < loss.samples.size(); ++s)
          figures[columns.samples(c, rows) + static_cast<Index>(s)] += loss.samples[s];
        const auto sums = steps_[group.kv_head].begin() + columns.steps(c, rows);
        std::transform(loss.steps.begin(), loss.steps.end(), sums, sums, std::plus<>{});
      }
      if (!of_nll.empty()) figures[columns.nll(c)] += of_nll[g * cases + c].samples.front();
    }
}

template <class T>
void MeasuredLayer::add(CaseOutputs<T>&& outputs, const HeadGroup<T>& group, RowRange window, RowRange future,
                        Index first_query_head, std::span<double> figures, Workers& workers) {
  const auto put = [&](Index column, double value) {
    if (column >= 0) figures[column] += value;
  };
  const auto add_rows = [&](OutputChanges<T>& from, const MeasureColumns::OnRows& columns,
                            LayerOutputs<T>& to) {
    put(columns.full, from.full_sq);
    for (std::size_t c = 0; c < columns.change.size(); ++c) put(columns.change[c], from.change_sq[c]);
    if (!with_layer_) return;
    to.set_full(first_query_head, std::move(from.full));
    for (std::size_t c = 0; c < from.change.size(); ++c)
      to.set_change(c, first_query_head, std::move(from.change[c]));
  };
  add_losses(outputs.window, group, window, RowSet::window, figures, workers);
  add_losses(outputs.future, group, future, RowSet::future, figures, workers);
  add_rows(outputs.window, columns_.window, in<T>().window);
  add_rows(outputs.future, columns_.future, in<T>().future);
}
template void MeasuredLayer::add(CaseOutputs<float>&&, const HeadGroup<float>&, RowRange, RowRange, Index,
                                 std::span<double>, Workers&);
template void MeasuredLayer::add(CaseOutputs<double>&&, const HeadGroup<double>&, RowRange, RowRange, Index,
                                 std::span<double>, Workers&);

void MeasuredLayer::end(Index layer, Workers& workers, const LayerFigures& figures) {
  std::fill(figures.whole.begin(), figures.whole.end(), 0.0);
  for (const std::vector<double>& head : steps_)
    std::transform(head.begin(), head.end(), figures.whole.begin(), figures.whole.begin(), std::plus<>{});
  if (with_layer_) project(layer, workers, figures.heads);
}

/// What the layer's W_O makes of the outputs of all heads.
void MeasuredLayer::project(Index layer, Workers& workers, Eigen::Ref<Matrix<double>> heads) const {
  const auto project_outputs = [&]<class T>(const Outputs<T>& outputs) {
    const std::vector<Matrix<T>> wo = read_layer_wo<T>(dump_, layer);
    const auto project_rows = [&](const LayerOutputs<T>& on_rows, const MeasureColumns::OnRows& columns) {
      if (columns.layer_full < 0) return;
      constexpr double kLeast = sizeof(T) == 4 ? 1e-60 : std::numeric_limits<double>::min();
      const std::vector<double> sq = on_rows.projected_sq(wo, workers);
      const bool lost = sq.front() < kLeast;  // below what T's digits reach down to: 0, and no change is none
      heads.col(columns.layer_full).setConstant(lost ? 0 : sq.front());
      for (std::size_t c = 0; c < columns.layer_change.size(); ++c) {
        const double change_sq = sq[1 + c];
        const bool changes = lost && heads.col(columns.change[c]).sum() > 0;
        heads.col(columns.layer_change[c]).setConstant(changes ? at_least_some(change_sq) : change_sq);
      }
    };
    project_rows(outputs.window, columns_.window);
    project_rows(outputs.future, columns_.future);
  };
  in_float32(precision_) ? project_outputs(single_) : project_outputs(wide_);
}

template <class T>
CaseRows<T>::CaseRows(std::string kind, Index rows, Index length, std::vector<std::string> names)
    : kind_(std::move(kind)),
      rows_(static_cast<std::size_t>(rows)),
      length_(static_cast<std::size_t>(length)),
      names_(std::move(names)) {}

template <class T>
void CaseRows<T>::begin() {
  cases_.assign(names_.size(), std::vector<std::vector<T>>(rows_));
}

template <class T>
void CaseRows<T>::write(const ResultFolder& folder, Index layer) const {
  const std::size_t shape[] = {rows_, length_};
  for (std::size_t c = 0; c < names_.size(); ++c) {
    std::vector<T> all;
    for (const std::vector<T>& row : cases_[c]) all.insert(all.end(), row.begin(), row.end());
    if (all.empty() && length_ > 0) continue;
    AtomicFile file = folder.layer_file(layer, kind_ + "/" + names_[c] + ".npy");
    if constexpr (sizeof(T) == 1)
      write_npy_bool(std::move(file), shape, all);
    else
      write_npy(std::move(file), shape, std::span<const T>(all));
  }
}

template class CaseRows<std::uint8_t>;
template class CaseRows<std::int32_t>;

}  // namespace kvreplay
