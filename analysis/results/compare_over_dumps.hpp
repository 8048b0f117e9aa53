#pragma once

#include "analysis/results/compare.hpp"
#include "analysis/results/compare_report.hpp"
#include "analysis/results/over_dumps_reader.hpp"
#include "analysis/results/paired.hpp"

#include <nlohmann/json.hpp>

#include <string>
#include <vector>

// Two folders over several dumps side by side, prompt by prompt; or two rows of one such folder.

namespace kvreplay {

/// A main figure of the model in the prompts of both folders.
struct FigureOverPrompts {
  std::string item, setting;
  std::vector<double> a, b;  ///< one a prompt; NaN where it has none
  Paired over;               ///< a against b
  double p = 0;              ///< adjusted by Holm over the figures of its block
};

struct BlockOverPrompts {
  Table table = Table::heads;
  std::string metric, title;
  Better better = Better::neither;
  FigureScale scale = FigureScale::log;
  std::vector<FigureOverPrompts> figures;

  PairedBy by() const { return *paired_by(better, scale); }
};

struct ComparisonOverPrompts {
  FolderComparison::Side a, b;
  std::vector<std::string> prompts;         ///< in both, by their names in a
  std::vector<std::string> only_a, only_b;  ///< names of prompts
  std::vector<RunDifference> run;           ///< of the first prompt in both, but for the dump
  std::vector<BlockOverPrompts> blocks;
};

/// Prompts are the same where their dumps hold the same; figures without a better direction are left out.
/// Throws InputError where no prompt is in both, and as compare() does.
ComparisonOverPrompts compare(const OverDumpsReader& a, const KeyFilter& left, const OverDumpsReader& b,
                              const KeyFilter& right);

/// Tells all of it, with the `most` clearest differences of every block.
void describe(const ComparisonOverPrompts& comparison, std::size_t most, ComparisonPage& page);
nlohmann::ordered_json json_of(const ComparisonOverPrompts& comparison);
/// compare_prompts.csv: table, metric, item, setting, prompts, a, b, log_ratio, difference, low, high, wins,
/// p; a and b are means (of errors geometric ones), the others of a against b as in comparisons.csv.
void write_csv(const ComparisonOverPrompts& comparison, const std::filesystem::path& folder);

}  // namespace kvreplay
