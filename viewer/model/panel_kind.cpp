#include "viewer/model/panel_kind.hpp"

namespace kvreplay::viewer {
namespace {

struct Names {
  std::string_view name, title;
};

Names names_of(PanelKind panel) {
  switch (panel) {
    case PanelKind::heads:
      return {"heads", "Head map"};
    case PanelKind::tokens:
      return {"tokens", "Token map"};
    case PanelKind::channels:
      return {"channels", "Channel interaction"};
    case PanelKind::scatter:
      return {"scatter", "Score against exact"};
    case PanelKind::curves:
      return {"curves", "Recall and loss"};
    case PanelKind::what_if:
      return {"what-if", "What if"};
    case PanelKind::budgets:
      return {"budgets", "Budgets"};
    case PanelKind::decode:
      return {"decode", "Decode"};
    case PanelKind::inspector:
      return {"inspector", "Inspector"};
    case PanelKind::jobs:
      return {"jobs", "Jobs"};
  }
  return {};
}

}  // namespace

std::string_view name_of(PanelKind panel) { return names_of(panel).name; }

std::optional<PanelKind> panel_named(std::string_view name) {
  for (const PanelKind panel : kPanels)
    if (name_of(panel) == name) return panel;
  return std::nullopt;
}

std::string_view title_of(PanelKind panel) { return names_of(panel).title; }

}  // namespace kvreplay::viewer
