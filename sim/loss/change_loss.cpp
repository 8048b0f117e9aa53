#include "sim/loss/change_loss.hpp"

#include "sim/simd/panel.hpp"

#include <algorithm>

namespace kvreplay {

template <class T>
ChangeLoss change_loss(const RowGradients<T>& gradients, Index g, RowRange rows, const std::vector<T>& change,
                       RowRange changed) {
  const Matrix<T>& all = gradients.g[g];
  const Index n = rows.count(), d_v = all.cols(), S = gradients.samples;
  Matrix<T> D(n, d_v);
  for (Index r = 0; r < n; ++r)
    for (Index c = 0; c < d_v; ++c) D(r, c) = change[panel_entry<T>(c, rows.begin - changed.begin + r, d_v)];
  ChangeLoss loss;
  loss.steps.reserve(S * n);
  for (Index s = 0; s < S; ++s) {
    const auto of_sample = all.middleRows(gradients.at(s, rows.begin), n);
    double sum = 0;
    for (Index r = 0; r < n; ++r) {
      const double nats = static_cast<double>(of_sample.row(r).dot(D.row(r)));
      loss.steps.push_back(nats);
      sum += nats;
      loss.row += nats * nats;
    }
    loss.head += sum * sum;
    loss.samples.push_back(sum);
  }
  const double per_sample = 0.5 / static_cast<double>(S);
  loss.row *= per_sample;
  loss.head *= per_sample;
  return loss;
}

template <class T>
std::vector<ChangeLoss> change_losses(const RowGradients<T>& gradients, RowRange rows,
                                      const std::vector<PanelRows<T>>& changes, RowRange changed,
                                      Workers& workers) {
  const std::size_t cases = changes.size();
  std::vector<ChangeLoss> losses(rows.count() > 0 ? gradients.g.size() * cases : 0);
  // The cases of a head follow each other, and find its gradients in the cache.
  workers.parallel_for(std::ssize(losses), [&](std::ptrdiff_t n) {
    const std::size_t at = static_cast<std::size_t>(n), g = at / cases;
    const PanelRows<T>& change = changes[at % cases];
    if (!change.empty()) losses[at] = change_loss(gradients, static_cast<Index>(g), rows, change[g], changed);
  });
  return losses;
}

template decltype(change_loss<float>) change_loss<float>;
template decltype(change_loss<double>) change_loss<double>;
template decltype(change_losses<float>) change_losses<float>;
template decltype(change_losses<double>) change_losses<double>;

}  // namespace kvreplay
