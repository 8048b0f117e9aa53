#pragma once

#include "analysis/results/paired.hpp"
#include "analysis/results/result_folder.hpp"
#include "analysis/results/result_reader.hpp"
#include "analysis/results/schema.hpp"

#include <limits>
#include <map>
#include <optional>
#include <string>
#include <vector>

// Policies, scores, head budgets and channel methods set against each other over the prompts of one model:
// every pair that differs in nothing else.

namespace kvreplay {

/// What is compared under one setting, with a figure's value in every prompt.
struct ComparedItems {
  Table table = Table::evictions;
  const FigureFacts* facts = nullptr;
  std::string phase, budget, rows;
  std::string metric;  ///< as the table has it; of agreement "<reference>~<metric>"
  struct Item {
    std::string name;            ///< "snapkv+joint", "snapkv~ada": the values of TableFacts::compared
    std::string semantics;       ///< empty where the table has none
    bool oracle = false;         ///< it knows the decoding steps
    std::vector<double> values;  ///< one a prompt; NaN where it has none
  };
  std::vector<Item> items;
  double kept_share = std::numeric_limits<double>::quiet_NaN();  ///< the mean over prompts; NaN of channels

  Better better() const { return facts->better; }
  /// Left against right.
  Paired pair(const Item& left, const Item& right) const;
};

/// One row of comparisons.csv.
struct Comparison {
  const ComparedItems* of = nullptr;
  const ComparedItems::Item *left = nullptr, *right = nullptr;
  Paired over;
  /// Adjusted by Holm over the `pairs` that were asked at once, those with an oracle among them apart, which
  /// are no choices.
  double p = std::numeric_limits<double>::quiet_NaN();
  std::size_t pairs = 0;
  /// How many prompts would tell the two apart, as prompts_needed() has it for the same `pairs`; where
  /// foresee() was asked.
  std::optional<std::ptrdiff_t> needed = {};

  bool told_apart() const { return p < kToldApart; }
};
/// All pairs of items that share their name or their semantics, in the items' order.
std::vector<Comparison> comparisons_of(const ComparedItems& items);
/// Sets p and pairs of comparisons that are asked at once.
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

}  // namespace kvreplay
