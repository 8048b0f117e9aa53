#pragma once

#include "data/dump.hpp"
#include "viewer/questions/token_card.hpp"

#include <optional>

namespace kvreplay::viewer {

/// Draws the card from top to bottom over what is left of the panel's width; a click on a query or a token
/// in it selects that.
void draw_token_card(AppState& state, const TokenCard& card, const std::optional<TokenLabels>& labels);

}  // namespace kvreplay::viewer
