#pragma once

#include "analysis/eviction/eviction_options.hpp"
#include "analysis/measure/measured_columns.hpp"
#include "analysis/results/schema.hpp"
#include "analysis/run/stage.hpp"
#include "data/dump.hpp"
#include "sim/cache/cache.hpp"
#include "sim/channels/channel_basis.hpp"
#include "sim/tokens/token_metrics.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

// From what a user asks for to the list of evictions to simulate.

namespace kvreplay {

/// The last queries of the prompt that kept sets are measured on where nobody says how many.
inline constexpr Index kMeasuredRows = 32;

/// One policy under one semantics, with the rule it follows at every budget.
struct PolicyRun {
  Policy policy;
  Semantics semantics = Semantics::paper;
  std::vector<EvictionRule> rules;  ///< one for each of EvictionPlan::budgets
};

/// One kept set to find and to measure.
struct EvictionCase {
  std::string policy;  ///< as exported
  std::optional<std::size_t>
      run;  ///< number of the PolicyRun; empty for a kept set of the user's, or the whole prompt
  std::size_t budget =
      0;  ///< number of the budget, or of the user's kept set; beyond these: the whole prompt
  Phase phase;
  std::optional<Index> kept;  ///< tokens; empty where heads differ: a kept set of the user's, a threshold
  std::string semantics;      ///< "paper", ..., or "given"
  std::string budget_label;   ///< empty for a kept set of the user's, and with a threshold
  std::size_t format = 0;     ///< of the plan's compression
  std::optional<std::size_t> recipe = {};  ///< number of the plan's; empty of all other cases
  std::optional<std::size_t> probe = {};   ///< number of the plan's; empty of all other cases
  /// "snapkv+joint-paper-blockwise_32-90": the name of its files.
  std::string file_name() const;
  /// "snapkv+joint", with "~append-only" or "~decode:32" behind it in these phases: its name in decode.csv.
  std::string decode_name() const;
};

/// A recipe resolved to the policy run, the budget and the number of kept tokens of each head.
struct PlannedRecipe {
  struct Head {
    std::optional<std::size_t> run;  ///< number of the PolicyRun; empty: the whole prompt stays
    std::size_t budget = 0;
    Index kept = 0;
  };
  std::string name, fingerprint;
  std::vector<std::vector<Head>> heads;  ///< [layers][n_kv]
};

/// Two cases that differ in their semantics alone.
struct SemanticsPair {
  std::size_t first = 0, second = 0;
};

/// Compression of the tokens that an eviction keeps.
struct Compression {
  std::optional<ChannelRule> channels;
  double ratio = 0;             ///< of the channels
  std::optional<Index> recent;  ///< the cache's last keys, which lose none; unset: the semantics' own
  std::optional<Protection> protection;
  std::vector<CacheFormatRun> formats;  ///< of the caches, one after the other; none: caches stay as they are
  Index recent_of(Semantics semantics) const { return recent.value_or(default_recent(semantics)); }
};

struct EvictionPlan {
  Index l = 0;  ///< candidates: the prompt tokens held, in a layer that holds most of them
  std::vector<Semantics> semantics;
  std::vector<Budget> budgets;
  std::vector<PolicyRun> runs;
  std::vector<EvictionCase> cases;
  std::vector<SemanticsPair> pairs;
  std::vector<PlannedRecipe> recipes;
  std::vector<CacheFormatRun> probes;  ///< formats of the whole prompt beside evictions that store exactly
  std::vector<GivenArray<double>> scores;
  std::vector<GivenArray<std::uint8_t>> kept;
  RowRange window, future;  ///< the rows on which kept sets are measured; either may be empty
  LossRows losses;          ///< the rows for which the dump has gradients
  bool on_future = false;
  bool with_residual = false;  ///< the dump has the norms of the residual stream
  std::optional<Index> decode_window;
  PromptCache prompt = PromptCache::cut;
  bool per_query_head = false;
  bool ties = false;  ///< are counted
  std::optional<Compression> compression;
  Index window_asked = kMeasuredRows;  ///< window rows, before the dump cuts them; they rank channels, too
  bool reserves = false;               ///< bytes include positions that left a sliding window
  std::vector<LeftOut> left_out;
  std::vector<OptionText> notes;
  /// The plans of layers whose caches hold fewer tokens: identical cases, with budgets and rules for fewer
  /// candidates.
  std::vector<EvictionPlan> of_windowed;

  /// The plan that applies to a head group's layer.
  template <class T>
  const EvictionPlan& of(const HeadGroup<T>& group) const {
    const auto windowed = std::ranges::find(of_windowed, group.held(), &EvictionPlan::l);
    return windowed == of_windowed.end() ? *this : *windowed;
  }

  /// The rule of a case whose rows read less of a prompt that stays whole; null of all others.
  const EvictionRule* reads(const EvictionCase& which) const {
    if (!which.run) return nullptr;
    const EvictionRule& rule = runs[*which.run].rules[which.budget];
    return rule.reads ? &rule : nullptr;
  }
  bool any_reads() const {
    return std::ranges::any_of(cases, [this](const EvictionCase& which) { return reads(which) != nullptr; });
  }
  /// The rows on which policies that read less are judged: the decoding steps if there are any, else the
  /// window.
  RowRange rows_judged() const { return future.count() > 0 ? future : window; }

  /// The rows on which an exact search makes this small.
  RowRange search_rows(SearchBy by) const {
    if (by == SearchBy::loss) return losses.on(on_future ? RowSet::future : RowSet::window);
    return on_future ? future : window;
  }
};

/// The semantics of a channel method in a case: those of the case's policy; for a user's kept set, the first
/// semantics requested.
Semantics semantics_of(const EvictionPlan& plan, const EvictionCase& which);

/// Reads the user's files and resolves every choice. Throws InputError for a budget beyond l, a sigma outside
/// (0, 1), explicit pins above the budget, and a score whose input the dump lacks. Also for a file of the
/// wrong shape, for channels or bits together with a phase that decodes, and if nothing is left to simulate.
EvictionPlan eviction_plan(const Dump& dump, const EvictionOptions& options);

/// The plan of kept sets that are there already, [layers, n_kv, l] each, measured as `options` say.
EvictionPlan plan_of_kept(const Dump& dump, const EvictionOptions& options,
                          std::vector<GivenArray<std::uint8_t>> kept);

/// Numbers whose ties are counted: those that the run computes in (as they are), and kvpress' usual ones.
inline constexpr Dtype kTiesIn[] = {Dtype::f64, Dtype::f16, Dtype::bf16};
inline constexpr Index kTieNumbers = std::ssize(kTiesIn);

/// Where a head's figures stand in its row of HeadFigures: those of the whole head, then those of every case.
class EvictionColumns {
 public:
  enum Head {
    window_full_sq,
    future_full_sq,
    window_layer_full_sq,
    future_layer_full_sq,
    window_residual_sq,  ///< of the residual stream, where the dump has its norms
    future_residual_sq,
    prompt_bytes,
    kHeadFigures
  };
  enum Case {
    tokens,         ///< of the cache, at the end where the phase decodes
    prompt_tokens,  ///< of the prompt among them
    window_change_sq,
    future_change_sq,
    window_layer_change_sq,
    future_layer_change_sq,
    eviction_loss,
    optimality_gap,
    oracle_recall,
    bytes,
    kCaseFigures
  };
  /// Where every query head has a cache of its own, a KV head has the mean of theirs; of all else their sum.
  static constexpr bool averages(Case figure) {
    return figure == tokens || figure == prompt_tokens || figure == oracle_recall;
  }

  explicit EvictionColumns(const EvictionPlan& plan) : steps_(plan.future.count()), count_(kHeadFigures) {
    for (const EvictionCase& which : plan.cases) {
      begin_.push_back(count_);
      count_ += kCaseFigures + (which.phase.decodes() ? 2 * steps_ : 0);
    }
    first_pair_ = count_;
    count_ += std::ssize(plan.pairs);
    losses_ = LossColumns(plan.losses, count_, plan.cases.size());
    count_ += losses_.count();
    first_ties_ = count_;
    count_ += plan.ties ? kTieNumbers * std::ssize(plan.cases) : 0;
    if (!plan.any_reads()) return;
    first_read_ = count_;
    count_ += std::ssize(plan.cases);
  }

  Index of(Head figure) const { return figure; }
  Index of(std::size_t which, Case figure) const { return begin_[which] + figure; }
  /// The bytes that a row reads, on average; nowhere (empty) where every row reads all that is held.
  std::optional<Index> bytes_read_of(std::size_t which) const {
    return first_read_ ? std::optional(*first_read_ + static_cast<Index>(which)) : std::nullopt;
  }
  /// The column of the number of tokens that both cases of a pair keep.
  Index common_of(std::size_t pair) const { return first_pair_ + static_cast<Index>(pair); }
  /// The first column of a decoding case's relative errors: one a step.
  Index steps_of(std::size_t which) const { return begin_[which] + kCaseFigures; }
  /// The first column of the numbers of tokens that its steps attend over.
  Index cached_of(std::size_t which) const { return steps_of(which) + steps_; }
  Index steps() const { return steps_; }
  /// The columns of the number of tokens that tie at a case's cut, by kTiesIn; nan if the tokens are not
  /// ranked one by one in a single pass.
  Index ties_of(std::size_t which) const { return first_ties_ + static_cast<Index>(which) * kTieNumbers; }
  const LossColumns& losses() const { return losses_; }
  Index count() const { return count_; }

 private:
  std::vector<Index> begin_;
  Index first_pair_ = 0, steps_, count_, first_ties_ = 0;
  LossColumns losses_;
  std::optional<Index> first_read_;
};

/// The figures of evictions.csv that stand in a column of their own. Over a layer or the model they are means
/// where the column averages(), else sums.
struct StoredFigure {
  EvictionFigure figure;
  EvictionColumns::Case column;
};
inline constexpr StoredFigure kStoredFigures[] = {
    {EvictionFigure::eviction_loss, EvictionColumns::eviction_loss},
    {EvictionFigure::optimality_gap, EvictionColumns::optimality_gap},
    {EvictionFigure::oracle_recall, EvictionColumns::oracle_recall},
    {EvictionFigure::bytes, EvictionColumns::bytes},
};

}  // namespace kvreplay
