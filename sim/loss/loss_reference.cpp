#include "sim/attention.hpp"
#include "sim/loss/change_loss.hpp"
#include "sim/tokens/loss_totals.hpp"

#include <limits>

// The judges of the predicted loss, straight from LOSS.md.

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

Vector<double> loss_totals_reference(const HeadGroup<double>& group, Index g,
                                     const RowGradients<double>& gradients, RowRange rows) {
  Vector<double> loss = Vector<double>::Zero(group.l);
  for (Index i = rows.begin; i < rows.end; ++i) {
    const Vector<double> z = attention_logits(group, g, i).z;
    const Vector<double> weights = attention_weights(group, g, z);
    for (Index p = group.first_visible(i); p < std::min(group.l, group.end_visible(i)); ++p) {
      Vector<double> without = z;
      without[p] = -std::numeric_limits<double>::infinity();
      const Matrix<double> change = ((attention_weights(group, g, without) - weights).transpose() * group.v);
      loss[p] += change_loss_reference(gradients, g, {i, i + 1}, change, {i, i + 1}).row;
    }
  }
  return loss;
}

}  // namespace kvreplay
