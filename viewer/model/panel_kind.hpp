#pragma once

#include <array>
#include <optional>
#include <string_view>

namespace kvreplay::viewer {

enum class PanelKind { heads, tokens, channels, scatter, curves, what_if, budgets, decode, inspector, jobs };
inline constexpr std::array kPanels = {
    PanelKind::heads,   PanelKind::tokens,  PanelKind::channels, PanelKind::scatter,   PanelKind::curves,
    PanelKind::what_if, PanelKind::budgets, PanelKind::decode,   PanelKind::inspector, PanelKind::jobs};

/// "heads", "tokens", "channels", "scatter", "curves", "what-if", ...: for --panel and sessions.
std::string_view name_of(PanelKind panel);
std::optional<PanelKind> panel_named(std::string_view name);
/// "Head map", "Token map", ...
std::string_view title_of(PanelKind panel);

}  // namespace kvreplay::viewer
