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

// A way to read a policy, and what it keeps of a layer's caches.

namespace kvreplay::conform {

/// What stands for a KV head's score.
enum class QueryHeads {
  sum,      ///< the sum over its query heads, or what the metric takes
  largest,  ///< the largest of theirs
  first,    ///< that of the first one
  dealt,    ///< the sum over the heads h with h mod n_kv = g: queries of others
};

/// How the head group that a score is formed of departs from the model's.
struct Inputs {
  QueryHeads heads = QueryHeads::sum;
  bool pools_heads = false;              ///< each query head's scores are pooled, before they are joined
  Index key_turns = 1, query_turns = 1;  ///< how often the rotation is applied
  Index scalings = 1;                    ///< how often logits are multiplied by the model's scale
  bool causal = true;                    ///< else rows see the prompt's later tokens, too
  bool softmax = true;                   ///< else the logits themselves are added up over the rows
  Index values_on = 0;                   ///< the values are those of so many KV heads further on
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
        heads_on = 0;         ///< what is kept is chosen for a cache so many layers and heads further on
  bool negated = false;       ///< the smallest scores stay
  bool pins_negated = false;  ///< and what is to be protected goes, as what scores most does
  bool divided_by_negated = false;    ///< budgets go where scores are small
  bool later_first = false;           ///< equal scores keep the higher position
  Index first_out = 0, last_out = 0;  ///< so many first and last positions are never kept
  Index shift = 0;                    ///< what is kept stands so many positions further on
  Dtype numbers = Dtype::f32;         ///< that scores are formed in
};

/// What a policy is read in.
struct ReadingSetting {
  Policy policy;
  Semantics semantics = Semantics::paper;
  PolicyOverrides overrides;
  Budget budget;
  Index l = 0, rows = 0;  ///< candidates: the positions that the layer's caches hold, and those with a query
  Index group = 1, n_kv = 1;
  Index layers = 1;  ///< with caches of their own
  bool has_rope = false, projects_values = false, causal = true;
  bool own_caches = true;  ///< no layer reads another's cache
  std::function<bool(const Policy&)> available;
};

/// The policy as it is meant, at the setting's budget.
Reading reading_of(const ReadingSetting& setting, const Policy& policy, Semantics semantics);

/// How far rounding moves the scores of a cache, and where the cut may lie then.
struct ScoreBounds {
  Vector<double> near;  ///< [l]: the largest distance of every token's score from the exact one
  double kept_from = 0, evicted_to = 0;  ///< a token of a higher score may be kept; of a lower one, evicted
};

/// What a reading keeps of one cache, and how near others came. Positions that the cache does not hold are
/// not kept.
struct ReadCache {
  KeptSet kept;
  /// [l]: what ranked the tokens, pooled, or their page's worth; empty where nothing ranks all of them once.
  Vector<double> scores;
  double lowest_kept = 0, highest_evicted = 0;  ///< of the tokens that nothing pins
  Index pinned_before = 0, pinned_from = 0;     ///< positions before and from these are pinned, or not held
  Index page = 1;                               ///< tokens that stay or go together
  /// More is pinned than stays, by a score that all pinned tokens have: nothing says which of them stay.
  bool pins_tie = false;
  bool shares_budget = false;  ///< with the layer's other caches, by score
  /// In the reading's numbers; where scores are. Refers to the LayerCaches.
  std::function<const ScoreBounds&()> bounds;
};

/// Where a kept set departs from a reading.
struct Mismatch {
  std::vector<Index> missing, extra;  ///< positions, ascending: those that should be kept, and should not
  /// The first of these whose score is not equal to one across the cut; nothing where all are.
  std::optional<Index> first;
  Index apart = 0;    ///< how many such there are, at least as many as are kept too many or too few
  Index unequal = 0;  ///< those whose score is another than that across the cut, however near
  Index count() const { return std::ssize(missing) + std::ssize(extra); }
};
/// `with_rounding`: scores that rounding may have made equal are.
Mismatch mismatch(const ReadCache& meant, const KeptSet& found, bool with_rounding = true);

/// The caches of one layer of a dump, and what readings keep of them. Scores are formed once each.
class LayerCaches {
 public:
  /// `layer_of` the `layers` that have a cache of their own; where `per_query_head` every query head has one.
  LayerCaches(const Dump& dump, Index layer, bool per_query_head,
              const std::vector<GivenArray<double>>& given, const Compute& compute);

  Index count() const { return std::ssize(caches_); }
  Index first_held() const { return caches_.front()->rule.first_held(caches_.front()->l); }
  Index held() const { return caches_.front()->l - first_held(); }  ///< positions: what a policy chooses from
  const HeadGroup<double>& cache(Index c) const { return *caches_[c]; }
  /// What a reading of a setting of held() candidates keeps of each. `place` and `places`: which of how many
  /// layers this is.
  std::vector<ReadCache> read(const Reading& reading, Index place, Index places);
  /// What an oracle would keep of a cache: the `keep` held tokens of most importance to the decoding steps;
  /// empty where the dump has none.
  KeptSet oracle(Index c, Index keep) const;

 private:
  using Scores = std::vector<Vector<double>>;  // of every cache, [held()]
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
  std::map<std::pair<Index, Index>, double> largest_logit_;            // by window and cache
  std::map<std::tuple<Index, int, Index>, Vector<double>> deviation_;  // by window, power and cache
};

}  // namespace kvreplay::conform
