#pragma once

#include "viewer/questions/inspector_facts.hpp"

#include <cstddef>
#include <optional>

namespace kvreplay::viewer {

/// Metrics by row: the selected token's, the chosen tokens', and the entries of cells, a column a cell and
/// run. Returns the number of the pin whose button was pressed.
std::optional<std::size_t> draw_inspector_table(const InspectorFacts& facts);

/// The chosen tokens that hold most of the score; a click selects. Returns the position.
std::optional<Index> draw_largest(const InspectorFacts& facts, const std::optional<TokenLabels>& labels);

}  // namespace kvreplay::viewer
