#pragma once

#include "sim/tokens/token_metrics.hpp"
#include "viewer/questions/run.hpp"
#include "viewer/questions/state.hpp"

#include <string>
#include <string_view>

namespace kvreplay::viewer {

// Controls that several panels have.

/// Two buttons side by side: what `value` is, the second where it is true; true where it changed.
bool either(const char* id, std::string_view no, std::string_view yes, bool& value);
/// A quiet text at the height of the controls beside it.
void text_beside(const std::string& text);
/// A figure with a tooltip over its name and its value.
void told_figure(const char* name, const std::string& value, std::string_view about);

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

/// hint() in place of what needs the dump of results: what it would be and why it is not at hand, with a
/// button that asks where it lies.
void hint_no_dump(AppState& state, const std::string& text);

}  // namespace kvreplay::viewer
