#pragma once

#include "analysis/report/sections.hpp"

#include <optional>

namespace kvreplay::report {

/// The interaction matrices of every head as heatmaps with what each selection prunes; nothing where the
/// folder has none.
std::optional<Figure> interaction_figure(const Tables& tables);

}  // namespace kvreplay::report
