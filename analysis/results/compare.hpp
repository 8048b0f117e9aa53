#pragma once

#include "analysis/options/option.hpp"
#include "analysis/results/figures.hpp"
#include "analysis/results/main_figures.hpp"

#include <array>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

// Two result folders side by side, called a and b.

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
/// Of the dumps, the precision, the layers and the options.
std::vector<RunDifference> run_differences(const ResultReader& a, const ResultReader& b);

/// How the figures of the heads agree behind one figure of the model.
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
  bool is_oracle = false;  ///< analysis/results/oracles.hpp
};

/// The order of the items under one setting, the best first; only those with a value on both sides, oracles
/// apart.
struct RankOrder {
  std::string setting;
  std::vector<std::string> a, b;
  /// Pairs that change places, as a has them: the better one first. By the smaller of the two margins, the
  /// widest first.
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
  std::vector<std::string> keys;  ///< the names; without those of the filters
  struct Row {
    std::string key;  ///< as joined()
    double a = 0, b = 0;
  };
  std::vector<Row> rows;  ///< in both, in a's order; with other heads, those of the whole model only
  std::size_t only_a = 0, only_b = 0;
  std::size_t differing = 0;           ///< rows, one value of two being NaN among them
  std::optional<std::size_t> largest;  ///< the row of the largest |b - a|; none where no two values differ
  std::vector<ComparedPivot> pivots;
};

/// b - a; 0 of equals, infinities among them, NaN where one is.
double difference(double a, double b);

/// Whether figures of a layer and a head are of the same place of the model.
bool same_heads(const ResultReader& a, const ResultReader& b);

/// The tables that both have and the filters apply to, compared. Throws InputError where there are none,
/// where the filters name other keys than each other or values that no row has, and where a table is not what
/// it should be.
std::vector<TableComparison> compare(const ResultReader& a, const KeyFilter& left, const ResultReader& b,
                                     const KeyFilter& right);

}  // namespace kvreplay
