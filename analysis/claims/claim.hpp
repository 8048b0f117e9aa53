#pragma once

#include "analysis/results/figure_facts.hpp"
#include "analysis/results/metric_table.hpp"
#include "analysis/results/result_reader.hpp"

#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

// Claims of papers about compressed caches: the effect on each prompt, from the tables of a result folder,
// and the verdict over several prompts.

namespace kvreplay {

/// The effect formed from a claim's two sides on one prompt, and its average over prompts.
enum class Effect {
  ratio,       ///< left / right, of losses and errors: by the logarithm
  difference,  ///< left - right, of shares
  correlation  ///< left alone: by Fisher's z
};

/// The number that represents a metric: the model's, or a statistic of the heads'.
enum class Reduced { model, mean_of_heads, median_of_heads, largest_head };

/// Values of columns of a table, one each.
using Keys = std::vector<std::pair<std::string_view, std::string>>;

/// A sentence of a paper that a table can test. Columns that a table does not have are ignored.
struct ClaimFacts {
  std::string_view id, paper, figure, sentence;
  Table table;
  Keys of = {};  ///< common to both sides
  std::vector<std::pair<Keys, Keys>> sides = {};
  /// In place of `sides`: every value of this column with one of the endings behind its base name
  /// ("h2o+joint[..]") against the value without it.
  std::string_view ended = {};
  std::vector<std::string_view> endings = {};
  /// Columns of which every value makes a separate setting; with a list, only the values in it.
  std::vector<std::pair<std::string_view, std::vector<std::string_view>>> each = {};
  Reduced reduced = Reduced::model;
  Effect effect = Effect::ratio;
  Better better = Better::smaller;  ///< where the claim has the effect: below the bound, or above
  double bound = 1;
  std::string_view needs;  ///< the results that measure it
  Index longer_than = 0;   ///< tokens of a prompt that it can be asked of
};
const std::vector<ClaimFacts>& claim_table();

/// "ratio < 1", "difference > -0.025": what the claim says of the effect.
std::string claimed_text(const ClaimFacts& claim);

/// A claim in one of its settings on one prompt.
struct MeasuredClaim {
  const ClaimFacts* claim;
  std::string setting;  ///< both sides, the budget, the rows, ...
  double left, right;   ///< right is 0 of a correlation
  double layers;        ///< share of the layers in which left is better, of those that differ; or NaN
};

/// The tables that claims are looked up in, and the model's true losses with them (metric "kl") where they
/// were measured.
struct ClaimTables : FigureTables {
  std::vector<std::string> windows = {};  ///< as they were asked for, in the order of agreement.csv
  std::string divided = {};               ///< the division of budgets, if it is not the papers' setting
};
/// `left_one_out` has the budgets divided by the profile of other prompts, or is null.
ClaimTables claim_tables(const ResultReader& results, const ResultReader* left_one_out = nullptr);
/// In the claims' order.
std::vector<MeasuredClaim> measured_claims(const ClaimTables& tables);

enum class Verdict {
  none,       ///< fewer than kFewestPrompts prompts, or no number
  holds,      ///< the interval lies where the claim has the effect
  fails,      ///< the interval lies on the other side
  alike,      ///< the interval contains the value of no effect, and no large effect
  undecided,  ///< the interval reaches far on both sides
};

/// A claim in one of its settings over prompts.
struct ClaimEffect {
  const ClaimFacts* claim;
  std::string setting;
  std::vector<double> dumps = {};               ///< the effect on each prompt; NaN where it has none
  std::size_t prompts = 0;                      ///< that have one
  double mean = kNan, low = mean, high = mean;  ///< 95 % interval
  double layers = mean;                         ///< mean over the prompts

  Verdict verdict() const;
  /// "holds", "no difference at this size (up to 3.1 %)"; empty where there is none.
  std::string verdict_text() const;
  /// "0.83 [0.79, 0.88]"
  std::string text() const;
  /// One value of the effect: "0.83", "+0.012".
  std::string text_of(double value) const;
};
/// In the claims' order; of each prompt what measured_claims() found there.
std::vector<ClaimEffect> claim_effects(std::span<const std::vector<MeasuredClaim>> prompts);

}  // namespace kvreplay
