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

/// Whose rotation is undone before logits are formed.
enum class Unrotated { none, keys, both };

struct Reading {
  EvictionRule rule;
  Index budget = 0;  ///< tokens that a cache keeps; with a division the mean one does
  double sigma = 0;  ///< the compression ratio that a division takes
  std::optional<BudgetDivision> division;
  std::shared_ptr<const std::vector<Index>> given_budgets;  ///< in its place: [layers, caches], as given
  Semantics divides = Semantics::paper;

  QueryHeads heads = QueryHeads::sum;
  Unrotated unrotated = Unrotated::none;
  bool scaled = true;               ///< logits are multiplied by the model's scale
  bool softmax = true;              ///< else the logits themselves are added up over the rows
  bool own_values = true;           ///< else those of the next KV head
  bool pools_heads = false;         ///< each query head's scores are pooled, before they are joined
  bool negated = false;             ///< the smallest scores stay
  bool pins_negated = false;        ///< and what is to be protected goes, as what scores most does
  bool divided_by_negated = false;  ///< budgets go where scores are small
  bool later_first = false;         ///< equal scores keep the higher position
  Index never = 0;                  ///< so many first positions are never kept
  Index shift = 0;                  ///< what is kept stands so many positions further on
  Dtype numbers = Dtype::f32;       ///< that scores are rounded to
};

/// What a policy is read in.
struct ReadingSetting {
  Policy policy;
  Semantics semantics = Semantics::paper;
  PolicyOverrides overrides;
  Budget budget;
  Index l = 0, rows = 0;  ///< candidates, and how many of them have a query
  Index group = 1, n_kv = 1;
  bool has_rope = false, projects_values = false;
  bool own_caches = true;  ///< no layer reads another's cache
  std::function<bool(const Policy&)> available;
};

/// Half a unit in the last place, relative; of float32 with what the layers before have made of it.
double rounding_of(Dtype numbers);

/// The policy as it is meant, at the setting's budget.
Reading reading_of(const ReadingSetting& setting, const Policy& policy, Semantics semantics);

/// What a reading keeps of one cache, and how near others came.
struct ReadCache {
  KeptSet kept;
  /// What ranked the tokens, pooled, or their page's worth; empty where nothing ranks all of them once.
  Vector<double> scores;
  double lowest_kept = 0, highest_evicted = 0;  ///< of the tokens that nothing pins
  Index pinned_before = 0, pinned_from = 0;     ///< positions before and from these are pinned
  Index page = 1;                               ///< tokens that stay or go together
  bool pins_tie = false;       ///< more is pinned than stays, though not most of all: nothing says which
  bool shares_budget = false;  ///< with the layer's other caches, by score
  /// Scores so near to each other are equal in the reading's numbers: relative to them, and absolutely.
  double relative = 0, absolute = 0;
};

/// Where a kept set departs from a reading.
struct Mismatch {
  std::vector<Index> missing, extra;  ///< positions, ascending: those that should be kept, and should not
  /// The first of these whose score is not equal to one across the cut; nothing where all are.
  std::optional<Index> first;
  Index apart = 0;  ///< how many such there are, at least as many as are kept too many or too few
  Index count() const { return std::ssize(missing) + std::ssize(extra); }
};
Mismatch mismatch(const ReadCache& meant, const KeptSet& found);

/// The caches of one layer of a dump, and what readings keep of them. Scores are formed once each.
class LayerCaches {
 public:
  /// `layer_of` the `layers` that have a cache of their own; where `per_query_head` every query head has one.
  LayerCaches(const Dump& dump, Index layer, bool per_query_head,
              const std::vector<GivenArray<double>>& given, const Compute& compute);

  Index count() const { return std::ssize(caches_); }
  const HeadGroup<double>& cache(Index c) const { return *caches_[c]; }
  /// What a reading keeps of each. `place` and `places`: which of how many layers this is.
  std::vector<ReadCache> read(const Reading& reading, Index place, Index places);
  /// What an oracle would keep of a cache: the `keep` tokens of most importance to the decoding steps; empty
  /// where the dump has none.
  KeptSet oracle(Index c, Index keep) const;

 private:
  using Scores = std::vector<Vector<double>>;  // of every cache, [l]
  const Scores& scores(const Reading& reading);
  Vector<double> score(const Reading& reading, Index c) const;
  HeadGroup<double> changed(const Reading& reading, Index c) const;
  double largest_logit(Index window, Index c);
  std::vector<Index> budgets(const Reading& reading, const Scores& pooled, Index place, Index places) const;

  const Compute& compute_;
  std::vector<std::shared_ptr<const HeadGroup<double>>> caches_;
  std::vector<GivenScores> given_;
  std::map<std::string, Scores> scores_;
  std::map<std::pair<Index, Index>, double> largest_logit_;  // by window and cache
};

}  // namespace kvreplay::conform
