#pragma once

#include "analysis/results/paired.hpp"
#include "analysis/results/result_folder.hpp"
#include "analysis/results/result_reader.hpp"
#include "analysis/results/schema.hpp"

#include <map>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <vector>

// Policies, scores, head budgets and channel methods compared over the prompts of one model: every pair that
// differs in nothing else.

namespace kvreplay {

/// Items that are compared under one setting, each with a figure's value in every prompt.
struct ComparedItems {
  Table table = Table::evictions;
  const FigureFacts* facts = nullptr;
  std::string phase, budget, rows;
  std::string metric;  ///< as the table has it; of agreement "<reference>~<metric>"
  struct Item {
    std::string name;            ///< "snapkv+joint", "snapkv~ada": the values of TableFacts::compared
    std::string semantics;       ///< empty where the table has none
    bool oracle = false;         ///< the item uses the decoding steps
    std::vector<double> values;  ///< one a prompt; NaN where it has none
  };
  std::vector<Item> items;
  double kept_share = kNan;  ///< the mean over prompts; NaN of channels

  Better better() const { return facts->better; }
  /// Left against right.
  Paired pair(const Item& left, const Item& right) const;
};

/// One row of comparisons.csv.
struct Comparison {
  const ComparedItems* of = nullptr;
  const ComparedItems::Item *left = nullptr, *right = nullptr;
  Paired over;
  /// Adjusted by Holm over the `pairs` that were tested together. Pairs with an oracle form a set of their
  /// own, because an oracle cannot be chosen.
  double p = kNan;
  std::size_t pairs = 0;
  /// The number of prompts that would tell the two apart, as prompts_needed() computes it for the same
  /// `pairs`. Set by foresee().
  std::optional<std::ptrdiff_t> needed = {};

  bool told_apart() const { return p < kToldApart; }
};
/// All pairs of items that share their name or their semantics, in the items' order.
std::vector<Comparison> comparisons_of(const ComparedItems& items);
/// Sets p and pairs of comparisons that are tested together.
void adjust(std::vector<Comparison>& asked);
/// Sets `needed` of comparisons that were adjusted together.
void foresee(std::vector<Comparison>& asked);

/// Gathers what can be compared, prompt by prompt.
class Comparisons {
 public:
  /// The results of one more prompt; several folders may hold them. Figures of the whole model, medians over
  /// the heads where a table has rows of heads only. Throws InputError where a table is not what it should
  /// be.
  void add_prompt(const std::vector<ResultReader>& results);

  /// In the tables' order; kept sets of the user's stand with the policies that kept as many tokens in every
  /// prompt.
  std::vector<ComparedItems> all() const;

 private:
  void add(const ResultReader& results, Table table);

  struct Entry {
    ComparedItems items;
    std::map<std::pair<std::string, std::string>, std::size_t> places;  // of items, by name and semantics
  };
  std::size_t prompts_ = 0;
  std::vector<Entry> entries_;
  std::map<std::vector<std::string>, std::size_t> numbers_;     // of entries
  std::map<std::string, std::vector<std::string>> kept_;        // tokens kept, by budget; one a prompt
  std::map<std::string, std::vector<std::string>> given_kept_;  // the same of kept sets, by name
  std::vector<Index> lengths_;                                  // l, one a prompt
};

/// Writes comparisons.csv; returns the number of rows. No file where there are none.
std::size_t write_comparisons(const std::vector<ComparedItems>& all, const ResultFolder& folder);

inline constexpr std::string_view kComparisonKeys =
    "table,left,right,semantics,phase,budget,kept_share,rows,metric,prompts";

// Rankings over prompts: the best item, and the distance of each other item from it.

/// The items of one semantics under one setting, each against the best that can be run: of the oracles none
/// is it.
struct Standing {
  const ComparedItems* of = nullptr;
  std::string semantics;
  const ComparedItems::Item* best = nullptr;
  std::vector<Comparison> others;  ///< left: an item, in the items' order; right: the best
};
/// One for each semantics with at least two items; none where no item but oracles has a value. `items` must
/// outlive them.
std::vector<Standing> standings_of(const ComparedItems& items);

/// "h2o loses 1.58 times what snapkv loses [1.28, 1.94], 6 of 6 prompts"; if the difference is not
/// significant, with the reason.
std::string verdict(const Comparison& comparison);
/// "snapkv loses least of 14; not told apart from it: tova, h2o (about 12 prompts would tell tova)"
std::string verdict(const Standing& standing);
/// The items whose names hold one of the user's `names` (snapkv+mine, score:mine), each against the best of
/// the others that can be run.
std::vector<Comparison> own_against_best(const ComparedItems& items, const std::set<std::string>& names);

/// The standings of one figure on one kind of rows in one phase under one semantics: a column a budget.
struct StandingTable {
  std::string title;  ///< "output error over all heads, future rows"
  std::vector<Standing> columns;
  std::vector<std::string> headings;  ///< "kept 20 %"
};
/// The tables of the main figures of the model, on the future rows where there are any.
std::vector<StandingTable> main_standings(const std::vector<ComparedItems>& all);
/// A text table: the ratio of each item's loss to that of the best item, and a verdict per budget.
std::string text_of(const StandingTable& table);

/// The caveat for comparing two methods on one prompt.
inline constexpr const char* kOnePrompt =
    "one prompt decides nothing between two methods; six dumps of a model tell a ratio of about 1.5 from 1";

// Calibration of output errors: how large a difference has to be. Shown next to tables of output errors.

/// An eviction's output error and the nats that it is predicted to cost (loss_step), on the same rows. Two
/// cases are comparable if they differ only in how the tokens were chosen.
struct JudgedCase {
  std::string setting;
  double output_error = 0, nats = 0;
};
/// The evictions of a finished folder, on the decoding steps where there are any; none without gradients.
std::vector<JudgedCase> judged_cases(const ResultReader& results);

/// A sentence: how often two output errors of these cases have the same order as the predicted nats, by the
/// ratio of the errors, and the range of the nats. Without comparable cases the sentence states what was
/// measured elsewhere (tests/research/README.md).
std::string how_large(std::span<const JudgedCase> cases);

/// Limits of predicted nats, shown next to headlines in nats; measured (sim/loss/LOSS.md).
inline constexpr const char* kNatsPromise =
    "predicted nats order policies better than they size what is lost: loss_step was 0.68, 0.77 and 1.03 "
    "times "
    "the true KL in the median on SmolLM2-135M, Gemma-3-270m and pystdlib-lm with 128 steps of running text, "
    "and "
    "0.31 on a Qwen2.5-Coder-0.5B prompt whose answer copies from the prompt";

}  // namespace kvreplay
