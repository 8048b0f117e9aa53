#pragma once

#include "analysis/results/schema.hpp"
#include "viewer/questions/ask.hpp"
#include "viewer/questions/head_figures.hpp"
#include "viewer/questions/what_if.hpp"

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace kvreplay::viewer {

/// A figure of a WhatIf.
struct WhatIfFigure {
  std::string name;   ///< the field's word, as in evictions.csv or compensation.csv
  std::string title;  ///< one line for a table
  std::string unit, about;
  Better better;
  double (*of)(const WhatIf&);
  std::string (*text)(double);
  FigureScale scale = FigureScale::linear;
  RowSet rows = RowSet::none;  ///< that it is taken on
  std::optional<RowSet> loss_on =
      {};  ///< in nats, of gradients of these rows: sums over heads mean something

  /// True if the metric is a cost of eviction: an output error or a loss in nats.
  bool is_cost() const;
  bool is_plain() const;  ///< written as number_text() does
  bool is_share() const;  ///< written in per cent; differences are percentage points
};
/// The first are shown in tables and maps; behind them, for exports, loss_head on window and future rows and
/// the split of a compensated cache's error: on window, future and reference rows its terms as in
/// compensation.csv, the sum of the first two, and the error of the kept tokens as they were.
inline constexpr std::size_t kShownFigures = 10, kWhatIfFigures = kShownFigures + 21;
const std::array<WhatIfFigure, kWhatIfFigures>& what_if_figures();
using WhatIfFigures = std::array<double, kWhatIfFigures>;
WhatIfFigures figures_of(const WhatIf& answer);

/// Numbers of shown figures that a dump of such tensors can have: losses need gradients.
std::vector<std::size_t> shown_figures(const Dump& dump);

/// The number of the figure that says what a setting costs a head of the dump, in the unit nearest to what a
/// user loses: nats where there are gradients, else the output error; on the decoding steps where there are
/// any, else on the window.
std::size_t main_cost(const Dump& dump);

/// The settings with the order that they evict in replaced by the exact one: the same budget and pins, but
/// tokens go by what removing each alone costs on the rows that are measured. On decoding steps that is
/// `oracle_exact`, or in nats `oracle_loss`; on the window the score exact_remove.
WhatIfSettings exact_order(const WhatIfSettings& settings, const WhatIfFigure& figure);

/// Under which settings of What if a figure of the Head map is taken.
enum class SettingView {
  a,
  b,
  difference,    ///< B minus A
  beyond_exact,  ///< A minus its exact_order()
};
struct SettingViewFacts {
  SettingView id;
  std::string_view name;   ///< prefix of the metrics' names
  std::string_view label;  ///< on a button
  std::string_view title;  ///< behind a figure's title
  std::string_view meaning;
};
inline constexpr auto kSettingViews = facts_table<SettingViewFacts>({
    {SettingView::a, "setting_a", "A", "of setting A", "Under setting A of What if"},
    {SettingView::b, "setting_b", "B", "of setting B", "Under setting B of What if"},
    {SettingView::difference, "setting_b-a", "B - A", "B less A", "How much more under B than under A"},
    {SettingView::beyond_exact, "setting_a-exact", "A - exact", "A less the exact order",
     "How much more A costs than the same number of tokens kept by their exact cost: what a better score "
     "could save"},
});

/// One of them, as a figure of the Head map.
struct SettingFigure {
  SettingView view = SettingView::a;
  std::size_t figure = 0;
};
constexpr std::string_view name_of(SettingView view) { return kSettingViews[view].name; }
std::string name_of(const SettingFigure& of);
std::vector<FigureInfo> setting_figures(const Dump& dump);
std::optional<SettingFigure> setting_figure_named(std::string_view name);

/// About the pairs of a query and a key that it takes to find what the settings cost in all heads.
double setting_work(const DumpShape& shape, const WhatIfSettings& settings);

// One setting's figures in all heads, as they come in from the background.

/// All heads under one setting. While those of a new setting come in, the old ones' figures stand in.
class WhatIfHeads {
 public:
  /// Begins anew where run or setting are others than before.
  void follow(const Run& run, const WhatIfSettings& settings);
  /// Asks for the next heads that are missing; what has come in is taken.
  void ask(PanelContext& context);

  const WhatIfSettings& settings() const { return settings_; }
  Index heads() const { return std::ssize(heads_); }
  /// Heads answered, those that failed among them.
  Index answered() const { return round_.done(); }
  Index failed() const { return round_.failed(); }
  const std::string& error() const { return round_.error(); }  ///< of the first that failed
  /// Figures under the setting, or the one before; null where neither is known.
  const WhatIfFigures* at(Index head) const;
  /// Figures under this very setting only; null where they are not known.
  const WhatIfFigures* current(Index head) const;
  /// The predicted loss of all heads together, once all of this very setting have answered.
  std::optional<ModelLoss> loss(RowSet rows) const;
  /// Grows whenever a figure changes.
  std::uint64_t version() const { return version_; }

 private:
  Key run_key_;
  WhatIfSettings settings_;
  Index n_kv_ = 0;
  struct Known {
    WhatIfFigures figures;
    PredictedLoss window, future;
  };
  std::vector<std::optional<Known>> heads_;
  BackgroundRound round_;  // of this setting; until it comes to a head, that has the figures of the last one
  std::uint64_t version_ = 0;
};

/// The values of a figure under two settings, of the heads that have it under both; in the order of the
/// heads.
std::array<std::vector<double>, 2> common_values(const std::array<WhatIfHeads, 2>& settings,
                                                 std::size_t figure);

}  // namespace kvreplay::viewer
