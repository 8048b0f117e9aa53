#pragma once

#include "analysis/options/option.hpp"
#include "analysis/results/figures.hpp"
#include "analysis/results/main_figures.hpp"
#include "analysis/results/metric_table.hpp"
#include "analysis/results/over_dumps.hpp"
#include "analysis/results/paired.hpp"

#include <array>
#include <filesystem>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

// Two result folders side by side, called a and b: of one prompt each, or over several prompts that are
// compared one by one.

namespace kvreplay {

/// Values that keys must have, by the keys' names. Both sides name the same keys; these take no part in
/// finding the figures of one side on the other.
using KeyFilter = std::map<std::string, std::string>;

namespace compare_option {
inline constexpr OptionFacts left{
    "left", "KEY=VALUE,...",
    "Only rows of A with these values, compared with those of B that have the values for it"},
    right{"right", "KEY=VALUE,...", "Only rows of B with these values of the same keys"};
}  // namespace compare_option

/// A setting that two runs do not share: "options.evict.budgets", "[0.5]", "none".
struct RunDifference {
  std::string key, a, b;
};

/// Agreement of the heads behind one figure of the model.
struct HeadAgreement {
  Index heads = 0;  ///< with a value on both sides; 0 where the runs have other heads
  double median_difference = 0, largest_difference = 0;  ///< of |b - a|
  std::string largest_at;                                ///< "layer.kv_head"
  double spearman = 0;                                   ///< over the heads; NaN where one side does not vary
  /// Lower quartile, median, upper quartile over the heads of each side, NaN left out.
  std::array<double, 3> a{}, b{};
};

struct ComparedFigure {
  std::string item, setting;
  double a = 0, b = 0;
  HeadAgreement heads;
  std::string shown;       ///< the item as people read it
  bool is_oracle = false;  ///< is_oracle()
};

/// The order of the items under one setting, the best first; only those with a value on both sides, oracles
/// apart.
struct RankOrder {
  std::string setting;
  std::vector<std::string> a, b;
  /// Pairs that change places, in the order of a: the better item first. Sorted by the smaller of the two
  /// margins, the widest first.
  std::vector<std::pair<std::string, std::string>> swaps;
};

/// The main figures of a table, analysis/results/main_figures.hpp.
struct ComparedPivot {
  std::string metric;  ///< empty: every one
  std::string title;
  Better better = Better::neither;
  FigureScale scale = FigureScale::linear;
  std::vector<ComparedFigure> figures;
  std::vector<RankOrder> ranks;  ///< none where no value is better than another
};

struct TableComparison {
  Table table = Table::heads;
  std::vector<std::string> keys;                  ///< the names; without those of the filters
  std::vector<std::vector<std::string>> metrics;  ///< the values of the keys behind layer and kv_head
  std::vector<Index> layers;                      ///< of a, by the dump's numbers
  struct Row {
    std::size_t metric;
    Scope scope;
    double a = 0, b = 0;
  };
  /// The values of `keys` in a row.
  std::vector<std::string> keys_of(const Row& row) const;
  std::vector<Row> rows;  ///< in both, in a's order; with other heads, those of the whole model only
  std::size_t only_a = 0, only_b = 0;
  std::size_t differing = 0;           ///< rows, one value of two being NaN among them
  std::optional<std::size_t> largest;  ///< the row of the largest |b - a|; none where no two values differ
  std::vector<ComparedPivot> pivots;
};

/// "two models, X and Y" if the two names in results denote different models; else empty.
std::string two_models(const std::string& a, const std::string& b);

/// b - a; 0 for equal values, infinities included; NaN if one is NaN.
double difference(double a, double b);

/// The part of a comparison that exists for any two folders: their runs, and what only one side has.
struct ComparedFolders {
  struct Side {
    std::string folder, model;
    KeyFilter filter;
  } a, b;
  std::vector<RunDifference> run;  ///< over several prompts of the first one in both, but for the dump
  std::vector<std::string> only_a, only_b;  ///< present on one side only: tables, or prompts by their names
};

struct FolderComparison : ComparedFolders {
  bool same_heads = true;  ///< true if layers and heads are the same places of the model on both sides
  std::vector<TableComparison> tables;
};

/// Compares the tables that both folders have and to which the filters apply. Throws InputError if there are
/// none, if the two filters name different keys, if a filter names a value that no row has, or if a table is
/// invalid.
FolderComparison compare(const ResultReader& a, const KeyFilter& left, const ResultReader& b,
                         const KeyFilter& right);

/// One headline: differences in model, prompt length or dump, if any; the side that is better in more of the
/// main metrics; the main metric that differs most.
std::string headline_of(const FolderComparison& comparison);
/// A warning if all figures are equal although a setting or a filter differs: the setting may have had no
/// effect. Empty otherwise. Lists do not count as settings, because they choose what is measured.
std::string suspicion_of(const FolderComparison& comparison);
/// The folder, the model and the filter.
std::string side_text(const ComparedFolders::Side& side);

/// Receiver of a comparison's parts, in order.
class ComparisonPage {
 public:
  using Lines = std::vector<std::vector<std::string>>;

  virtual ~ComparisonPage() = default;
  virtual void heading(const std::string& text) = 0;  ///< of a part: the runs, then every table by its name
  virtual void title(const std::string& text) = 0;    ///< of a table of figures within a part
  virtual void line(const std::string& text) = 0;
  virtual void table(const Lines& lines) = 0;  ///< the first line is the header
};
/// Describes the whole comparison, with the `most` largest differences of every block. Correlations are
/// sorted by the difference itself, all other figures by its share of the larger value.
void describe(const FolderComparison& comparison, std::size_t most, ComparisonPage& page);

/// Renders what `describe` sends to a page, as text for the terminal and as Markdown.
std::string plain_text(const std::function<void(ComparisonPage&)>& describe);
std::string markdown_text(const std::function<void(ComparisonPage&)>& describe);
template <class Comparison>
std::string plain_text(const Comparison& comparison, std::size_t most) {
  return plain_text([&](ComparisonPage& page) { describe(comparison, most, page); });
}
template <class Comparison>
std::string markdown_text(const Comparison& comparison, std::size_t most) {
  return markdown_text([&](ComparisonPage& page) { describe(comparison, most, page); });
}
/// Everything that describe() may say, without a limit; NaN as null.
Json json_of(const FolderComparison& comparison);

/// compare_<table>.csv: the keys, a, b, difference, ratio.
void write_csv(const FolderComparison& comparison, const std::filesystem::path& folder);

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

struct ComparisonOverPrompts : ComparedFolders {
  std::vector<std::string> prompts;  ///< in both, by their names in a
  std::vector<BlockOverPrompts> blocks;
};

/// Compares two folders over prompts. Prompts are the same if their dumps have the same contents. Figures
/// without a better direction are left out. Throws InputError if no prompt is in both folders, and as
/// compare() does.
ComparisonOverPrompts compare(const OverDumpsReader& a, const KeyFilter& left, const OverDumpsReader& b,
                              const KeyFilter& right);

/// Describes the whole comparison, with the `most` clearest differences of every block.
void describe(const ComparisonOverPrompts& comparison, std::size_t most, ComparisonPage& page);
Json json_of(const ComparisonOverPrompts& comparison);
/// compare_prompts.csv: table, metric, item, setting, prompts, a, b, log_ratio, difference, low, high, wins,
/// p; a and b are means (of errors geometric ones), the others of a against b as in comparisons.csv.
void write_csv(const ComparisonOverPrompts& comparison, const std::filesystem::path& folder);

}  // namespace kvreplay
