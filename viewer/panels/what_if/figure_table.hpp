#pragma once

#include "viewer/panels/what_if_heads.hpp"
#include "viewer/work/what_if_figures.hpp"

#include <array>
#include <span>
#include <string>
#include <vector>

namespace kvreplay::viewer {

/// A figure under A and B; nan where it is not known.
struct FigureLine {
  const WhatIfFigure* figure = nullptr;  ///< how it is written, and which is better
  std::string title, about;
  std::array<double, 2> values{};
};
/// Those of one head that its dump can have; either answer may be null. With `heads`, the losses of all heads
/// together behind its own.
std::vector<FigureLine> figure_lines(const Dump& dump, const std::array<const WhatIf*, 2>& answers,
                                     const std::array<WhatIfHeads, 2>* heads);

/// A table of the lines under A and B, the better of two in a stronger colour. With room for it, a column
/// says how B differs from A; `with_names`: A and B stand above theirs.
void figure_table(std::span<const FigureLine> lines, bool with_names);

}  // namespace kvreplay::viewer
