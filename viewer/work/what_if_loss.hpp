#pragma once

#include "analysis/measure/measured_columns.hpp"
#include "sim/cache/cache_outputs.hpp"
#include "viewer/model/numbers.hpp"

#include <vector>

// What a setting is predicted to cost the model, in nats a step (sim/loss/LOSS.md): of one head, and of all.

namespace kvreplay::viewer {

/// Of one KV head on one set of rows.
struct PredictedLoss {
  Index rows = 0;                    ///< |R|; 0 where the dump has no gradients of such rows
  double row = kNone, head = kNone;  ///< loss_row and loss_head; nan without rows
  std::vector<double> samples = {};  ///< [S]: sum over query heads and rows of gradient . change
  std::vector<double> steps = {};    ///< [S, rows]: sum over query heads
};

/// Of the first case, whose outputs change on the rows `measured`.
PredictedLoss predicted_loss(const HeadGroup<float>& group, const LossRows& there, RowSet rows,
                             RowRange measured, const OutputChanges<float>& changes, Workers& workers);

/// Of all heads together, added layer by layer.
class ModelLoss {
 public:
  /// The heads of a layer follow each other.
  void add(Index layer, const PredictedLoss& head);
  double row() const;    ///< loss_row of the model; nan where no head has any
  double layer() const;  ///< loss_layer of the model
  double step() const;   ///< loss_step of the model

 private:
  double half_mean(const std::vector<double>& sums) const;  // of their squares, over samples and rows

  Index layer_ = -1, rows_ = 0;
  double row_ = 0, layers_ = 0;  // layers_: of those before layer_
  std::vector<double> samples_;  // of layer_
  std::vector<double> steps_;    // of all layers
};

/// Why no loss in nats can be known on such rows of a dump, and what makes it, as a sentence; empty where it
/// can.
std::string why_no_nats(const Dump& dump, RowSet rows);

}  // namespace kvreplay::viewer
