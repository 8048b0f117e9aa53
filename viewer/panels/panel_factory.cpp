#include "viewer/panels/panel.hpp"

#include <utility>

namespace kvreplay::viewer {

Panels make_panels() {
  return []<std::size_t... i>(std::index_sequence<i...>) {
    return Panels{make_panel<static_cast<PanelKind>(i)>()...};
  }
  (std::make_index_sequence<kPanels.size()>());
}

}  // namespace kvreplay::viewer
