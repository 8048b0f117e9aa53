#pragma once

#include "viewer/work/state.hpp"

#include <string>

namespace kvreplay::viewer {

/// hint() in place of what needs the dump of results: what it would be and why it is not at hand, with a
/// button that asks where it lies.
void hint_no_dump(AppState& state, const std::string& text);

}  // namespace kvreplay::viewer
