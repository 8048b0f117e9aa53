#include "viewer/panels/what_if_heads.hpp"

#include "analysis/results/figures.hpp"
#include "viewer/model/numbers.hpp"

#include <cmath>
#include <numeric>

namespace kvreplay::viewer {

void WhatIfHeads::follow(const Run& run, const WhatIfSettings& settings) {
  const auto count = static_cast<std::size_t>(run.shape().layers * run.shape().n_kv);
  if (run_key_ != run.key() || heads_.size() != count) {
    run_key_ = run.key();
    n_kv_ = run.shape().n_kv;
    heads_.assign(count, {});
  } else if (settings_ == settings) {
    return;
  }
  settings_ = settings;
  round_.restart(std::ssize(heads_));
  ++version_;
}

void WhatIfHeads::ask(PanelContext& context) {
  round_.go_on(
      [&](Index h) { return ask_what_if(context, settings_, h / n_kv_, h % n_kv_, Urgency::background, {}); },
      [&](Index h, const Answer<WhatIf>& answer) {
        ++version_;
        heads_[h].reset();
        if (answer) heads_[h] = Known{figures_of(*answer), answer->window.loss, answer->future.loss};
      });
}

const WhatIfFigures* WhatIfHeads::at(Index head) const {
  const auto h = static_cast<std::size_t>(head);
  return h < heads_.size() && heads_[h] ? &heads_[h]->figures : nullptr;
}

const WhatIfFigures* WhatIfHeads::current(Index head) const {
  return head < round_.count() && round_.answered(head) ? at(head) : nullptr;
}

std::vector<double> WhatIfHeads::values(std::size_t figure) const {
  std::vector<double> values;
  for (Index h = 0; h < heads(); ++h)
    if (const WhatIfFigures* figures = current(h); figures != nullptr && !std::isnan((*figures)[figure]))
      values.push_back((*figures)[figure]);
  return values;
}

double WhatIfHeads::mean(std::size_t figure) const {
  const std::vector<double> all = values(figure);
  const double sum = std::accumulate(all.begin(), all.end(), 0.0);
  return all.empty() ? kNone : sum / static_cast<double>(all.size());
}

double WhatIfHeads::median(std::size_t figure) const {
  std::vector<double> all = values(figure);
  return quantile(all, 0.5);
}

std::optional<ModelLoss> WhatIfHeads::loss(RowSet rows) const {
  if (answered() < heads() || failed() > 0) return std::nullopt;
  ModelLoss loss;
  for (Index h = 0; h < heads(); ++h)
    loss.add(h / n_kv_, rows == RowSet::window ? heads_[h]->window : heads_[h]->future);
  return loss;
}

}  // namespace kvreplay::viewer
