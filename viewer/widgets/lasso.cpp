#include "viewer/widgets/lasso.hpp"

#include "viewer/widgets/theme.hpp"

#include <cmath>
#include <utility>

namespace kvreplay::viewer {

Lasso::Taken Lasso::take(const Plot& plot) {
  const Theme& t = theme();
  const ImVec2 mouse = ImGui::GetMousePos();
  Taken taken;
  if (plot.hovered() && ImGui::IsMouseClicked(ImGuiMouseButton_Left)) {
    pressed_ = true;
    corners_ = {mouse};
  }
  if (pressed_ && ImGui::IsMouseDown(ImGuiMouseButton_Left)) {
    if (std::hypot(mouse.x - corners_.back().x, mouse.y - corners_.back().y) >= t.px(3))
      corners_.push_back(mouse);
  } else if (std::exchange(pressed_, false)) {
    taken.clicked = corners_.size() < 3;
    if (!taken.clicked) taken.polygon = corners_;
    corners_.clear();
  }
  if (drawing()) {
    plot.list()->AddPolyline(corners_.data(), static_cast<int>(corners_.size()), t.accent, ImDrawFlags_None,
                             t.px(1.5F));
    plot.list()->AddLine(corners_.back(), corners_.front(), faded(t.accent, 0.4F), t.px(1));
  }
  return taken;
}

}  // namespace kvreplay::viewer
