#include "viewer/panels/compared_head.hpp"

#include "viewer/panels/metric_controls.hpp"
#include "viewer/widgets/controls.hpp"

#include <fmt/format.h>

namespace kvreplay::viewer {
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

void draw_no_facts(const std::string& error) {
  if (error.empty())
    hint("Computing the head's token metrics ...");
  else
    error_line(error);
}

}  // namespace kvreplay::viewer
