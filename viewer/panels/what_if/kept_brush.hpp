#pragma once

#include "viewer/work/state.hpp"

namespace kvreplay::viewer {

/// Where tokens are chosen: buttons for what is to become of them in the setting in view, whatever its policy
/// says.
void draw_kept_brush(AppState& state);

}  // namespace kvreplay::viewer
