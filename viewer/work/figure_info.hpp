#pragma once

#include "viewer/model/value_scale.hpp"
#include "viewer/work/head_figures.hpp"

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace kvreplay::viewer {

enum class FigureGroup { metrics, agreement, evictions, decode, budgets, channels };
std::string_view name_of(FigureGroup group);

/// What a figure of heads is, before any number of it is known.
struct FigureInfo {
  std::string name;  ///< unique in a run; metrics and agreement as in maps/
  FigureGroup group = FigureGroup::metrics;
  std::vector<std::string> path;        ///< where it stands in its group's menu, the figure itself last
  std::string title;                    ///< one line
  std::string unit;                     ///< what it is measured in
  std::optional<bool> larger_is_worse;  ///< empty where neither end is better
  ScaleKind scale = ScaleKind::linear;  ///< that suits it
};

/// A metric or its agreement; the last `reserve` candidates took no part in the comparison.
FigureInfo figure_info(const HeadFigure& figure, Index reserve = 0);

/// What is known of the figures that evictions.csv, decode.csv, budgets.csv and channels.csv name.
struct TableFigure {
  std::string_view name, unit;
  std::optional<bool> larger_is_worse;
  ScaleKind scale = ScaleKind::linear;
};
/// Null for a name that is none of them.
const TableFigure* table_figure_named(std::string_view name);

}  // namespace kvreplay::viewer
