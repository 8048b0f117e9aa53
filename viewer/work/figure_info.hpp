#pragma once

#include "analysis/results/schema.hpp"
#include "viewer/model/value_scale.hpp"
#include "viewer/work/head_figures.hpp"

#include <optional>
#include <string>
#include <vector>

namespace kvreplay::viewer {

/// What a figure of heads is, before any number of it is known.
struct FigureInfo {
  std::string name;                    ///< unique in a run; metrics and agreement as in maps/
  Table table = Table::heads;          ///< whose menu it stands in
  std::vector<std::string> path = {};  ///< where it stands there, the figure itself last
  std::string title = {};              ///< one line
  FigureFacts facts = {};              ///< of no name where the schema does not know the figure
};
/// Lines for a tooltip: the title, what the figure says, its unit and which way is better.
std::string about(const FigureInfo& figure);
ScaleKind scale_kind(FigureScale scale);
/// How bad a value is that lies at `place` of the colour scale (0 its low end, 1 its high one), 0..1: from
/// the end that is better on; the place itself where neither end is.
float badness(Better better, float place);

/// A metric or its agreement, with the last `reserve` candidates reserved and on another `window` than what
/// stands beside it.
FigureInfo figure_info(const HeadFigure& figure, Index reserve = 0, std::optional<Index> window = {});

}  // namespace kvreplay::viewer
