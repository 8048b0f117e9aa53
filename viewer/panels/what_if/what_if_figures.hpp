#pragma once

#include "analysis/results/schema.hpp"
#include "viewer/work/what_if.hpp"

#include <array>
#include <cstddef>
#include <string>

namespace kvreplay::viewer {

/// A figure of a WhatIf.
struct WhatIfFigure {
  std::string name;   ///< the field's word, as in evictions.csv or compensation.csv
  std::string title;  ///< one line for a table
  std::string unit, about;
  Better better;
  double (*of)(const WhatIf&);
  std::string (*text)(double);

  bool is_plain() const;  ///< written as number_text() does
  bool is_share() const;  ///< written in per cent; differences are percentage points
};
/// The first are shown in tables and maps; behind them, for exports, the split of a compensated cache's
/// error: on window, future and reference rows its terms as in compensation.csv, the sum of the first two,
/// and the error of the kept tokens as they were.
inline constexpr std::size_t kShownFigures = 8, kWhatIfFigures = kShownFigures + 19;
const std::array<WhatIfFigure, kWhatIfFigures>& what_if_figures();
using WhatIfFigures = std::array<double, kWhatIfFigures>;
WhatIfFigures figures_of(const WhatIf& answer);

/// A table of the figures that are shown, under A and B, the better of two in a stronger colour; either may
/// be null. With room for it, a column says how B differs from A; `with_names`: A and B stand
/// above theirs.
void figure_table(const WhatIf* a, const WhatIf* b, bool with_names);

}  // namespace kvreplay::viewer
