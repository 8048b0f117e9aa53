#pragma once

#include "analysis/budgets/allocation.hpp"
#include "analysis/eviction/eviction_options.hpp"
#include "analysis/given/given_arrays.hpp"
#include "data/dtype.hpp"
#include "sim/compute.hpp"
#include "sim/eviction/policy.hpp"
#include "sim/eviction/prompt_eviction.hpp"
#include "sim/head_group.hpp"

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

// An interpretation of a policy, and the kept sets that it gives for a layer's caches.

namespace kvreplay::conform {

/// Combination of query heads' scores into the score of their KV head.
enum class QueryHeads {
  sum,      ///< the sum over its query heads, or the metric's own combination
  largest,  ///< the largest query head's
  first,    ///< the first query head's
  dealt,    ///< the sum over the heads h with h mod n_kv = g: queries of other KV heads
};

/// Deviations in the head group from which a score is computed.
struct Inputs {
  QueryHeads heads = QueryHeads::sum;
  bool pools_heads = false;              ///< query heads are pooled first, then joined
  Index key_turns = 1, query_turns = 1;  ///< times that the rotation is applied
  Index scalings = 1;                    ///< times that the scale is applied to logits
  bool causal = true;                    ///< false: rows see later tokens of the prompt, too
  bool softmax = true;                   ///< false: the sum over rows is of raw logits
  Index values_on = 0;                   ///< offset in KV heads of the values used
  bool operator==(const Inputs&) const = default;
};

struct Reading {
  EvictionRule rule;
  Index budget = 0;  ///< tokens that a cache keeps; with a division the mean one does
  double sigma = 0;  ///< the compression ratio that a division takes
  std::optional<BudgetDivision> division;
  std::shared_ptr<const std::vector<Index>> given_budgets;  ///< in its place: [layers, caches], as given
  Semantics divides = Semantics::paper;

  Inputs inputs;
  Index layers_on = 0,
        heads_on = 0;                 ///< offsets in layers and KV heads of the cache whose kept set is used
  bool negated = false;               ///< the smallest scores stay
  bool pins_negated = false;          ///< protected tokens leave first, too
  bool divided_by_negated = false;    ///< small scores get the larger budgets
  bool later_first = false;           ///< equal scores keep the higher position
  Index first_out = 0, last_out = 0;  ///< numbers of first and last positions that are never kept
  Index shift = 0;                    ///< offset in positions of the kept set
  Dtype numbers = Dtype::f32;         ///< the precision of scores
};

/// Setting in which a policy is interpreted: its options, the budget, and the shape of the dump and its
/// caches.
struct ReadingSetting {
  Policy policy;
  Semantics semantics = Semantics::paper;
  PolicyOverrides overrides;
  Budget budget;
  Index l = 0, rows = 0;  ///< the positions that the layer's caches hold; those with a query
  Index first_held = 0;   ///< the prompt's positions before these
  Index group = 1, n_kv = 1;
  Index layers = 1;  ///< layers with caches of their own
  bool has_rope = false, projects_values = false, causal = true;
  bool own_caches = true;  ///< no layer reads another's cache
  std::function<bool(const Policy&)> available;
};

/// The policy as it is meant, at the setting's budget.
Reading reading_of(const ReadingSetting& setting, const Policy& policy, Semantics semantics);

/// Bounds on the rounding error of a cache's scores, and the resulting bounds of the cut.
struct ScoreBounds {
  Vector<double> near;                   ///< the largest error of each token's score
  double kept_from = 0, evicted_to = 0;  ///< scores above may be kept; below, evicted
};

/// The kept set of one cache under a reading, and its distance to the cut. Positions that the cache does not
/// hold are not kept.
struct ReadCache {
  KeptSet kept;
  /// [l]: the scores that ranked the tokens, pooled, or page scores; empty without a single ranking of all.
  Vector<double> scores;
  double lowest_kept = 0, highest_evicted = 0;  ///< of the tokens that nothing pins
  Index pinned_before = 0, pinned_from = 0;     ///< positions outside [before, from) are pinned, or not held
  Index page = 1;                               ///< tokens that stay or go together
  /// More tokens are pinned than stay, with equal scores: the policy does not define which of them stay.
  bool pins_tie = false;
  bool shares_budget = false;  ///< with the layer's other caches, by score
  /// Rounding bounds in the reading's precision, if there are scores. Refers to the LayerCaches.
  std::function<const ScoreBounds&()> bounds;
};

/// Where a kept set departs from a reading.
struct Mismatch {
  std::vector<Index> missing, extra;  ///< positions, ascending: those that should be kept, and should not
  /// The first of these whose score is not equal to one across the cut; nothing where all are.
  std::optional<Index> first;
  Index apart = 0;    ///< number of these; at least the difference in count between the two sets
  Index unequal = 0;  ///< tokens whose score differs from the score across the cut, however little
  Index count() const { return std::ssize(missing) + std::ssize(extra); }
};
/// `with_rounding`: scores that rounding may have made equal count as equal.
Mismatch mismatch(const ReadCache& meant, const KeptSet& found, bool with_rounding = true);

/// The caches of one layer of a dump, and what readings keep of them. Scores are formed once each.
class LayerCaches {
 public:
  /// `layer_of` the `layers` that have a cache of their own; where `per_query_head` every query head has one.
  LayerCaches(const Dump& dump, Index layer, bool per_query_head,
              const std::vector<GivenArray<double>>& given, const Compute& compute);

  Index count() const { return std::ssize(caches_); }
  Index first_held() const { return caches_.front()->rule.first_held(caches_.front()->l); }
  Index held() const {
    return caches_.front()->rule.held(caches_.front()->l);
  }  ///< number of candidates of a policy
  const HeadGroup<double>& cache(Index c) const { return *caches_[c]; }
  /// The kept set of each cache under a reading whose setting has held() candidates. The layer is number
  /// `place` of `places`.
  std::vector<ReadCache> read(const Reading& reading, Index place, Index places);
  /// Oracle kept set of a cache: the `keep` held tokens of largest importance to the decoding steps. Empty if
  /// the dump has no decoding steps.
  KeptSet oracle(Index c, Index keep) const;

 private:
  using Scores = std::vector<Vector<double>>;  // [caches][held()]
  const Scores& scores(const Reading& reading);
  Vector<double> score(const Reading& reading, Index c) const;
  HeadGroup<double> changed(const Reading& reading, Index c) const;
  double largest_logit(Index window, Index c);
  const Vector<double>& deviation(Index window, int power, Index c);
  std::vector<ScoreBounds> bounds(const Reading& reading, const Scores& raw,
                                  const std::vector<ReadCache>& all);
  std::vector<Index> budgets(const Reading& reading, const Scores& pooled, Index place, Index places) const;

  const Compute& compute_;
  std::vector<std::shared_ptr<const HeadGroup<double>>> caches_;
  std::vector<GivenScores> given_;
  std::map<std::string, Scores> scores_;
  std::map<std::pair<Index, Index>, double> largest_logit_;            // key: window, cache
  std::map<std::tuple<Index, int, Index>, Vector<double>> deviation_;  // key: window, power, cache
};

}  // namespace kvreplay::conform
