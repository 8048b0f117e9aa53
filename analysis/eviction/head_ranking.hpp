#pragma once

#include "analysis/eviction/eviction_plan.hpp"
#include "sim/compute.hpp"
#include "sim/eviction/decode/decode.hpp"
#include "sim/eviction/exact/greedy.hpp"
#include "sim/eviction/prompt_eviction.hpp"

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <vector>

// How a head's prompt is ranked, apart from what a budget then makes of it.

namespace kvreplay {

/// Rankings that all heads of a layer share: by number of the PolicyRun, empty for all others; [l].
using LayerScores = std::vector<Vector<double>>;

/// The mean of the scores over a layer's n_q query heads. `head` gives KV heads 0 .. n_kv - 1, asked for in
/// this order, once each and only where a run shares its ranking; `given` their parts of the plan's scores.
template <class T>
LayerScores layer_scores(const EvictionPlan& plan, const DumpShape& shape,
                         const std::function<std::shared_ptr<const HeadGroup<T>>(Index)>& head,
                         const std::function<GivenScores(Index)>& given, const Compute& compute);

/// What serves every budget.
struct HeadRanking {
  std::vector<Vector<double>> scores;    ///< of every PolicyRun, [l]; empty where it searches
  std::map<SearchBy, GreedyPath> paths;  ///< of the greedy searches, and those that exchange starts from
  std::shared_ptr<const HeadGroup<double>> wide;  ///< the group, for exchange
};

/// `layer` and `given` are this head's (head_evictions.hpp). Paths go down to `least` tokens: unset, to the
/// smallest budget of the plan.
template <class T>
HeadRanking head_ranking(const HeadGroup<T>& group, const EvictionPlan& plan, const LayerScores& layer,
                         const GivenScores& given, std::optional<Index> least, const Compute& compute);

/// What a case of one of the plan's runs keeps of the prompt, [l]: at the end of its phase, or before its
/// decoding.
template <class T>
KeptSet prompt_kept(const HeadGroup<T>& group, const EvictionPlan& plan, const EvictionCase& which,
                    const HeadRanking& ranking, const Compute& compute);

/// How a case that decodes goes on from there.
DecodeOptions decode_options(const EvictionPlan& plan, const EvictionCase& which);

/// What an oracle says that every token is worth, [l]; empty without decoding steps.
template <class T>
Vector<double> future_importance(const HeadGroup<T>& group, const Compute& compute,
                                 TokenMetric oracle = TokenMetric::oracle_importance);

/// What a kept set misses of the importance, against the best set of its size.
struct OracleFigures {
  double eviction_loss, optimality_gap, oracle_recall;  ///< recall nan for an empty set
};
/// `oracle` is largest(importance, count(kept)).
OracleFigures oracle_figures(const Vector<double>& importance, const KeptSet& oracle, const KeptSet& kept);

}  // namespace kvreplay
