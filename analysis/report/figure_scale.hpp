#pragma once

#include "analysis/drawing/axis.hpp"
#include "analysis/drawing/color_scale.hpp"
#include "analysis/results/figure_facts.hpp"

#include <span>
#include <string>

namespace kvreplay::report {

/// What suits a figure and all its values: [0, 1] for shares, [-1, 1] for correlations,
/// symmetric about 0 for what has signs, logarithmic where positive values span more than a factor of 30.
ColorScale color_scale(FigureScale scale, std::span<const double> values);

/// What suits a figure: all of [0, 1] for shares, no more than [-1, 1] for correlations, 0 included in gains.
Axis figure_axis(std::string label, FigureScale scale, std::span<const double> values);

}  // namespace kvreplay::report
