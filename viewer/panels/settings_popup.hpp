#pragma once

#include "analysis/eviction/eviction_options.hpp"

#include <optional>
#include <string>

// Settings that most people leave alone: behind a button, which names those that were changed.

namespace kvreplay::viewer {

/// The button, beside the last control where there is room. While its popup is open: true, with a table of
/// names and controls begun; end_settings() ends it. `changed` is what the button says, "recent 16, sinks 4";
/// empty: that nothing was changed.
bool settings_button(const std::string& changed);
/// Begins the row of an option; the control that follows is as wide as its cell.
void settings_row(const OptionFacts& option);
void end_settings();

/// A row's control for pooling, or the policy's own, which `own` names.
void edit_pooling(std::optional<Pooling>& pool, const std::string& own);

}  // namespace kvreplay::viewer
