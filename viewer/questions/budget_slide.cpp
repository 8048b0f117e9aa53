#include "viewer/questions/budget_slide.hpp"

#include "viewer/model/numbers.hpp"
#include "viewer/questions/token_tint.hpp"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

namespace kvreplay::viewer {

std::vector<Index> sliding_budgets(Index l, int steps, double least) {
  std::vector<Index> budgets;
  for (int i = 0; i < steps; ++i) {
    const double share = std::pow(least, static_cast<double>(i) / std::max(steps - 1, 1));
    const auto tokens = std::max<Index>(std::lround(static_cast<double>(l) * share), 1);
    if (budgets.empty() || tokens < budgets.back()) budgets.push_back(tokens);
  }
  return budgets;
}

std::vector<Index> dearest_tokens(const std::vector<double>& values, std::size_t most) {
  std::vector<Index> tokens(values.size());
  std::iota(tokens.begin(), tokens.end(), Index{0});
  std::erase_if(tokens, [&](Index p) { return std::isnan(values[p]); });
  const auto end = tokens.begin() + static_cast<std::ptrdiff_t>(std::min(most, tokens.size()));
  std::partial_sort(tokens.begin(), end, tokens.end(),
                    [&](Index a, Index b) { return values[a] != values[b] ? values[a] > values[b] : a < b; });
  tokens.erase(end, tokens.end());
  std::sort(tokens.begin(), tokens.end());
  return tokens;
}

BudgetSlide::BudgetSlide(std::shared_ptr<const Run> run, std::optional<Head> head,
                         std::array<WhatIfSettings, 2> settings, const std::vector<Index>& budgets)
    : run_(std::move(run)), head_(head), settings_(std::move(settings)) {
  const auto l = static_cast<std::size_t>(run_->shape().l);
  for (const Index budget : budgets) {
    steps_.push_back({budget, {}});
    for (SlideSide& side : steps_.back().sides) side.evicted.assign(l, 0);
  }
  parts_.resize(2 * steps_.size());
  for (Part& part : parts_) {
    part.missing = heads();
    part.losses.resize(heads());
  }
  round_.restart(std::ssize(parts_) * heads());
  if (const auto& question = run_->dump()->question(); question && !question->needles.empty()) {
    needed_.emplace().of_question = true;
    for (const QuestionFacts::Span& needle : question->needles)
      for (Index p = needle.begin; p < needle.end; ++p) needed_->tokens.push_back(p);
    std::sort(needed_->tokens.begin(), needed_->tokens.end());
  } else if (const MetricSet there = available_metrics(*run_); there.contains(TokenMetric::oracle_future)) {
    metric_ = TokenMetric::oracle_future;
  } else if (!there.contains(metric_)) {
    needed_.emplace();
  }
  costs_.assign(l, 0.0);
  cost_round_.restart(needed_ ? 0 : head_ ? 1 : run_->shape().layers);
}

WhatIfSettings BudgetSlide::settings_at(std::size_t step, std::size_t side) const {
  WhatIfSettings settings = settings_[side];
  settings.sigma_budget = false;
  settings.budget = steps_[step].budget;
  return settings;
}

void BudgetSlide::ask(PanelContext& context) {
  if (done() || !error_.empty()) return;
  PanelContext of_run = context.of(run_);
  if (!needed_) ask_needed(of_run);
  const Index n_kv = run_->shape().n_kv;
  // Of many settings at a time none would be remembered.
  const int at_once = head_ ? 6 : kAskedAtOnce;
  round_.go_on(
      [&](Index i) {
        const Index part = i / heads(), h = i % heads();
        const Head head = head_.value_or(Head{h / n_kv, h % n_kv});
        return ask_what_if(of_run, settings_at(part / 2, part % 2), head.layer, head.kv_head,
                           head_ ? Urgency::soon : Urgency::background, {});
      },
      [&](Index i, const Answer<WhatIf>& answer) {
        if (answer) take(i, *answer);
      },
      std::max<Index>(kAddedAFrame / std::max<Index>(run_->shape().l, 1), 1), at_once);
  error_ = !round_.error().empty() ? round_.error() : cost_round_.error();
}

void BudgetSlide::ask_needed(PanelContext& context) {
  const auto add = [&](const auto& values) {
    for (Index p = 0; p < std::ssize(costs_); ++p) costs_[p] += values[p];
  };
  if (head_)
    cost_round_.go_on(
        [&](Index) { return ask_summary(context, head_->layer, head_->kv_head, Urgency::soon); },
        [&](Index, const Answer<HeadSummary>& summary) {
          if (summary && summary->tokens != nullptr) add((*summary->tokens)[metric_].reshaped());
        });
  else
    cost_round_.go_on(
        [&](Index layer) { return ask_layer_sums(context, layer, metric_, Urgency::background); },
        [&](Index, const Answer<TokenSums>& sums) {
          if (sums) add(sums->values);
        });
  if (cost_round_.done() == cost_round_.count())
    needed_ = NeededTokens{dearest_tokens(costs_), false, metric_};
}

void BudgetSlide::take(Index which, const WhatIf& answer) {
  const Index h = which % heads(), step = which / heads() / 2, s = which / heads() % 2;
  Part& part = parts_[which / heads()];
  SlideSide& side = steps_[step].sides[s];
  for (std::size_t p = 0; p < std::min(side.evicted.size(), answer.kept.size()); ++p)
    side.evicted[p] += answer.kept[p] == 0 ? 1 : 0;
  on_future_ = answer.future.rows > 0;
  const WhatIf::RowFigures& rows = on_future_ ? answer.future : answer.window;
  part.full_sq += rows.full_sq;
  part.change_sq += rows.change_sq;
  part.losses[h] = rows.loss;
  if (--part.missing > 0) return;
  side.error = relative_error(part.change_sq, part.full_sq);
  if (head_) {
    side.nats = part.losses.front().row;
  } else {
    ModelLoss loss;
    for (Index each = 0; each < heads(); ++each) loss.add(each / run_->shape().n_kv, part.losses[each]);
    side.nats = loss.step();
  }
  part.losses.clear();
  part.losses.shrink_to_fit();
}

bool BudgetSlide::done() const { return needed_ && error_.empty() && round_.done() == round_.count(); }

double BudgetSlide::progress() const {
  return static_cast<double>(round_.done() + cost_round_.done()) /
         static_cast<double>(std::max<Index>(round_.count() + cost_round_.count(), 1));
}

std::optional<BudgetSlide::Lost> BudgetSlide::first_lost(std::size_t side) const {
  for (std::size_t step = 0; step < steps_.size(); ++step)
    for (const Index token : needed_->tokens)
      if (token < run_->shape().l && 2 * steps_[step].sides[side].evicted[token] > heads())
        return Lost{step, token};
  return std::nullopt;
}

double BudgetSlide::largest_error() const {
  double most = 0;
  for (const SlideStep& step : steps_)
    for (const SlideSide& side : step.sides) most = std::max(most, side.error);
  return most;
}

double BudgetSlide::largest_nats() const {
  double most = kNone;
  for (const SlideStep& step : steps_)
    for (const SlideSide& side : step.sides)
      if (!(side.nats <= most) && !std::isnan(side.nats)) most = side.nats;
  return most;
}

}  // namespace kvreplay::viewer
