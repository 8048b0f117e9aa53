#include "viewer/panels/compared_head.hpp"

#include "viewer/panels/no_dump.hpp"
#include "viewer/widgets/controls.hpp"

#include <fmt/format.h>

namespace kvreplay::viewer {
namespace {

/// A query head's summary; `none` where a result folder holds only sums over groups.
struct QueryHeadSummary {
  std::shared_ptr<const HeadSummary> summary;
  bool none = false;
};
std::size_t bytes_of(const QueryHeadSummary& one) {
  return sizeof(one) + (one.summary ? bytes_of(*one.summary) : 0);
}

Answer<QueryHeadSummary> ask_query_head(PanelContext& context, const ComparedHead& head, Index query_head) {
  const std::shared_ptr<const Run>& run = context.run();
  const Index window = context.state.comparison.window;
  const Question question{.key = {run->key(), "query_head_summary", run->dump() != nullptr ? window : 0,
                                  head.layer, head.kv_head, query_head},
                          .title = fmt::format("Token metrics, layer {} head {} query head {}", head.layer,
                                               head.kv_head, query_head),
                          .all_cores = true};
  return context.desk.ask<QueryHeadSummary>(
      question, [run, window, layer = head.layer, kv_head = head.kv_head, query_head](JobControl& job) {
        HeadSummaryOptions options;
        options.window = window;
        options.metrics = available_metrics(*run);
        QueryHeadSummary found;
        if (run->dump() != nullptr) {
          found.summary = std::make_shared<const HeadSummary>(
              summarise_head(*run->head(layer, kv_head), options, job.compute(), query_head));
        } else if (auto metrics = read_query_head_metrics(*run->results(), layer, kv_head, query_head)) {
          found.summary = std::make_shared<const HeadSummary>(
              summary_of(std::move(*metrics), layer, kv_head, options, job.workers()));
        } else {
          found.none = true;
        }
        return found;
      });
}

}  // namespace

std::string ComparedHead::title() const {
  return query_head ? fmt::format("layer {} head {} query head {}", layer, kv_head, *query_head)
                    : fmt::format("layer {} head {}", layer, kv_head);
}

std::optional<MetricSet> compared_metrics(AppState& state) {
  const std::shared_ptr<const Run>& run = state.run();
  if (run == nullptr) {
    hint("Open a dump or a result folder.");
    return std::nullopt;
  }
  const MetricSet available = available_metrics(*run);
  if (!available.empty()) return available;
  hint_no_dump(
      state,
      fmt::format("These results hold no token metrics, and there is no dump to compute them from: {}.",
                  run->why_no_dump()));
  return std::nullopt;
}

bool is_there(TokenMetric metric, const MetricSet& available) {
  if (available.contains(metric)) return true;
  hint(fmt::format("This run has no {}. Choose another metric above.", name_of(metric)));
  return false;
}

bool has_metrics(const Run& pinned, std::initializer_list<TokenMetric> needed) {
  const MetricSet available = available_metrics(pinned);
  for (const TokenMetric metric : needed) {
    if (available.contains(metric)) continue;
    error_line(fmt::format("{} has no {} to compare with.", pinned.name(), name_of(metric)));
    return false;
  }
  return true;
}

ComparedHead ask_compared_head(PanelContext& context) {
  const Selection& selection = context.state.selection();
  const Index group = context.run()->shape().group();
  ComparedHead head;
  head.layer = selection.layer;
  head.kv_head = selection.kv_head;
  if (group > 1) head.whose = fmt::format("sum of {} query heads", group);
  if (group > 1 && selection.query_head) {
    const Answer<QueryHeadSummary> own = ask_query_head(context, head, *selection.query_head);
    if (!own || !own->none) {
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

void draw_no_facts(const std::string& error) {
  if (error.empty())
    hint("Computing the head's token metrics ...");
  else
    error_line(error);
}

}  // namespace kvreplay::viewer
