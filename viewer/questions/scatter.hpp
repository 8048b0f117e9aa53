#pragma once

#include "data/dump.hpp"
#include "data/facts_table.hpp"
#include "sim/head_group.hpp"
#include "viewer/model/value_scale.hpp"
#include "viewer/questions/head_figures.hpp"

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

// A score against a reference, a point a token.

namespace kvreplay::viewer {

/// Scale of the axes of a scatter plot.
enum class ScatterAxes { log, linear, rank };
struct ScatterAxesFacts {
  ScatterAxes id;
  std::string_view name;  ///< for sessions
  std::string_view button, meaning;
};
inline constexpr auto kScatterAxes = facts_table<ScatterAxesFacts>({
    {ScatterAxes::log, "log", "Log",
     "Values on logarithmic axes, where a metric is not negative. Zeros then lie at the edge."},
    {ScatterAxes::linear, "linear", "Linear", "Values on linear axes"},
    {ScatterAxes::rank, "rank", "Rank", "Ranks: 1, the largest, at the right and at the top"},
});
constexpr std::string_view name_of(ScatterAxes axes) { return kScatterAxes[axes].name; }

/// One axis of a scatter plot. On a log axis a value v > 0 stands at log10(v), all others at the low edge.
struct ScatterAxis {
  ScaleKind kind = ScaleKind::log;  ///< linear or log
  double low = 0, high = 1;         ///< axis coordinates that hold every point, low < high
  std::size_t at_edge = 0;          ///< zeros and negatives, which a log axis has no place for

  /// NaN for NaN and infinities.
  double coordinate(double value) const;
  /// The inverse, for labels.
  double value_at(double coordinate) const;
};

struct AxisPoint {
  double x = 0, y = 0;  ///< axis coordinates
};
struct ScatterPoint {
  AxisPoint at;
  Index token = 0;
};

struct ScatterOptions {
  std::optional<ScaleKind> x, y;  ///< linear or log; empty: log where it can show a value
};

struct Scatter {
  ScatterAxis x, y;
  std::vector<ScatterPoint> points;  ///< by token; those with NaN or infinite values are left out
  std::size_t left_out = 0;
};
inline std::size_t bytes_of(const Scatter& answer) { return bytes_with(answer, answer.points); }

/// Token p stands at (score[p], reference[p]); both have the same length. O(n log n).
Scatter scatter(std::span<const double> score, std::span<const double> reference,
                const ScatterOptions& options);

/// Two runs' points on axes that hold both.
struct ScatterPair {
  /// Tokens in `moved`, at most.
  static constexpr std::size_t kMoved = 12;
  Scatter own, pinned;
  /// The tokens that stand farthest from where they stand in the other run, in shares of the axes, the
  /// farthest first; equal ones by token, none that stands where it stood.
  std::vector<Index> moved;
};
inline std::size_t bytes_of(const ScatterPair& answer) {
  return bytes_with(answer, answer.own, answer.pinned);
}
/// Token p of the one run is token p of the other: all four have the same length. An axis is logarithmic by
/// itself where it can show a value of either run.
ScatterPair scatter_pair(std::span<const double> own_score, std::span<const double> own_reference,
                         std::span<const double> pinned_score, std::span<const double> pinned_reference,
                         const ScatterOptions& options);

/// The tokens within a closed polygon in axis coordinates, ascending, by the even-odd rule. A point on an
/// edge is within or not, always the same. None for fewer than 3 corners or one that is not finite.
std::vector<Index> tokens_within(const Scatter& scatter, std::span<const AxisPoint> polygon);

/// The point nearest to a place, distances measured in (x / unit.x, y / unit.y), at most `reach` away; the
/// lowest token among equals.
std::optional<ScatterPoint> nearest(const Scatter& scatter, AxisPoint place, AxisPoint unit, double reach);

/// Content of the scatter panel for one head.
struct ScatterFacts {
  std::shared_ptr<const HeadSummary> head;  ///< with its tokens' metrics
  TokenMetric score = TokenMetric::attn, reference = TokenMetric::exact_remove;
  ScatterAxes axes = ScatterAxes::log;
  Scatter scatter;
  Agreement agreement{};
  std::vector<std::int32_t> score_place, reference_place;  ///< number of tokens that rank before each, [l]
  /// Tokens in `outliers`, at most.
  static constexpr std::size_t kOutliers = 24;
  /// The tokens in view whose ranks by the two are farthest apart, the farthest first; equal ones by token,
  /// none whose ranks agree.
  std::vector<Index> outliers;

  double score_of(Index token) const { return (*head->tokens)[score](0, token); }
  double reference_of(Index token) const { return (*head->tokens)[reference](0, token); }
};
inline std::size_t bytes_of(const ScatterFacts& answer) {
  return bytes_with(answer, answer.scatter, answer.score_place, answer.reference_place, answer.outliers);
}
/// Points of two runs, of the same metrics and axes, on common axes.
ScatterPair scatter_pair(const ScatterFacts& own, const ScatterFacts& pinned);

/// Both metrics must be there.
ScatterFacts scatter_facts(std::shared_ptr<const HeadSummary> head, TokenMetric score, TokenMetric reference,
                           ScatterAxes axes);

/// A budget of k tokens in the plot: what the score's k largest miss of the reference's.
struct ScatterCut {
  Index n = 0, k = 0;
  Index lost = 0;  ///< the reference's k largest would keep them, the score's do not; as many are wasted
  /// Border between the k-th largest value and the next, in axis coordinates; empty if all or none are kept.
  std::optional<double> x, y;

  Index wasted() const { return lost; }
  Index both() const { return k - lost; }
  Index neither() const { return n - k - lost; }
  double recall() const;  ///< recall@k; NaN for k = 0
};
/// `on` has the axes, and k is brought into 0..n. O(n).
ScatterCut scatter_cut(const ScatterFacts& facts, const Scatter& on, Index k);

}  // namespace kvreplay::viewer
