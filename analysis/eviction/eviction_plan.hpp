#pragma once

#include "analysis/eviction/eviction_options.hpp"
#include "analysis/measure/loss_columns.hpp"
#include "analysis/run/left_out.hpp"
#include "data/dump.hpp"
#include "sim/cache/cache.hpp"
#include "sim/channels/channel_basis.hpp"
#include "sim/tokens/token_metrics.hpp"

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
  std::optional<Index> kept;  ///< tokens; empty where the user's kept set differs between heads
  std::string semantics;      ///< "paper", ..., or "given"
  std::string budget_label;   ///< empty for a kept set of the user's
  /// "snapkv+joint-paper-blockwise_32-90": the name of its files.
  std::string file_name() const;
  /// "snapkv+joint", with "~append-only" behind it in that phase: its name in decode.csv.
  std::string decode_name() const;
};

/// Two cases that differ in their semantics alone.
struct SemanticsPair {
  std::size_t first = 0, second = 0;
};

/// What is done to the tokens that an eviction keeps.
struct Compression {
  std::optional<ChannelRule> channels;
  double ratio = 0;             ///< of the channels
  std::optional<Index> recent;  ///< the cache's last keys, which lose none; unset: the semantics' own
  std::optional<Protection> protection;
  std::optional<Quantization> quantization;
  Index recent_of(Semantics semantics) const { return recent.value_or(default_recent(semantics)); }
};

struct EvictionPlan {
  Index l = 0;  ///< candidates: tokens of the prompt
  std::vector<Semantics> semantics;
  std::vector<Budget> budgets;
  std::vector<PolicyRun> runs;
  std::vector<EvictionCase> cases;
  std::vector<SemanticsPair> pairs;
  std::vector<GivenArray<double>> scores;
  std::vector<GivenArray<std::uint8_t>> kept;
  RowRange window, future;  ///< the rows on which kept sets are measured; either may be empty
  LossRows losses;          ///< those that the dump has gradients of
  bool on_future = false;
  bool with_residual = false;  ///< the dump has the norms of the residual stream
  std::optional<Index> decode_window;
  bool per_query_head = false;
  std::optional<Compression> compression;
  Index window_asked = kMeasuredRows;  ///< window rows, before the dump cuts them; they rank channels, too
  CacheElements elements;
  std::vector<LeftOut> left_out;
  std::vector<OptionText> notes;

  /// The rows on which an exact search makes this small.
  RowRange search_rows(SearchBy by) const {
    if (by == SearchBy::loss) return losses.on(on_future ? RowSet::future : RowSet::window);
    return on_future ? future : window;
  }
};

/// Whose reading of a channel method a case follows: its policy's; of a kept set of the user's, the first one
/// asked for.
Semantics semantics_of(const EvictionPlan& plan, const EvictionCase& which);

/// Reads the user's files and settles every choice. Throws InputError for a budget beyond l, a sigma outside
/// (0, 1), explicit pins above the budget, a score that needs what the dump lacks, a file of the wrong shape,
/// channels or bits together with a phase that decodes, and where nothing is left to simulate.
EvictionPlan eviction_plan(const Dump& dump, const EvictionOptions& options);

/// The plan of kept sets that are there already, [layers, n_kv, l] each, measured as `options` say.
EvictionPlan plan_of_kept(const Dump& dump, const EvictionOptions& options,
                          std::vector<GivenArray<std::uint8_t>> kept);

}  // namespace kvreplay
