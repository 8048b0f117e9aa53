#pragma once

#include "viewer/panels/curve_lines.hpp"
#include "viewer/panels/curves/curve_modes.hpp"

#include <optional>

// The curves panel's table, which is its legend too.

namespace kvreplay::viewer {

struct CurveLook {
  ImU32 color;
  Stroke stroke;
};
/// A metric looks the same in every head and whatever else is shown.
CurveLook look_of(TokenMetric score, TokenMetric reference);

/// A row a score with its value at budget k, best first, hidden ones last. A click changes `hidden`;
/// `pointed` is set to the score under the mouse.
void draw_curve_rows(const CurveFigure& figure, Index k, MetricSet& hidden,
                     std::optional<TokenMetric>& pointed);

}  // namespace kvreplay::viewer
