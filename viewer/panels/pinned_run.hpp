#pragma once

#include "viewer/panels/curve_lines.hpp"
#include "viewer/questions/state.hpp"

#include <string>
#include <string_view>
#include <vector>

// Common parts of panels that compare the selected run with the pinned one.

namespace kvreplay::viewer {

/// "exact_remove \xE2\x88\x92 that of NAME"
std::string less_than_pinned(const std::string& quantity, const Run& pinned);
/// Check box beside the last control: shows the difference. If there can be no difference, a line gives the
/// reason. Draws nothing if no other run is pinned.
void choose_difference(AppState& state);
/// A check box, as that of choose_difference(), for the pinned run beside the selected one.
void choose_beside(AppState& state);

/// The pinned run's curve beside one of this stroke: another one, thinner and fainter.
Stroke pinned_stroke(Stroke stroke);
inline constexpr float kPinnedThickness = 1.1F, kPinnedOpacity = 0.85F;
/// A line that says which the pinned run's curves are.
void draw_pinned_key(const Run& pinned);
/// A line that says which the pinned run's points are: discs in this colour.
void draw_pinned_key(const Run& pinned, ImU32 color);

/// A figure's settings, and where it shows a pinned run, a line that says `how` and where that lies: "less
/// PATH", "beside PATH".
std::vector<std::string> with_pinned(std::vector<std::string> settings, AppState& state, bool shown,
                                     std::string_view how);

/// "0.0771 (+0.0014)": the pinned run's figure, and how much more the selected run's is.
std::string pinned_text(double own, double pinned);

}  // namespace kvreplay::viewer
