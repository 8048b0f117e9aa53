#include "sim/loss/change_loss.hpp"

// Reference implementation of the predicted loss, directly from LOSS.md.

namespace kvreplay {

ChangeLoss change_loss_reference(const RowGradients<double>& gradients, Index g, RowRange rows,
                                 const Matrix<double>& change, RowRange changed) {
  const auto S = static_cast<double>(gradients.samples);
  ChangeLoss loss;
  for (Index s = 0; s < gradients.samples; ++s) {
    double of_head = 0;
    for (Index i = rows.begin; i < rows.end; ++i) {
      double of_row = 0;
      for (Index c = 0; c < change.cols(); ++c)
        of_row += gradients.g[g](s * gradients.rows.count() + i - gradients.rows.begin, c) *
                  change(i - changed.begin, c);
      loss.row += of_row * of_row / (2 * S);
      loss.steps.push_back(of_row);
      of_head += of_row;
    }
    loss.head += of_head * of_head / (2 * S);
    loss.samples.push_back(of_head);
  }
  return loss;
}

}  // namespace kvreplay
