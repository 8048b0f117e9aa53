#pragma once

#include "analysis/eviction/eviction_plan.hpp"
#include "analysis/measure/case_outputs.hpp"
#include "sim/compute.hpp"
#include "sim/eviction/decode/decode.hpp"
#include "sim/eviction/exact/greedy.hpp"
#include "sim/eviction/prompt_eviction.hpp"
#include "sim/head_group.hpp"

#include <array>
#include <cstddef>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <vector>

// Everything that `evict` finds out about one head group.

namespace kvreplay {

// Ranking of a head's prompt, independent of the budget.

/// Rankings that all heads of a layer share: by number of the PolicyRun, empty for all others; [l].
using LayerScores = std::vector<Vector<double>>;

/// The mean of the scores over a layer's n_q query heads. `head` gives KV heads 0 .. n_kv - 1, asked for in
/// this order, once each and only where a run shares its ranking; `given` their parts of the plan's scores.
template <class T>
LayerScores layer_scores(const EvictionPlan& plan, const DumpShape& shape,
                         const std::function<std::shared_ptr<const HeadGroup<T>>(Index)>& head,
                         const std::function<GivenScores(Index)>& given, const Compute& compute);

/// The part of a ranking that serves every budget.
struct HeadRanking {
  std::vector<Vector<double>> scores;    ///< of every PolicyRun, [l]; empty where it searches
  std::vector<Vector<double>> weights;   ///< of every PolicyRun with two stages, [l]
  std::map<SearchBy, GreedyPath> paths;  ///< of the greedy searches, and those that exchange starts from
  std::shared_ptr<const HeadGroup<double>> wide;  ///< the group, for exchange
};

/// `layer` and `given` are this head's. Paths go down to `least` tokens: unset, to the
/// smallest budget of the plan.
template <class T>
HeadRanking head_ranking(const HeadGroup<T>& group, const EvictionPlan& plan, const LayerScores& layer,
                         const GivenScores& given, std::optional<Index> least, const Compute& compute);

/// The prompt tokens that a case of one of the plan's runs keeps, [l]: at the end of its phase, or before its
/// decoding.
template <class T>
KeptSet prompt_kept(const HeadGroup<T>& group, const EvictionPlan& plan, const EvictionCase& which,
                    const HeadRanking& ranking, const Compute& compute);

/// The options of a case's decoding.
DecodeOptions decode_options(const EvictionPlan& plan, const EvictionCase& which);

/// The state with which a case's decoding begins.
struct DecodeBegin {
  EvictionRule rule;
  KeptSet kept;  ///< [l]
  Index budget = 0;
  DecodeOptions options;
};
/// `kept` is prompt_kept().
DecodeBegin decode_begin(const EvictionPlan& plan, const EvictionCase& which, KeptSet kept);

/// The importance that an oracle assigns to every token, [l]; empty without decoding steps.
template <class T>
Vector<double> future_importance(const HeadGroup<T>& group, const Compute& compute,
                                 TokenMetric oracle = TokenMetric::oracle_importance);

/// Importance that a kept set misses, compared with the best set of its size.
struct OracleFigures {
  double eviction_loss, optimality_gap, oracle_recall;  ///< recall nan for an empty set
};
/// `oracle` is largest(importance, count(kept)).
OracleFigures oracle_figures(const Vector<double>& importance, const KeptSet& oracle, const KeptSet& kept);

/// One case on one head group.
struct CaseFigures {
  using Column = EvictionColumns::Case;

  KeptSet kept;  ///< [l], at the end where the phase decodes
  /// By column, but for those of outputs; nan without the decoding steps that a figure needs.
  std::array<double, EvictionColumns::kCaseFigures> figures{};
  double bytes_read = 0;                ///< by a row, on average
  std::vector<double> step_change_sq;   ///< [steps], where the phase decodes
  std::vector<double> step_tokens;      ///< [steps], that are attended over, where the phase decodes
  std::vector<std::int32_t> last_rows;  ///< [T], where the phase decodes
  ChannelSet pruned;                    ///< [d], where channels are
  std::vector<std::byte> read;  ///< [steps][l / 8 rounded up], bit p % 8 of byte p / 8: token p is read

  double& operator[](Column column) { return figures[column]; }
  double operator[](Column column) const { return figures[column]; }
};

template <class T>
struct HeadEvictions {
  CaseOutputs<T> outputs;            ///< nan and no vectors where a case that decodes has no such rows
  std::vector<double> step_full_sq;  ///< [steps], where a case decodes
  std::vector<CaseFigures> cases;
};

/// The caches of all cases on one head, identical for all readers of the head's cache.
template <class T>
struct HeadCaches {
  std::vector<CacheCase> cases;          ///< of the prompt; before its decoding where the phase decodes
  std::vector<DecodeReplay<T>> replays;  ///< of the cases that decode, with all that read the cache
};
/// `ranking` is the group's; `given_kept` holds its part of the plan's kept sets. Where several layers read
/// the cache, `group` has the query heads of them all (load_readers()).
template <class T>
HeadCaches<T> head_caches(const HeadGroup<T>& group, const EvictionPlan& plan, const HeadRanking& ranking,
                          const std::vector<KeptSet>& given_kept, const Compute& compute);

/// A cache's replay as seen by some of its readers: the query heads from `first` on among all readers, whose
/// outputs are `full`, [G] of [steps, d_v].
template <class T>
DecodeReplay<T> seen_by(const DecodeReplay<T>& replay, Index first, std::span<const Matrix<T>> full);

/// The importance of every token to the readers of a group's cache, as the oracle assigns it: [l], or empty.
struct CacheReaders {
  const Vector<double>& importance;          ///< to all of them
  const Vector<double>* of_group = nullptr;  ///< to the group, where it is one of several
  Index first = 0;                           ///< the group's first query head among theirs

  bool several() const { return of_group != nullptr; }
  const Vector<double>& own_importance() const { return several() ? *of_group : importance; }
};
/// Measures the cases on `group`. An optimality gap against the best set for all readers may be negative for
/// one of them.
template <class T>
HeadEvictions<T> head_evictions(const HeadGroup<T>& group, const EvictionPlan& plan,
                                const HeadCaches<T>& caches, const CacheReaders& readers, bool with_vectors,
                                const Compute& compute);

/// A head group's cache that grows while a model reads and decodes. Rows of a chunk are added once the model
/// has computed them; add() returns the positions that the policy evicts, so that the next rows can skip
/// them. With the rows of a dump it evicts exactly the tokens that `evict` does.
template <class T>
class GrowingCache {
 public:
  /// `group` has room for every position, queries included; its numbers are not set yet. The plan, which must
  /// outlive this object, has one case, in a phase that evicts more than once.
  GrowingCache(HeadGroup<T> group, const EvictionPlan& plan);

  /// Number of rows in the next chunk; 0: any number, because nothing will be evicted any more.
  Index next_rows() const;
  Index size() const { return next_; }

  /// Adds the next rows: queries [G][rows, d], keys [rows, d], values [rows, d_v]. Returns the positions
  /// evicted after them, ascending.
  std::vector<Index> add(const std::vector<Matrix<T>>& q, const Matrix<T>& k, const Matrix<T>& v,
                         const Compute& compute);

 private:
  std::shared_ptr<HeadGroup<T>> group_;
  const EvictionPlan& plan_;
  const EvictionCase& case_;
  const EvictionRule& rule_;
  Index next_ = 0;
  std::vector<Index> cache_;                  // of the prompt, in blocks
  std::optional<DecodingCache<T>> decoding_;  // behind the prompt

  std::vector<Index> cut_block(Index rows, const Compute& compute);
  std::vector<Index> begin_decoding(const Compute& compute);
};

}  // namespace kvreplay
