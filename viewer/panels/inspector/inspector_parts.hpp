#pragma once

#include "data/dump.hpp"
#include "viewer/questions/inspector_facts.hpp"
#include "viewer/questions/token_card.hpp"

#include <cstddef>
#include <optional>

namespace kvreplay::viewer {

/// Metrics by row: the selected token's, the chosen tokens', and the entries of cells, a column a cell and
/// run. Returns the number of the pin whose button was pressed.
std::optional<std::size_t> draw_inspector_table(const InspectorFacts& facts);

/// The chosen tokens that hold most of the score; a click selects. Returns the position.
std::optional<Index> draw_largest(const InspectorFacts& facts, const std::optional<TokenLabels>& labels);

/// Draws the card from top to bottom over what is left of the panel's width; a click on a query or a token
/// in it selects that.
void draw_token_card(AppState& state, const TokenCard& card, const std::optional<TokenLabels>& labels);

}  // namespace kvreplay::viewer
