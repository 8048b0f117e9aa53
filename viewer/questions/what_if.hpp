#pragma once

#include "analysis/eviction/compensated_cases.hpp"
#include "analysis/eviction/head_evictions.hpp"
#include "analysis/measure/measured_columns.hpp"
#include "analysis/results/figure_facts.hpp"
#include "sim/cache/cache_outputs.hpp"
#include "sim/compensation/error_split.hpp"
#include "viewer/model/kept_paint.hpp"
#include "viewer/model/numbers.hpp"
#include "viewer/questions/job_queue.hpp"
#include "viewer/questions/policy_settings.hpp"
#include "viewer/questions/user_scores.hpp"

#include <cstddef>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace kvreplay::viewer {

// Predicted loss of a setting in the model, in nats per step (sim/loss/LOSS.md): of one head, and of all.

/// The loss of one KV head on one set of rows.
struct PredictedLoss {
  Index rows = 0;                    ///< |R|; 0 where the dump has no gradients of such rows
  double row = kNone, head = kNone;  ///< loss_row and loss_head; nan without rows
  std::vector<double> samples = {};  ///< [S]: sum over query heads and rows of gradient . change
  std::vector<double> steps = {};    ///< [S, rows]: sum over query heads
};

/// The loss of the first case, whose outputs change on the rows `measured`.
PredictedLoss predicted_loss(const HeadGroup<float>& group, const LossRows& there, RowSet rows,
                             RowRange measured, const OutputChanges<float>& changes, Workers& workers);

/// The losses of all heads together, added layer by layer.
class ModelLoss {
 public:
  /// The heads of a layer follow each other.
  void add(Index layer, const PredictedLoss& head);
  double row() const;    ///< loss_row of the model; nan where no head has any
  double layer() const;  ///< loss_layer of the model
  double step() const;   ///< loss_step of the model

 private:
  double half_mean(const std::vector<double>& sums) const;  // of their squares, over samples and rows

  Index layer_ = -1, rows_ = 0;
  double row_ = 0, layers_ = 0;  // layers_: of those before layer_
  std::vector<double> samples_;  // of layer_
  std::vector<double> steps_;    // of all layers
};

/// Reason why no loss in nats can be computed on these rows of a dump, and the command that records it, as a
/// sentence; empty if it can.
std::string why_no_nats(const Dump& dump, RowSet rows);

// Kept set of a policy in one head and its exact cost. The computation is in steps, so that moving a slider
// stays cheap: the ranking (what_if_ranking) serves every budget, pooling and pin; the importance of each
// token to the decoding steps (what_if_importance) serves every setting; what_if() does the rest for one
// budget. Compensation for evicted tokens builds on these steps (what_if_compensated). Every metric equals
// that of `kvreplay evict` with the same options.

class Run;

struct WhatIfSettings : PolicySettings {
  std::string base = "snapkv";
  std::string score;       ///< empty: the base's own
  bool on_future = false;  ///< the rows that exact searches look at
  Index block = 0;         ///< the prompt in blocks of so many tokens (phase blockwise); 0: at once (prefill)
  Compensation compensation = Compensation::none;
  std::optional<CacheFormat> bits;  ///< that what is kept is stored in; unset: as it is
  Rotation rotate;                  ///< of `bits`
  Centering center;                 ///< of `bits`
  std::string painted;              ///< tokens kept and evicted by hand: the text of a KeptPaint
  bool operator==(const WhatIfSettings&) const = default;
  std::string policy() const { return policy_name(base, score); }
  /// Settings that keep the same tokens, and leave them as they were.
  WhatIfSettings without_compensation() const;
};

/// For sessions; names of policies are the plan's matter.
BoundOptions bound(WhatIfSettings& settings);

/// Everything settled: one run, one case. Throws InputError, one line, where the settings cannot be
/// followed, also where they have several formats. `notes` and the case's `kept` are worth showing. `score`
/// is the user's that the settings name, else null; its file is read, and what was read is not in the plan.
EvictionPlan what_if_plan(const WhatIfSettings& settings, const Dump& dump, const UserScore* score = nullptr);
/// The options of `evict` that they stand for.
EvictionOptions evict_options_of(const WhatIfSettings& settings, const UserScore* score = nullptr);

/// The policy's rule with nothing overridden; none where the policy is unknown. `scores` are the user's.
std::optional<EvictionRule> own_rule(const std::string& policy, const PolicySettings& settings,
                                     const Run& run, const std::vector<UserScore>& scores);
inline std::optional<EvictionRule> own_rule(const WhatIfSettings& settings, const Run& run,
                                            const std::vector<UserScore>& scores) {
  return own_rule(settings.policy(), settings, run, scores);
}

/// Key of everything that the ranking depends on besides the head and a user's score: settings with equal
/// keys share their rankings. Budget, pooling and pins are never part of the key.
Key score_key(const EvictionPlan& plan);
/// True if one ranking serves all heads of a layer; what_if_layer() must then be computed first.
bool ranks_by_layer(const EvictionPlan& plan);

struct WhatIfLayer {
  LayerScores scores;
};
/// `head` gives the layer's KV heads (Run::head), `given` their parts of the user's score where there is one.
WhatIfLayer what_if_layer(const EvictionPlan& plan, const DumpShape& shape,
                          const std::function<std::shared_ptr<const HeadGroup<float>>(Index)>& head,
                          const std::function<GivenScores(Index)>& given, JobControl& job);

struct WhatIfRanking {
  HeadRanking ranking;
};
/// `layer` may be null unless ranks_by_layer(); `given` is the head's part of the user's score, or empty.
WhatIfRanking what_if_ranking(const HeadGroup<float>& group, const EvictionPlan& plan,
                              const WhatIfLayer* layer, const GivenScores& given, JobControl& job);

/// Scores by which a setting ranks the tokens, pooled by its settings.
struct WhatIfScores {
  Vector<double> scores;  ///< [l]; empty where it searches, or ranks anew after each block
};
WhatIfScores what_if_scores(const EvictionPlan& plan, const WhatIfRanking& ranking);

struct WhatIfImportance {
  Vector<double>
      importance;  ///< oracle_importance, [l], to all that read the cache; empty without decoding steps
  std::optional<Vector<double>> own = {};  ///< to the group, where it is one of several
};
/// `readers`, here and below, is Run::readers() of the head; null: the group is alone.
WhatIfImportance what_if_importance(const HeadGroup<float>& group, JobControl& job,
                                    const HeadGroup<float>* readers = nullptr);

struct WhatIf {
  /// On one set of rows; nan where there are none.
  struct RowFigures {
    Index rows = 0;
    double full_sq = 0;    ///< sum over rows and query heads of ||o||^2
    double change_sq = 0;  ///< the same of ||o^M - o||^2
    double error = 0;      ///< change_sq / full_sq: output_error
    PredictedLoss loss = {};
  };
  KeptSet kept;      ///< [l]
  Index tokens = 0;  ///< kept
  RowFigures window, future;
  double eviction_loss = 0, optimality_gap = 0, oracle_recall = 0;  ///< nan without decoding steps
  double bytes = 0, prompt_bytes = 0;  ///< of the cache, and of the whole prompt, as the dump stores them
  std::vector<std::string> notes;      ///< a line each: clipped windows, pins beyond the budget, ..

  /// A cache that makes up for what it lacks: then `window`, `future` and `bytes` are this cache's.
  struct Compensated {
    Compensation method = Compensation::none;
    RowFigures plain_window, plain_future;  ///< of the kept tokens as they were
    /// Terms of the cache's error; empty without such rows, and for a method that has no terms.
    std::optional<ErrorSplit> split_window, split_future, split_reference;
    double reference_full_sq = 0;  ///< as `full_sq` of reference rows; nan where there are none
  };
  std::optional<Compensated> compensated;
};

/// `ranking` and `importance` are this head's under the same score_key(); `marks` its tokens that are kept or
/// evicted by hand, ascending, those beyond the prompt meaning nothing.
WhatIf what_if(const HeadGroup<float>& group, const EvictionPlan& plan, const WhatIfRanking& ranking,
               const WhatIfImportance& importance, JobControl& job,
               const std::vector<MarkedToken>& marks = {}, const HeadGroup<float>* readers = nullptr);

/// A kept set with what is marked in it. For a pinned token that the set has not, the unmarked one of lowest
/// `scores` goes, of equal ones the latest; the first `sinks` and the last `recent` tokens are not among
/// them. Without scores (a search) pinned tokens stay beyond the budget.
KeptSet painted(KeptSet kept, const std::vector<MarkedToken>& marks, const Vector<double>& scores,
                Index sinks, Index recent);

/// Tokens of a head that the plan's policy keeps, with the marks set by hand applied. `readers` is
/// Run::readers() of the head.
KeptSet what_if_kept(const HeadGroup<float>& readers, const EvictionPlan& plan, const WhatIfRanking& ranking,
                     const std::vector<MarkedToken>& marks, JobControl& job);

/// Difference of two kept sets of one head, in tokens.
struct KeptDifference {
  Index both = 0, only_first = 0, only_second = 0;
};
KeptDifference kept_difference(const KeptSet& first, const KeptSet& second);

inline std::size_t bytes_of(const WhatIfLayer& answer) { return bytes_with(answer, answer.scores); }
std::size_t bytes_of(const WhatIfRanking& ranking);
inline std::size_t bytes_of(const WhatIfScores& answer) { return bytes_with(answer, answer.scores); }
inline std::size_t bytes_of(const WhatIfImportance& answer) { return bytes_with(answer, answer.importance); }
inline std::size_t bytes_of(const WhatIf& answer) {
  return bytes_with(answer, answer.kept, answer.window.loss.samples, answer.future.loss.samples,
                    answer.notes);
}

// Compensation for evicted tokens (sim/compensation/COMPENSATION.md), in two steps: the rows for the
// computation (what_if_rows) serve every kept set; what_if_compensated() compensates one kept set.

/// `evictions` is the plan of the same settings and score. Without cases where they leave kept tokens as they
/// were. Throws InputError, one line, where the dump cannot follow.
CompensationPlan what_if_compensation(const WhatIfSettings& settings, const Dump& dump,
                                      const EvictionPlan& evictions, const UserScore* score = nullptr);

/// Key of everything that the rows depend on besides the head. The kept set is never part of the key, nor,
/// among the methods that fit, the method.
Key rows_key(const CompensationPlan& plan);
/// Approximate size of one head's rows in bytes.
std::size_t rows_bytes(const CompensationPlan& plan, const DumpShape& shape);

struct WhatIfRows {
  std::shared_ptr<const HeadGroup<float>> group, readers;
  HeadCompensation<float> of_head;  ///< looks at the groups
};
WhatIfRows what_if_rows(std::shared_ptr<const HeadGroup<float>> group, const CompensationPlan& plan,
                        JobControl& job, std::shared_ptr<const HeadGroup<float>> readers = nullptr);

/// `rows` are the head's under the same rows_key(), `plain` what the settings keep of it.
WhatIf what_if_compensated(const EvictionPlan& evictions, const CompensationPlan& plan,
                           const WhatIfRows& rows, const WhatIf& plain, JobControl& job);

std::size_t bytes_of(const WhatIfRows& rows);

/// A sum of the split, relative to the outputs as output_error is, on window, future or reference rows; nan
/// where there are none or the method has no terms.
double split_figure(const WhatIf& what_if, RowSet rows, double ErrorSplit::*sum);

/// The error of a compensated cache as it comes about, relative to the outputs as output_error is; each step
/// includes those before.
struct ErrorSteps {
  double selection = 0;  ///< output_error of the kept tokens, unchanged, with the whole prompt's mass
  double weighted = 0;   ///< with the mass and the biases that it has
  double error = 0;      ///< with the values that it has: output_error
  double bound = 0;      ///< the least that any values could reach; nan where rows do not outnumber tokens
  double plain = 0;      ///< output_error of the kept tokens as they were
};
/// On window, future or reference rows; empty where there are none or the method has no terms.
std::optional<ErrorSteps> error_steps(const WhatIf& what_if, RowSet rows);

}  // namespace kvreplay::viewer
