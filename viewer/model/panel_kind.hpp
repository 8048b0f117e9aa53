#pragma once

#include "data/facts_table.hpp"

#include <array>
#include <string>
#include <string_view>

// The panels there are. What makes one is beside its source: make_panel<kind>() (viewer/panels/panel.hpp).

namespace kvreplay::viewer {

enum class PanelKind {
  heads,
  text,
  tokens,
  channels,
  scatter,
  curves,
  what_if,
  budgets,
  decode,
  inspector,
  validation,
  recipes
};

struct PanelFacts {
  PanelKind id;
  std::string_view name;  ///< for --panel and sessions: never changed
  std::string_view title;
  std::string_view question;    ///< that the panel answers
  char key;                     ///< with Ctrl it brings the panel to the front; 0: none
  std::string_view words = {};  ///< others that people look for it by
};

/// In the order of PanelKind, which is that of the menu.
inline constexpr auto kPanels = facts_table<PanelFacts>({
    {PanelKind::heads, "heads", "Head map", "Which heads lose what?", '1', "heatmap loss map layers"},
    {PanelKind::text, "text", "Text", "What of the prompt is lost, and what does it cost?", 0,
     "prompt words"},
    {PanelKind::tokens, "tokens", "Token map", "What does each query see in each token?", '2',
     "heatmap matrix attention"},
    {PanelKind::channels, "channels", "Channel interaction", "Which channels interact, which can be pruned?",
     '3', "prune pruning think"},
    {PanelKind::scatter, "scatter", "Score against exact", "Does a score rank tokens by what they cost?", '4',
     "correlation plot mistakes wrongly evicted"},
    {PanelKind::curves, "curves", "Recall and loss", "What would each score lose at every budget?", '5',
     "plot"},
    {PanelKind::what_if, "what-if", "What if", "What does another policy or budget cost?", '6',
     "policy evict eviction compress compression slider"},
    {PanelKind::budgets, "budgets", "Budgets", "How do methods share one budget between heads?", '7',
     "allocation pyramid adakv"},
    {PanelKind::decode, "decode", "Decode", "How does the error grow over decoding steps?", '8',
     "generate steps spikes"},
    {PanelKind::inspector, "inspector", "Inspector", "What does this token cost, and why?", '9',
     "cell values statistics"},
    {PanelKind::validation, "validation", "Validation",
     "What does the model really lose, and which figure said so?", 0, "kl ground truth"},
    {PanelKind::recipes, "recipes", "Recipes", "Which tokens and bits within so many bytes?", 0,
     "quantize quantization bits bytes"},
});
/// Panels of earlier versions, which sessions may name.
inline constexpr std::array<std::string_view, 2> kFormerPanels = {"wrongly-evicted", "jobs"};

constexpr const PanelFacts& facts_of(PanelKind panel) { return kPanels[panel]; }
constexpr std::string_view name_of(PanelKind panel) { return facts_of(panel).name; }
constexpr std::string_view title_of(PanelKind panel) { return facts_of(panel).title; }

/// "heads, tokens, ...": for messages and help.
inline std::string panel_names() {
  std::string names;
  for (const PanelFacts& panel : kPanels) names.append(names.empty() ? "" : ", ").append(panel.name);
  return names;
}

}  // namespace kvreplay::viewer
