#include "viewer/questions/ask.hpp"

#include "analysis/results/result_folder.hpp"
#include "analysis/results/result_reader.hpp"
#include "viewer/questions/score_curves.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <vector>

namespace kvreplay::viewer {

MetricSet available_metrics(const Run& run) {
  if (run.dump() != nullptr) return metrics_of(*run.dump());
  MetricSet found;
  if (run.results() != nullptr && !run.results()->layers().empty())
    for (const TokenMetric metric : kTokenMetrics.all())
      if (run.results()->has(
              fmt::format("{}/tokens/{}.npy", layer_name(run.results()->layers().front()), name_of(metric))))
        found.insert(metric);
  return found;
}

namespace {

/// The summary of a head or of one of its query heads; nothing where a result folder holds only sums over
/// groups.
std::optional<HeadSummary> summary_from(const Run& run, HeadSummaryOptions options, Index layer,
                                        Index kv_head, std::optional<Index> query_head, JobControl& job) {
  options.metrics = available_metrics(run);
  if (run.dump() != nullptr)
    return summarise_head(*run.head(layer, kv_head), options, job.compute(), query_head);
  auto metrics = query_head ? read_query_head_metrics(*run.results(), layer, kv_head, *query_head)
                            : std::optional(read_token_metrics(*run.results(), layer, kv_head));
  if (!metrics) return std::nullopt;
  return summary_of(std::move(*metrics), layer, kv_head, options, job.workers());
}

struct QueryHeadSummary {
  std::shared_ptr<const HeadSummary> summary;  ///< null where there is none
};
std::size_t bytes_of(const QueryHeadSummary& one) { return bytes_with(one, one.summary); }

Answer<QueryHeadSummary> ask_query_head(PanelContext& context, const ComparedHead& head, Index query_head) {
  const std::shared_ptr<const Run>& run = context.run();
  const Index window = context.state.comparison.window;
  const JobRequest request{.key = {run->key(), "query_head_summary", run->dump() != nullptr ? window : 0,
                                   head.layer, head.kv_head, query_head},
                           .title = fmt::format("Token metrics, {} query head {}",
                                                run->head_text(head.layer, head.kv_head), query_head),
                           .all_cores = true};
  return context.queue.ask<QueryHeadSummary>(
      request, [run, window, layer = head.layer, kv_head = head.kv_head, query_head](JobControl& job) {
        auto found = summary_from(*run, {.window = window}, layer, kv_head, query_head, job);
        return QueryHeadSummary{found ? std::make_shared<const HeadSummary>(std::move(*found)) : nullptr};
      });
}

}  // namespace

Answer<HeadSummary> ask_summary(PanelContext& context, Index layer, Index kv_head, Urgency urgency) {
  const std::shared_ptr<const Run>& run = context.run();
  const Index window = context.state.comparison.window;
  const bool with_tokens = urgency < Urgency::background;
  const JobRequest request{
      .key = {run->key(), "summary", with_tokens, run->dump() != nullptr ? window : 0, layer, kv_head},
      .title = "Token metrics, " + run->head_text(layer, kv_head),
      .urgency = urgency,
      .all_cores = with_tokens};
  return context.queue.ask<HeadSummary>(request, [run, window, layer, kv_head, with_tokens](JobControl& job) {
    return *summary_from(*run, {.window = window, .keep_tokens = with_tokens}, layer, kv_head, {}, job);
  });
}

Index compared_budget(const AppState& state, Index n) {
  return std::clamp<Index>(state.budget.tokens(n, state.setting_a.semantics), std::min<Index>(n, 1), n);
}

std::string ComparedHead::title() const {
  return query_head ? fmt::format("{} query head {}", called, *query_head) : called;
}

ComparedHead ask_compared_head(PanelContext& context) {
  const Selection& selection = context.state.selection();
  const Index group = context.run()->shape().group();
  ComparedHead head;
  head.layer = selection.layer;
  head.kv_head = selection.kv_head;
  head.called = context.run()->head_text(head.layer, head.kv_head);
  if (group > 1) head.whose = fmt::format("sum of {} query heads", group);
  if (group > 1 && selection.query_head) {
    const Answer<QueryHeadSummary> own = ask_query_head(context, head, *selection.query_head);
    if (!own || own->summary != nullptr) {
      if (own) head.summary.value = own->summary;
      head.summary.pending = own.pending;
      head.summary.error = own.error;
      head.query_head = selection.query_head;
      head.whose = fmt::format("query head {}", *selection.query_head);
      head.key = {context.state.comparison.window, head.layer, head.kv_head, head.query_head};
      return head;
    }
    head.whose += ": these results hold no single ones";
  }
  head.key = {context.state.comparison.window, head.layer, head.kv_head, head.query_head};
  head.summary = ask_summary(context, head.layer, head.kv_head, Urgency::soon);
  return head;
}

LeastBudget least_budget(Index l, std::size_t looks, const std::function<bool(Index)>& kept) {
  if (l <= 0 || !kept(l)) return {};
  const std::vector<Index> budgets = log_spaced(l, looks);
  Index keeps = l;
  for (auto k = budgets.rbegin(); k != budgets.rend(); ++k) {
    if (*k == l) continue;
    if (kept(*k)) {
      keeps = *k;
      continue;
    }
    Index evicts = *k;
    while (keeps - evicts > 1) {
      const Index middle = evicts + (keeps - evicts) / 2;
      (kept(middle) ? keeps : evicts) = middle;
    }
    break;
  }
  return {keeps};
}

}  // namespace kvreplay::viewer
