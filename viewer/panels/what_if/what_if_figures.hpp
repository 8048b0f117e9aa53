#pragma once

#include "viewer/work/what_if.hpp"

#include <array>
#include <cstddef>
#include <optional>
#include <string>

namespace kvreplay::viewer {

/// A figure of a WhatIf.
struct WhatIfFigure {
  const char* name;   ///< the field's word, as in evictions.csv
  const char* title;  ///< one line for a table
  const char* unit;
  const char* about;
  std::optional<bool> larger_is_worse;
  double (*of)(const WhatIf&);
  std::string (*text)(double);
};
inline constexpr std::size_t kWhatIfFigures = 8;
const std::array<WhatIfFigure, kWhatIfFigures>& what_if_figures();
using WhatIfFigures = std::array<double, kWhatIfFigures>;
WhatIfFigures figures_of(const WhatIf& answer);

/// A table of all figures under A and B, the better of two in a stronger colour; either may be null. With
/// room for it, a column says how B differs from A.
void figure_table(const WhatIf* a, const WhatIf* b);

}  // namespace kvreplay::viewer
