#pragma once

#include "sim/compute.hpp"
#include "sim/eviction/policy.hpp"
#include "sim/head_group.hpp"
#include "sim/schedule.hpp"
#include "sim/tokens/keydiff.hpp"
#include "sim/tokens/triattention.hpp"

#include <optional>
#include <span>
#include <vector>

// Prompt tokens that a policy keeps. The backend computes the metrics that rank them.

namespace kvreplay {

/// Scores that a user brings along: [l] each, of the group's KV head, higher is kept.
using GivenScores = std::vector<Vector<double>>;

/// Scores by which every rule ranks a group's candidates, [l] each, before pooling and pins. A score is a sum
/// over the query heads and those of the rule's window rows whose queries are there. With per_visible_row,
/// each token's sum is divided by the number of these rows at or after the token. With two_stages, sums
/// become means over rows and heads; expected_attention is a mean over the heads. Rules that share a window
/// share the work. Empty for a rule that only searches, and where nothing is evicted. Throws InputError where
/// a number overflows T.
template <class T>
std::vector<Vector<double>> rule_scores(const HeadGroup<T>& group, std::span<const EvictionRule> rules,
                                        const GivenScores& given, const Compute& compute);

/// A cache that grows by blocks and is cut back after each: it is ranked by the block's last min(window,
/// rows) queries, with the softmax over the cache alone ([CAO] sec. 2). Only for rules that rank by a metric
/// of the keys, values and queries of a block, by position, or by TriAttention.
template <class T>
class BlockCuts {
 public:
  /// Refers to all of them. The group holds the queries of every block where needs_rows().
  BlockCuts(const HeadGroup<T>& group, const EvictionRule& rule, const Compute& compute);

  void add(std::span<const Index> tokens);     ///< tokens that join the cache
  void remove(std::span<const Index> tokens);  ///< tokens that leave by other means than a cut
  /// The positions that leave a cache, ascending: tokens hidden from all later rows by a sliding window, and
  /// the excess over `budget`. The last `rows` of `cache` (ascending) are the block.
  std::vector<Index> cut(const std::vector<Index>& cache, Index budget, Index rows);

 private:
  const HeadGroup<T>& group_;
  const EvictionRule& rule_;
  const Compute& compute_;
  std::optional<KeyDiff<T>> keydiff_;
  std::optional<TriAttention<T>> triattention_;
};

/// Factors of the scores in the second stage of a rule with two stages: the mean over the query heads of
/// ||v_p W_O(h)||_1, [l]; empty for any other rule.
template <class T>
Vector<double> second_weights(const HeadGroup<T>& group, const EvictionRule& rule, Workers& workers);

/// Evicts in blocks of `block` prompt tokens. After each block, the cache is the tokens kept so far and the
/// block. Where these are more than the budget, they are ranked by the block's last min(window, block)
/// queries, with the softmax over the cache alone, and cut back ([CAO] sec. 2). A sliding window's tokens
/// leave the cache, before it is ranked, once no later row sees them. Only for rules that rank by a metric of
/// the keys, values and queries of a block, and for groups that hold the prompt's queries where such a rule
/// needs them.
template <class T>
KeptSet evict_in_blocks(const HeadGroup<T>& group, const EvictionRule& rule, Index budget, Index block,
                        const Compute& compute);

/// One cut of these, after a block whose last position is the last of `cache` (positions, ascending): what
/// leaves it, ascending. `rows` is the number of the block's positions.
template <class T>
std::vector<Index> cut_after_block(const HeadGroup<T>& group, const EvictionRule& rule,
                                   const std::vector<Index>& cache, Index budget, Index rows,
                                   const Compute& compute);

/// True if a metric is computed on window rows.
constexpr bool on_window(TokenMetric metric) { return kTokenMetrics[metric].rows == MetricRows::window; }

/// True if the rule needs window rows, which must then exist.
bool needs_rows(const EvictionRule& rule);

/// Parts of a head group that a rule reads on the CPU to rank the prompt, to rank its blocks, or to search.
/// As parts_of() for a metric.
HeadParts parts_of(const EvictionRule& rule, const DumpShape& shape, bool in_blocks);

/// Why a rule cuts the whole prompt once and nothing else, as one clause; nothing where it does not say so.
std::optional<std::string> why_only_once(const EvictionRule& rule);

/// Why a rule cannot rank a cache by a block's queries alone, as one clause; nothing where it can.
std::optional<std::string> why_not_in_blocks(const EvictionRule& rule);

}  // namespace kvreplay
