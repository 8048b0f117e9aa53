#pragma once

#include "analysis/results/schema.hpp"
#include "viewer/work/figure_info.hpp"
#include "viewer/work/what_if.hpp"

#include <array>
#include <cstddef>
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
  std::optional<RowSet> loss_on =
      {};  ///< in nats, of gradients of these rows: sums over heads mean something

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

/// Of those that are shown the ones that a dump of such tensors can have: losses need gradients.
std::vector<std::size_t> shown_figures(const Dump& dump);

/// One of them under setting A (0) or B (1) of What if, as a figure of the Head map.
struct SettingFigure {
  std::size_t setting = 0, figure = 0;
};
std::vector<FigureInfo> setting_figures(const Dump& dump);
std::optional<SettingFigure> setting_figure_named(std::string_view name);

}  // namespace kvreplay::viewer
