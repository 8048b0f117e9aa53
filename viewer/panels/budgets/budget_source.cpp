#include "viewer/panels/budgets/budget_source.hpp"

#include "data/error.hpp"
#include "viewer/panels/questions.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace kvreplay::viewer {

void BudgetSource::look(PanelContext& context, const BudgetSettings& settings) {
  const std::shared_ptr<const Run>& run = context.state.run();
  const auto count = static_cast<std::size_t>(run->shape().layers * run->shape().n_kv);
  if (run_key_ != run->key() || plan_ == nullptr || !(settings_ == settings)) {
    std::shared_ptr<const BudgetPlan> plan;
    error_.clear();
    try {
      plan = std::make_shared<const BudgetPlan>(budget_view_plan(settings, *run->dump()));
    } catch (const InputError& error) {
      error_ = error.what();
    }
    const bool other_run = run_key_ != run->key();
    settings_ = settings;
    run_key_ = run->key();
    if (other_run) {
      plan_ = nullptr;
      order_key_ = curves_key_ = {};
      curves_ = nullptr;
      methods_.clear();
      worths_.assign(count, nullptr);
      losses_.assign(count, {});
      missing_ = static_cast<Index>(count);
      ++version_;
    }
    if (plan != nullptr) {
      plan_ = std::move(plan);
      notes_.clear();
      for (const OptionText& note : plan_->notes) notes_.push_back(note.plain());
      if (order_key_ != order_key(*plan_)) {
        order_key_ = order_key(*plan_);
        worths_.assign(count, nullptr);
        losses_.assign(count, {});
        ++version_;
      }
      if (curves_key_ != curves_key(*plan_)) {
        curves_key_ = curves_key(*plan_);
        curves_ = nullptr;
        losses_.assign(count, {});
        ++version_;
      }
    }
  }
  pending_ = false;
  if (plan_ == nullptr) return;
  const Selection& selection = context.state.selection();
  ask_heads(context, selection.layer * run->shape().n_kv + selection.kv_head);
  ask_shares(context);
}

void BudgetSource::ask_heads(PanelContext& context, Index selected) {
  const std::shared_ptr<const Run>& run = context.state.run();
  const Index n_kv = run->shape().n_kv;
  int asked = 0;
  missing_ = 0;
  const auto ask = [&](Index head, Urgency urgency) {
    std::shared_ptr<const HeadWorth>& worth = worths_[head];
    if (worth != nullptr) return;
    const Index layer = head / n_kv, g = head % n_kv;
    const Question question{.key = {run->key(), "budget_worth", order_key_, layer, g},
                            .title = fmt::format("Loss of layer {} head {}", layer, g),
                            .urgency = urgency};
    const auto answer = context.desk.ask<HeadWorth>(question, [run, plan = plan_, layer, g](JobControl& job) {
      return head_worth(*run->head(layer, g), *plan, job);
    });
    worth = answer.value;
    if (worth != nullptr) ++version_;
    if (answer.pending) ++asked;
    if (!answer.error.empty()) error_ = answer.error;
  };
  ask(selected, Urgency::soon);
  for (Index head = 0; head < heads(); ++head) {
    if (asked < kAskedAtOnce) ask(head, Urgency::background);
    if (worths_[head] == nullptr) ++missing_;
  }
  pending_ = asked > 0;
}

void BudgetSource::ask_shares(PanelContext& context) {
  const std::shared_ptr<const Run>& run = context.state.run();
  if (missing_ == 0 && curves_ == nullptr) {
    const Question question{.key = {run->key(), "budget_curves", curves_key_},
                            .title = "Loss curves of all heads"};
    const auto answer =
        context.desk.ask<BudgetCurves>(question, [run, plan = plan_, worths = worths_](JobControl& job) {
          return budget_curves(*plan, run->shape(), worths, job);
        });
    pending_ = pending_ || answer.pending;
    if (!answer.error.empty()) error_ = answer.error;
    if (answer) {
      curves_ = answer.value;
      losses_.assign(worths_.size(), {});
      ++version_;
    }
  }
  if (curves_ == nullptr) {
    // The last order's budgets stand in.
    for (Method& method : methods_) method.share.stale = true;
    return;
  }
  std::vector<Method> methods;
  for (std::size_t c = 0; c < plan_->cases.size(); ++c) {
    Method method{plan_->cases[c].division.name, {}};
    const bool takes_long = kBudgetMethods[plan_->cases[c].division.method].is_slow;
    const Key slot(run->key(), "budget_share", method.name);
    const Question question{.key = {slot, curves_key_, plan_->divides, plan_->cases[c].sigma},
                            .title = fmt::format("Budgets of {}", method.name),
                            .urgency = takes_long ? Urgency::soon : Urgency::now,
                            .slot = slot};
    method.share =
        context.desk.ask<BudgetShare>(question, [plan = plan_, curves = curves_, c](JobControl& job) {
          return budget_share(*plan, c, *curves, job);
        });
    pending_ = pending_ || method.share.pending;
    methods.push_back(std::move(method));
  }
  methods_ = std::move(methods);
}

bool BudgetSource::stale() const {
  return std::any_of(methods_.begin(), methods_.end(),
                     [](const Method& method) { return method.share.stale; });
}

const BudgetShare* BudgetSource::find(const std::string& name) const {
  for (const Method& method : methods_)
    if (method.name == name && method.share && !method.share->budgets.empty()) return &*method.share;
  return nullptr;
}

std::vector<double> BudgetSource::kept(Index head) const {
  return curves_ != nullptr ? shares_kept(curves_->profile, head) : std::vector<double>();
}

const std::vector<double>& BudgetSource::loss(Index head) {
  static const std::vector<double> none;
  const auto h = static_cast<std::size_t>(head);
  if (h >= losses_.size()) return none;
  std::vector<double>& known = losses_[h];
  if (!known.empty()) return known;
  if (curves_ != nullptr && curves_->curves) {
    const auto curve = curves_->curves->loss(head);
    known.assign(curve.begin(), curve.end());
  } else if (worths_[h] != nullptr && !settings_.normalised()) {
    known = loss_of(*worths_[h]);
  }
  return known;
}

}  // namespace kvreplay::viewer
