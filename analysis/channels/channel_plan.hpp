#pragma once

#include "analysis/channels/channel_options.hpp"
#include "analysis/measure/measured_columns.hpp"
#include "analysis/run/stage.hpp"
#include "data/dump.hpp"
#include "sim/channels/channel_basis.hpp"
#include "sim/tokens/token_metrics.hpp"

#include <cstddef>
#include <optional>
#include <string>
#include <vector>

// From what a user asks for to the list of prunings to measure.

namespace kvreplay {

/// One set of channels to find and to measure.
struct ChannelCase {
  std::size_t rule = 0;  ///< number of the rule
  double ratio = 0;
  std::string ratio_label;  ///< "0.5"
  Index pruned = 0;         ///< channels that the ratio asks for
  std::string file_name;    ///< "think-0.5"
};

struct ChannelPlan {
  std::vector<ChannelRule> rules;
  std::vector<ChannelCase> cases;  ///< by rule, then ratio
  std::vector<double> ratios;
  ChannelSetting setting;   ///< where a rule chooses nothing itself
  RowRange window, future;  ///< the rows that errors are measured on; future may be empty
  LossRows losses;          ///< the rows for which the dump has gradients
  bool png = false;
  std::vector<LeftOut> left_out;
  std::vector<OptionText> notes;

  ChannelSetting setting_of(const ChannelCase& which) const { return setting.of(rules[which.rule]); }
  bool per_query_head() const { return setting.semantics == Semantics::official; }
  bool needs_outputs() const;
  /// The rows that errors are best reported on: the future where there is one.
  RowSet best_rows() const { return future.count() > 0 ? RowSet::future : RowSet::window; }
  /// True if the search of a case bounds what is measured: in ThinK's code, whose selections are of query
  /// heads, that is not what it minimises.
  bool bounds(const ChannelCase& which) const {
    return !per_query_head() && kChannelMethods[rules[which.rule].method].bounds;
  }
  /// The case of think at the ratio of another and with as many recent keys, think without protection of its
  /// own where there is one; none where there is none.
  std::optional<std::size_t> think_at(std::size_t which) const;
};

/// Resolves every choice. Throws InputError for a ratio outside [0, 1), `recent` at or beyond the prompt's
/// length, a method whose input the dump lacks, and a dump without queries of the prompt.
ChannelPlan channel_plan(const Dump& dump, const ChannelOptions& options);

/// Why a dump cannot say which channels rotate together, as one clause; nothing where it can.
std::optional<std::string> why_no_rope_pairs(const Dump& dump);

/// Why a dump cannot give channel metrics with these options, as one clause; nothing where it can.
std::optional<OptionText> why_no_channels(const Dump& dump, const ChannelOptions& options);

/// The figures of a head, and of a case on it.
struct ChannelColumnNames {
  enum Head {
    off_diagonal_share,
    rope_pair_share,
    window_full_sq,  ///< sum of ||o_i||^2
    future_full_sq,
    window_layer_full_sq,
    future_layer_full_sq,
    kHeadFigures
  };
  enum Case {
    pruned,            ///< channels; the mean over query heads where each has its own
    window_logits_sq,  ///< ||Q K^T||_F^2 of the window's queries and the prunable keys
    future_logits_sq,
    window_change_sq,  ///< sum of ||o_i' - o_i||^2
    future_change_sq,
    window_layer_change_sq,
    future_layer_change_sq,
    kCaseFigures
  };
};
using ChannelColumns = CaseColumns<ChannelColumnNames, kChannelFigures>;

}  // namespace kvreplay
