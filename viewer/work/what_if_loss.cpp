#include "viewer/work/what_if_loss.hpp"

#include "sim/gradient_rows.hpp"
#include "sim/loss/change_loss.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <functional>

namespace kvreplay::viewer {

PredictedLoss predicted_loss(const HeadGroup<float>& group, const LossRows& there, RowSet rows,
                             RowRange measured, const OutputChanges<float>& changes, Workers& workers) {
  PredictedLoss loss{there.on(rows).count()};
  if (loss.rows == 0) return loss;
  loss.row = loss.head = 0;
  loss.samples.assign(static_cast<std::size_t>(there.samples), 0.0);
  loss.steps.assign(static_cast<std::size_t>(there.samples * loss.rows), 0.0);
  const auto add = [](const std::vector<double>& to_add, std::vector<double>& sums) {
    std::transform(to_add.begin(), to_add.end(), sums.begin(), sums.begin(), std::plus<>{});
  };
  for (const ChangeLoss& of_query_head :
       change_losses(rows == RowSet::window ? group.g_window : group.g_future, there.on(rows),
                     {changes.change.front()}, measured, workers)) {
    loss.row += of_query_head.row;
    loss.head += of_query_head.head;
    add(of_query_head.samples, loss.samples);
    add(of_query_head.steps, loss.steps);
  }
  loss.row /= static_cast<double>(loss.rows);
  loss.head /= static_cast<double>(loss.rows);
  return loss;
}

void ModelLoss::add(Index layer, const PredictedLoss& head) {
  if (head.rows == 0) return;
  if (layer != layer_) {
    layers_ += half_mean(samples_);
    layer_ = layer;
    samples_.assign(head.samples.size(), 0.0);
  }
  rows_ = head.rows;
  row_ += head.row;
  std::transform(head.samples.begin(), head.samples.end(), samples_.begin(), samples_.begin(), std::plus<>{});
  steps_.resize(head.steps.size(), 0.0);
  std::transform(head.steps.begin(), head.steps.end(), steps_.begin(), steps_.begin(), std::plus<>{});
}

double ModelLoss::half_mean(const std::vector<double>& sums) const {
  double squares = 0;
  for (const double sum : sums) squares += sum * sum;
  return samples_.empty() ? 0
                          : squares / (2 * static_cast<double>(samples_.size()) * static_cast<double>(rows_));
}

double ModelLoss::row() const { return rows_ > 0 ? row_ : kNone; }
double ModelLoss::layer() const { return rows_ > 0 ? layers_ + half_mean(samples_) : kNone; }
double ModelLoss::step() const { return rows_ > 0 ? half_mean(steps_) : kNone; }

std::string why_no_nats(const Dump& dump, RowSet rows) {
  const DumpShape& shape = dump.shape();
  const bool window = rows == RowSet::window;
  // Whatever is measured ends where these do.
  const RowRange last = window ? RowRange{shape.l - 1, shape.l} : RowRange{shape.l, shape.T};
  const auto why = why_no_loss(dump, window ? Tensor::g_window : Tensor::g_future, last);
  return why ? fmt::format(
                   "Not in this dump: {}. kvcapture.py --gradients 24 --rows future,window writes them.",
                   *why)
             : std::string();
}

}  // namespace kvreplay::viewer
