#include "viewer/panels/what_if/what_if_heads.hpp"

#include "viewer/model/numbers.hpp"

#include <cmath>

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
  for (Head& head : heads_) head.answered = head.failed = false;
  answered_ = failed_ = 0;
  error_.clear();
  ++version_;
}

void WhatIfHeads::ask(PanelContext& context) {
  int asked = 0;
  for (std::size_t h = 0; h < heads_.size() && asked < kAskedAtOnce; ++h) {
    Head& head = heads_[h];
    if (head.answered) continue;
    const auto number = static_cast<Index>(h);
    const Answer<WhatIf> answer =
        ask_what_if(context, settings_, number / n_kv_, number % n_kv_, Urgency::background, {});
    if (answer.pending) {
      ++asked;
      continue;
    }
    head.answered = true;
    ++answered_;
    ++version_;
    if (answer) {
      head.figures = figures_of(*answer);
    } else {
      head.figures.reset();
      head.failed = true;
      if (failed_++ == 0) error_ = answer.error;
    }
  }
}

const WhatIfFigures* WhatIfHeads::at(Index head) const {
  const auto h = static_cast<std::size_t>(head);
  return h < heads_.size() && heads_[h].figures ? &*heads_[h].figures : nullptr;
}

const WhatIfFigures* WhatIfHeads::current(Index head) const {
  const auto h = static_cast<std::size_t>(head);
  return h < heads_.size() && heads_[h].answered ? at(head) : nullptr;
}

double WhatIfHeads::mean(std::size_t figure) const {
  double sum = 0;
  Index n = 0;
  for (const Head& head : heads_)
    if (head.answered && head.figures && !std::isnan((*head.figures)[figure])) {
      sum += (*head.figures)[figure];
      ++n;
    }
  return n > 0 ? sum / static_cast<double>(n) : kNone;
}

}  // namespace kvreplay::viewer
