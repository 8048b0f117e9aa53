#include "analysis/results/result_folder.hpp"
#include "analysis/results/result_reader.hpp"
#include "viewer/panels/questions.hpp"

#include <fmt/format.h>

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

Answer<HeadSummary> ask_summary(PanelContext& context, Index layer, Index kv_head, Urgency urgency) {
  const std::shared_ptr<const Run>& run = context.run();
  const Index window = context.state.comparison.window;
  const bool with_tokens = urgency != Urgency::background;
  const Question question{
      .key = {run->key(), "summary", with_tokens, run->dump() != nullptr ? window : 0, layer, kv_head},
      .title = fmt::format("Token metrics, layer {} head {}", layer, kv_head),
      .urgency = urgency,
      .all_cores = with_tokens};
  return context.desk.ask<HeadSummary>(question, [run, window, layer, kv_head, with_tokens](JobControl& job) {
    HeadSummaryOptions options;
    options.window = window;
    options.keep_tokens = with_tokens;
    options.metrics = available_metrics(*run);
    if (run->dump() != nullptr) return summarise_head(*run->head(layer, kv_head), options, job.compute());
    return summary_of(read_token_metrics(*run->results(), layer, kv_head), layer, kv_head, options,
                      job.workers());
  });
}

}  // namespace kvreplay::viewer
