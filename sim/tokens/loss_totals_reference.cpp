#include "sim/attention.hpp"
#include "sim/tokens/loss_totals.hpp"

#include <limits>

namespace kvreplay {

Vector<double> loss_totals_reference(const HeadGroup<double>& group, Index g,
                                     const RowGradients<double>& gradients, RowRange rows) {
  Vector<double> loss = Vector<double>::Zero(group.l);
  for (Index i = rows.begin; i < rows.end; ++i) {
    const Vector<double> z = attention_logits(group, g, i).z;
    const Vector<double> weights = attention_weights(group, g, z);
    for (Index p = group.first_visible(i); p < std::min(group.l, group.end_visible(i)); ++p) {
      Vector<double> without = z;
      without[p] = -std::numeric_limits<double>::infinity();
      const Vector<double> change = group.v.transpose() * (attention_weights(group, g, without) - weights);
      for (Index s = 0; s < gradients.samples; ++s) {
        const double nats =
            gradients.g[g].row(s * gradients.rows.count() + i - gradients.rows.begin).dot(change);
        loss[p] += nats * nats / static_cast<double>(2 * gradients.samples);
      }
    }
  }
  return loss;
}

}  // namespace kvreplay
