#include "viewer/questions/wrongly_evicted.hpp"

#include "analysis/results/agreement.hpp"
#include "viewer/model/numbers.hpp"
#include "viewer/questions/usual_policies.hpp"

#include <algorithm>

namespace kvreplay::viewer {

WronglyEvicted wrongly_evicted(std::span<const double> score, std::span<const double> truth,
                               const KeptSet& kept) {
  WronglyEvicted found;
  found.kept = count(kept);
  const Ranking by_truth(truth), by_score(score);
  double sum = 0;
  for (Index place = 0; place < std::min(found.kept, std::ssize(by_truth.order())); ++place) {
    const Index token = by_truth.order()[place];
    if (kept[token] != 0) continue;
    const Index at = score.empty() ? 0 : by_score.place()[token] + 1;
    found.tokens.push_back({token, at, place + 1, truth[token]});
    sum += truth[token];
  }
  found.missed = by_truth.total() > 0 ? sum / by_truth.total() : kNone;
  return found;
}

void EvictedSource::ask(PanelContext& context, TokenMetric truth, bool policies) {
  AppState& state = context.state;
  const std::shared_ptr<const Run>& run = state.run();
  const Selection& selection = state.selection();
  const Index layer = selection.layer, head = selection.kv_head;
  pending_ = false;
  error_.clear();
  sets_.clear();
  const auto needs = [&](const auto& answer) {
    pending_ |= answer.pending;
    if (!answer.error.empty() && error_.empty()) error_ = answer.error;
    return answer && !answer.stale;
  };
  const Key slot(run->key(), "wrongly_evicted", layer, head);
  if (std::exchange(run_, slot) != slot) found_ = {};

  const bool is_b = state.shows_b();
  Answer<WhatIf> shown;
  for (const bool b : {false, true}) {
    Answer<WhatIf> kept = ask_kept_set(context, state.settings()[b ? 1 : 0], layer, head,
                                       b == is_b ? Urgency::now : Urgency::soon, {slot, b});
    if (kept) sets_.emplace_back(b ? "B" : "A", kept.value);
    pending_ |= kept.pending;
    if (b == is_b) shown = std::move(kept);
  }
  const Answer<HeadSummary> summary = ask_summary(context, layer, head, Urgency::soon);
  const Answer<WhatIfScores> scores = ask_scores(context, state.setting(), layer, head, Urgency::now);
  const bool has_kept = needs(shown), has_truth = needs(summary), has_scores = needs(scores);
  if (has_kept && has_truth && has_scores && summary->tokens != nullptr) {
    const WhatIfSettings settings = state.setting().without_compensation();
    const UserScore* own = find_score(state.scores, settings.score);
    const JobRequest request{.key = {slot, truth, state.comparison.window, to_json(settings).dump(),
                                     own != nullptr ? own->key() : Key()},
                             .title = "Wrongly evicted, " + run->head_text(layer, head),
                             .urgency = Urgency::now,
                             .slot = slot};
    found_ = context.queue.ask<WronglyEvicted>(request, [kept = shown.value, tokens = summary->tokens,
                                                         scores = scores.value, truth](JobControl&) {
      const Matrix<double>& values = (*tokens)[truth];
      const auto span = [](const auto& v) { return std::span(v.data(), static_cast<std::size_t>(v.size())); };
      return wrongly_evicted(span(scores->scores), span(values), kept->kept);
    });
    pending_ |= found_.pending;
  }
  if (!policies) return;
  for (const EvictionBase base : kUsualPolicies) {
    const WhatIfSettings settings = at_budget_of(state.setting(), base);
    // One that this dump has no metric for is left out.
    const Answer<WhatIf> kept = ask_kept_set(context, settings, layer, head, Urgency::background, {});
    if (kept) sets_.emplace_back(name_of(base), kept.value);
    pending_ |= kept.pending;
  }
}

std::string EvictedSource::kept_by(Index token) const {
  std::string names;
  for (const auto& [name, what_if] : sets_)
    if (token < std::ssize(what_if->kept) && what_if->kept[token] != 0)
      names.append(names.empty() ? "" : ", ").append(name);
  return names;
}

}  // namespace kvreplay::viewer
