#include "viewer/panels/make_panels.hpp"
#include "viewer/widgets/controls.hpp"

namespace kvreplay::viewer {
namespace {

class NewPanel final : public Panel {
 public:
  PanelKind kind() const override { return PanelKind::channels; }
  void draw(PanelContext&) override { hint("..."); }
};

}  // namespace

std::unique_ptr<Panel> make_channel_panel() { return std::make_unique<NewPanel>(); }

}  // namespace kvreplay::viewer
