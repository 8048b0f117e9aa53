#pragma once

#include "viewer/questions/state.hpp"

#include <array>
#include <imgui.h>
#include <string>

namespace kvreplay::viewer {

/// The colours of the settings A and B, wherever they are told apart.
std::array<ImU32, 2> setting_colors();
/// "snapkv+joint, kept 179 tokens" or "snapkv+joint, kept 20 %", with what is not the policy's own behind it.
std::string summary_of(const WhatIfSettings& settings);

/// Controls of two settings side by side, a row a choice; an unset choice shows the policy's own. `more`:
/// those that most policies have an own value for, too. A run with a dump must be open.
void edit_settings(AppState& state, bool more);
/// Where tokens are chosen: buttons for what is to become of them in the setting in view, whatever its policy
/// says.
void draw_kept_brush(AppState& state);

}  // namespace kvreplay::viewer
