#pragma once

#include "viewer/questions/ask.hpp"
#include "viewer/questions/head_figures.hpp"
#include "viewer/questions/what_if_figures.hpp"

#include <array>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace kvreplay {
class ResultReader;
}

namespace kvreplay::viewer {

// Figures with one number a head, for the Head map and its table of worst heads.

/// One figure of all heads.
struct FigureMap {
  FigureInfo figure;
  std::vector<Index> layers;  ///< the dump's number of each row
  Matrix<double> values;      ///< [layers, n_kv]; NaN where there is no value, or none yet
  Index heads = 0;            ///< number of heads that have arrived
  /// [layers * n_kv], 1 where the value is of other settings than those asked for, whose own is to come; or
  /// empty: none is.
  std::vector<std::uint8_t> stale = {};

  bool is_stale(Index head) const { return !stale.empty() && stale[static_cast<std::size_t>(head)] != 0; }
};
inline std::size_t bytes_of(const FigureMap& map) {
  return sizeof(map) + static_cast<std::size_t>(map.values.size()) * sizeof(double);
}

/// Metrics in summaries of a dump's heads: the token metrics and their agreement over n candidates.
std::vector<FigureInfo> dump_figures(const MetricSet& metrics, Index n);
/// A map to be filled head by head.
FigureMap empty_map(FigureInfo figure, std::vector<Index> layers, Index n_kv);
/// Puts in the head's value of the map's figure. A head that the map does not have is left out.
void add(FigureMap& map, const HeadSummary& head);

/// The first of two maps of one figure less the second, NaN where either has no value. Empty where they do
/// not have the same heads.
std::optional<FigureMap> difference_map(const FigureMap& map, const FigureMap& minus);

/// Metrics in a result folder. Those of its tables are read at once, those of maps/ one by one.
struct ResultFigures {
  std::vector<FigureInfo> figures;    ///< in the order of the menu: by group, then as the tables have them
  std::vector<std::string> problems;  ///< tables that could not be read, one line each
  std::map<std::string, Matrix<double>, std::less<>> from_tables;
  const FigureInfo* find(std::string_view name) const;
};
std::size_t bytes_of(const ResultFigures& figures);
ResultFigures result_figures(const ResultReader& results);
/// Throws InputError where there is no such figure or its file is bad.
FigureMap figure_map(const ResultReader& results, const ResultFigures& figures, std::string_view name);

struct HeadPlace {
  Index row = 0;  ///< of the map
  Index layer = 0, kv_head = 0;
  double value = 0;
};
/// All heads, the worst first, equal ones by layer and head, those without a value, or with a stale one,
/// last.
std::vector<HeadPlace> worst_first(const FigureMap& map, bool larger_is_worse);
/// By the figure's own sense; where it has none, the largest first.
std::vector<HeadPlace> worst_first(const FigureMap& map);

/// Lengths of bars for the heads of a map, linear in the values. Of a figure whose larger values are better a
/// bar is the distance to the best value: 1 for shares and correlations, else the largest of the map.
struct HeadBars {
  double low = 0, high = 0;  ///< ends of the axis, low <= 0 <= high; bars begin at 0
  std::optional<double> best;

  double amount(double value) const { return best ? *best - value : value; }
  /// The place of an amount on the axis, 0..1.
  double place(double of_amount) const { return high > low ? (of_amount - low) / (high - low) : 0; }
};
HeadBars head_bars(const FigureMap& map);

/// Values on one side of a bound.
struct ValueFilter {
  bool below = false, equal = false;  ///< which side, and whether the bound belongs to it
  double bound = 0;
  bool takes(double value) const;
};
/// "< 0.8", ">=80%"; nothing where it is something else.
std::optional<ValueFilter> value_filter(std::string_view typed);

/// Metrics of heads that the selected run has, and the known values of one of them. Metrics of a result
/// folder are read. Missing ones, and the cost of the settings of What if, are computed from the dump, head
/// by head. Drawing thread only.
class HeadMapSource {
 public:
  /// Takes what the queue has by now and asks for what is missing. Before anything else in a frame.
  void look(PanelContext& context);
  /// In the order of the menu; empty while a result folder is read.
  const std::vector<FigureInfo>& figures() const { return figures_; }
  /// Null where the run has no such figure.
  const FigureInfo* find(const std::string& name) const;
  /// Version number of the list: changes whenever figures() changes.
  std::uint64_t list() const { return list_; }

  /// Asks for one of figures(), or takes up with what was asked before.
  void ask(PanelContext& context, const FigureInfo& figure);
  /// Result of the last ask(); null if nothing is known yet.
  const std::shared_ptr<const FigureMap>& map() const { return map_; }
  /// Says what the map's values depend on.
  const Key& key() const { return key_; }
  bool from_results() const { return from_results_; }
  bool pending() const { return pending_; }
  /// True if the metric takes long to compute and begin(), the user's request, has not been called.
  bool waits() const { return waits_; }
  void begin() { begun_ = run_key_; }
  Index heads() const { return heads_; }  ///< that the map will have
  /// What could not be read or computed, a line each.
  const std::vector<std::string>& problems() const { return problems_; }

 private:
  void list_figures(const Run& run, const ResultFigures* results);
  void ask_results(PanelContext& context, const FigureInfo& figure);
  void ask_dump(PanelContext& context, const FigureInfo& figure);
  void ask_setting(PanelContext& context, const FigureInfo& figure, const SettingFigure& of);
  void take_heads(PanelContext& context);
  /// A head of the dump: its figures, without its tokens.
  struct Known {
    std::shared_ptr<const HeadSummary> summary;
    std::string error;
  };

  Key run_key_, begun_;
  std::vector<FigureInfo> figures_;
  std::uint64_t list_ = 0;
  std::shared_ptr<const ResultFigures> results_;

  std::shared_ptr<const FigureMap> map_;
  Key key_;
  bool from_results_ = false, pending_ = false, waits_ = false;
  Index heads_ = 0;
  std::vector<std::string> problems_, list_problems_;

  Key live_key_;                         // run and window that live_ is of
  std::vector<Known> live_;              // [layers * n_kv]
  Index live_known_ = 0;                 // how many have come in
  std::array<WhatIfHeads, 2> settings_;  // what a SettingView is of, and what is taken off
};

}  // namespace kvreplay::viewer
