#pragma once

#include "sim/tokens/token_metrics.hpp"
#include "viewer/work/run.hpp"
#include "viewer/work/state.hpp"

#include <string>

// Controls of panels that hold one token metric against another.

namespace kvreplay::viewer {

/// Buttons A and B: which setting of What if is looked at; and their width in pixels.
void choose_setting(AppState& state);
float settings_width();

/// The width in points of a combo box that shows this whole.
float combo_width(const char* text);

/// "exact_remove (squared output)"; the name alone where the unit says nothing.
std::string title_with_unit(TokenMetric metric);

/// A combo box of all metrics by kind, those that are not among `available` greyed with the reason; true
/// where `chosen` changed. `width` in points.
bool choose_metric(const char* label, const Run& run, const MetricSet& available, TokenMetric& chosen,
                   float width);

}  // namespace kvreplay::viewer
