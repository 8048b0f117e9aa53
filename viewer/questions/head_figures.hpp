#pragma once

#include "analysis/results/map_name.hpp"
#include "analysis/results/schema.hpp"
#include "analysis/tokens/token_agreement.hpp"
#include "sim/compute.hpp"
#include "sim/head_group.hpp"
#include "sim/schedule.hpp"
#include "sim/tokens/token_metrics.hpp"
#include "viewer/model/value_scale.hpp"
#include "viewer/questions/job_queue.hpp"

#include <array>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace kvreplay {
class ResultReader;
}

namespace kvreplay::viewer {

// The figures of one head that `kvreplay tokens` exports (heads.csv, agreement.csv, maps/), as the dashboard
// computes them: a head at a time.

/// One figure of a head: a metric's sum over all tokens, or how well it follows a reference.
struct HeadFigure {
  TokenMetric metric = TokenMetric::attn;
  std::optional<TokenMetric> reference;
  AgreementFigure figure = AgreementFigure::rel_l1;  ///< only with a reference
  bool operator==(const HeadFigure&) const = default;
};
/// Name as in the files of maps/: "attn", "attn~exact_remove~recall@10%".
std::string name_of(const HeadFigure& figure);
std::optional<HeadFigure> head_figure_named(std::string_view name);
/// The figure that a map of the tokens stage shows, whatever its window and reserve.
std::optional<HeadFigure> head_figure_of(const MapName& map);
/// Exported metrics and agreements over n candidates, in the order of the tables.
std::vector<HeadFigure> head_figures(const MetricSet& metrics, Index n);

struct HeadSummaryOptions {
  Index window = 32;
  MetricSet metrics = MetricSet::standard();  ///< must be available (metrics_of)
  Index first_held = 0;                       ///< the first candidate's position
  bool keep_tokens = true;  ///< else only the figures: some kilobytes a head instead of 8 l bytes a metric
};

/// All figures of one head, and what they are made of.
struct HeadSummary {
  Index layer = 0, kv_head = 0;
  Index l = 0;  ///< candidates
  MetricSet metrics;
  std::array<double, kTokenMetrics.size()> sums{};  ///< over all tokens; NaN for metrics that are not there
  std::vector<TokenPair> pairs;
  std::vector<Agreement> agreements;           ///< one a pair
  std::shared_ptr<const TokenMetrics> tokens;  ///< [1, l] each, summed over the group; null unless kept

  /// NaN where the figure is not there, does not apply or is undefined.
  double value(const HeadFigure& figure) const;
};
inline std::size_t bytes_of(const TokenMetrics& metrics) { return bytes_with(metrics, metrics.values); }
inline std::size_t bytes_of(const HeadSummary& summary) {
  return bytes_with(summary, summary.pairs, summary.agreements) +
         (summary.tokens ? bytes_of(*summary.tokens) : 0);
}

/// The numbers of `kvreplay tokens` with the same window and float32 arithmetic, to the bit; of one query
/// head, 0..G-1 of the group, those of `--per-query-head`.
HeadSummary summarise_head(const HeadGroup<float>& group, const HeadSummaryOptions& options,
                           const Compute& compute, std::optional<Index> query_head = {});

/// The summary of metrics that are there already: [1, l] each, or empty.
HeadSummary summary_of(TokenMetrics metrics, Index layer, Index kv_head, const HeadSummaryOptions& options,
                       Workers& workers);

/// The token metrics that a result folder holds of one head, summed over its query heads: [1, l] each, empty
/// where it has none; float32 numbers unless the run was in float64. Throws InputError where a file is not
/// what it should be, or the run has no such head.
TokenMetrics read_token_metrics(const ResultReader& results, Index layer, Index kv_head);

/// The token metrics that a result folder holds of one query head; nothing where the folder holds only sums
/// over groups.
std::optional<TokenMetrics> read_query_head_metrics(const ResultReader& results, Index layer, Index kv_head,
                                                    Index query_head);

/// Description of a metric of heads, before any value is known.
struct FigureInfo {
  std::string name;                    ///< unique in a run; metrics and agreement as in maps/
  Table table = Table::heads;          ///< table in whose menu the metric is listed
  std::vector<std::string> path = {};  ///< where it stands there, the figure itself last
  std::string title = {};              ///< one line
  FigureFacts facts = {};              ///< of no name where the schema does not know the figure
};
/// Lines for a tooltip: the title, what the figure says, its unit and which way is better.
std::string about(const FigureInfo& figure);
ScaleKind scale_kind(FigureScale scale);

/// A metric or its agreement, with the last `reserve` candidates reserved and on another `window` than what
/// stands beside it.
FigureInfo figure_info(const HeadFigure& figure, Index reserve = 0, std::optional<Index> window = {});

}  // namespace kvreplay::viewer
