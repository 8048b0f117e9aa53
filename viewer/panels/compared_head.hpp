#pragma once

#include "viewer/questions/ask.hpp"

#include <initializer_list>
#include <memory>
#include <optional>
#include <string>
#include <utility>

// Common parts of panels that compare a score with a reference: the head whose token metrics they show, and
// hints if there are none.

namespace kvreplay::viewer {

/// Metrics that the selected run can be compared by. Without any, draws a hint with the reason and returns
/// nothing.
std::optional<MetricSet> compared_metrics(AppState& state);
/// True if the run has the metric; else draws a hint.
bool is_there(TokenMetric metric, const MetricSet& available);

/// True if the pinned run has all metrics that the comparison needs; else draws a line that says so.
bool has_metrics(const Run& pinned, std::initializer_list<TokenMetric> needed);

/// Facts that are computed of the selected head, and the last ones while the next are computed.
template <class Facts>
class ComparedFacts {
 public:
  /// `compute(summary, job)` makes the facts; `key` says all else that they depend on. False where there is
  /// nothing to show, an error or a hint having said why.
  template <class Compute>
  bool look(PanelContext& context, const Key& key, const std::string& title, Compute compute);
  /// look() at the pinned run, where the selected one is held against it and it has these metrics. Draws no
  /// more than a line about what is wrong.
  template <class Compute>
  void look_pinned(PanelContext& context, std::initializer_list<TokenMetric> needed, const Key& key,
                   const std::string& title, Compute compute);

  /// The facts of the last look(); null before.
  const Facts* get() const { return facts_.get(); }
  const std::shared_ptr<const Facts>& shared() const { return facts_; }
  /// The facts of the last look() where they are of this run.
  const Facts* of(const Run* run) const { return run != nullptr && run->key() == run_ ? get() : nullptr; }
  /// The facts of the last look_pinned(), where they are of the same head as `own` ones; null: none.
  const Facts* beside(const ComparedFacts& own) const {
    return !run_.empty() && head_.key == own.head_.key ? get() : nullptr;
  }
  const ComparedHead& head() const { return head_; }  ///< head to which the facts belong
  const Key& run() const { return run_; }             ///< its key
  bool pending() const { return pending_; }

 private:
  template <class Compute>
  void ask(PanelContext& context, const Key& key, const std::string& title, Compute compute);

  std::shared_ptr<const Facts> facts_;
  ComparedHead head_;
  Key run_;
  bool pending_ = false;
  std::string error_;
};

/// Draws what stands for facts that are not there: an error, or that they are being computed.
void draw_no_facts(const std::string& error);

template <class Facts>
template <class Compute>
void ComparedFacts<Facts>::ask(PanelContext& context, const Key& key, const std::string& title,
                               Compute compute) {
  const Run& run = *context.run();
  ComparedHead head = ask_compared_head(context);
  Answer<Facts> answer;
  answer.error = head.summary.error;
  if (head.summary && head.summary->tokens != nullptr) {
    answer = context.queue.ask<Facts>(
        {.key = {run.key(), key, head.key}, .title = title + ", " + head.title(), .all_cores = true},
        [values = head.summary.value, compute](JobControl& job) { return compute(values, job); });
  }
  pending_ = !answer;
  if (answer) {
    facts_ = answer.value;
    run_ = run.key();
    head_ = std::move(head);
  }
  error_ = answer.error;
}

template <class Facts>
template <class Compute>
bool ComparedFacts<Facts>::look(PanelContext& context, const Key& key, const std::string& title,
                                Compute compute) {
  ask(context, key, title, std::move(compute));
  if (error_.empty() && of(context.run().get()) != nullptr) return true;
  draw_no_facts(error_);
  return false;
}

template <class Facts>
template <class Compute>
void ComparedFacts<Facts>::look_pinned(PanelContext& context, std::initializer_list<TokenMetric> needed,
                                       const Key& key, const std::string& title, Compute compute) {
  const std::shared_ptr<const Run> run = context.state.subtracted();
  if (run == nullptr || !has_metrics(*run, needed)) {
    *this = {};
    return;
  }
  PanelContext of_pinned = context.of(run);
  ask(of_pinned, key, title, std::move(compute));
  if (!error_.empty()) draw_no_facts(error_);
}

}  // namespace kvreplay::viewer
