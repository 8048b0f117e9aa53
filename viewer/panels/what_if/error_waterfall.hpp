#pragma once

#include "analysis/results/figure_facts.hpp"
#include "viewer/work/what_if.hpp"

#include <array>
#include <optional>

namespace kvreplay::viewer {

/// Whether either, which may be null, is of a cache that makes up for evicted tokens.
bool any_compensated(const std::array<const WhatIf*, 2>& answers);

/// How the errors of the settings A and B come about, as waterfalls on one scale, side by side where `width`
/// pixels have room: what the choice of the tokens costs, then with their weights, then with their values.
/// `rows` are those that the user picked; empty, or where nothing is known on them: the decoding steps, else
/// the window.
void error_waterfalls(const std::array<const WhatIf*, 2>& answers, std::optional<RowSet>& rows, float width);

}  // namespace kvreplay::viewer
