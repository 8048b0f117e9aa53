#pragma once

#include "data/facts_table.hpp"

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
  wrongly_evicted,
  jobs,
  validation
};

/// The parts of the window on a first start.
enum class Place { left, left_foot, middle, middle_foot, right };

struct PanelFacts {
  PanelKind id;
  std::string_view name;  ///< for --panel and sessions: never changed
  std::string_view title;
  std::string_view question;  ///< that the panel answers
  char key;                   ///< with Ctrl it brings the panel to the front; 0: none
  Place place;
  int tab;  ///< among those of its place, from the left; the first is in front
};

/// In the order of PanelKind, which is that of the menu.
inline constexpr auto kPanels = facts_table<PanelFacts>({
    {PanelKind::heads, "heads", "Head map", "Which heads are hit worst, by any figure?", '1', Place::left, 0},
    {PanelKind::text, "text", "Text", "What of the prompt is lost, and what does it cost?", 0, Place::middle,
     0},
    {PanelKind::tokens, "tokens", "Token map", "What does each query see in each token?", '2', Place::middle,
     1},
    {PanelKind::channels, "channels", "Channel interaction", "Which channels interact, which can be pruned?",
     '3', Place::middle, 2},
    {PanelKind::scatter, "scatter", "Score against exact", "Does a score rank tokens by what they cost?", '4',
     Place::middle_foot, 1},
    {PanelKind::curves, "curves", "Recall and loss", "What would each score lose at every budget?", '5',
     Place::middle_foot, 0},
    {PanelKind::what_if, "what-if", "What if", "What does another policy or budget cost?", '6', Place::right,
     0},
    {PanelKind::budgets, "budgets", "Budgets", "How do methods share one budget between heads?", '7',
     Place::middle_foot, 2},
    {PanelKind::decode, "decode", "Decode", "How does the error grow over decoding steps?", '8',
     Place::middle_foot, 3},
    {PanelKind::inspector, "inspector", "Inspector", "What is in this cell exactly, in every run?", '9',
     Place::left_foot, 0},
    {PanelKind::wrongly_evicted, "wrongly-evicted", "Wrongly evicted",
     "Which tokens are lost that should have been kept?", 0, Place::left_foot, 1},
    {PanelKind::jobs, "jobs", "Jobs", "What is being computed, and what failed?", '0', Place::left_foot, 2},
    {PanelKind::validation, "validation", "Validation",
     "What does the model really lose, and which figure said so?", 0, Place::middle_foot, 4},
});
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
