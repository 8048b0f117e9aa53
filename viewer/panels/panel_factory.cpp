#include "viewer/panels/make_panels.hpp"
#include "viewer/panels/panel.hpp"

namespace kvreplay::viewer {

std::unique_ptr<Panel> make_panel(PanelKind kind) {
  switch (kind) {
    case PanelKind::heads:
      return make_head_map_panel();
    case PanelKind::tokens:
      return make_token_map_panel();
    case PanelKind::channels:
      return make_channel_panel();
    case PanelKind::scatter:
      return make_scatter_panel();
    case PanelKind::curves:
      return make_curves_panel();
    case PanelKind::what_if:
      return make_what_if_panel();
    case PanelKind::budgets:
      return make_budgets_panel();
    case PanelKind::decode:
      return make_decode_panel();
    case PanelKind::inspector:
      return make_inspector_panel();
    case PanelKind::jobs:
      return make_jobs_panel();
  }
  return nullptr;
}

}  // namespace kvreplay::viewer
