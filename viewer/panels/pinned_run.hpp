#pragma once

#include "viewer/work/state.hpp"

#include <string>

// What panels that hold the selected run against the pinned one have in common.

namespace kvreplay::viewer {

/// "exact_remove \xE2\x88\x92 that of NAME"
std::string less_than_pinned(const std::string& quantity, const Run& pinned);
/// Beside the last control a check box: whether the difference is shown. Where there can be none, a line says
/// why; nothing where no other run is pinned.
void choose_difference(AppState& state);

}  // namespace kvreplay::viewer
