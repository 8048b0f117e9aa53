// The panels in their places, and the tabs above them.

#include "analysis/options/option.hpp"
#include "viewer/app/app.hpp"
#include "viewer/gl/ui_context.hpp"
#include "viewer/widgets/controls.hpp"
#include "viewer/widgets/theme.hpp"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <string>
#include <vector>

namespace kvreplay::viewer {
namespace {

/// In pixels: what every panel can be used in.
Extent least_panel() { return {std::ceil(theme().px(252)), std::ceil(theme().px(186))}; }

}  // namespace

void App::draw_panels(const Area& area) {
  const float gap = theme().px(6);
  const Extent least = least_panel();
  for (const Layout::Splitter& splitter : layout_.splitters(area, gap, least)) {
    ImGui::SetCursorScreenPos({splitter.area.x, splitter.area.y});
    ImGui::PushID(splitter.split);
    ImGui::InvisibleButton("splitter",
                           {std::max(splitter.area.width, 1.0F), std::max(splitter.area.height, 1.0F)});
    if (ImGui::IsItemHovered() || ImGui::IsItemActive())
      ImGui::SetMouseCursor(splitter.vertical ? ImGuiMouseCursor_ResizeEW : ImGuiMouseCursor_ResizeNS);
    const ImVec2 moved = ImGui::GetIO().MouseDelta;
    if (ImGui::IsItemActive() && (splitter.vertical ? moved.x : moved.y) != 0)
      layout_.drag(splitter.split, splitter.vertical ? moved.x : moved.y, area, gap, least);
    ImGui::PopID();
  }
  for (const Layout::Slot& slot : layout_.slots(area, gap, least)) draw_slot(slot);
}

void App::draw_slot(const Layout::Slot& slot) {
  const Theme& t = theme();
  const PanelKind kind = slot.panels[slot.front];
  const Area& a = slot.area;
  ImGui::GetWindowDrawList()->AddRectFilled({a.x, a.y}, {a.x + a.width, a.y + a.height}, t.panel, t.px(5));
  ImGui::SetCursorScreenPos({a.x, a.y});
  ImGui::PushID(slot.leaf);
  ImGui::BeginChild("slot", {a.width, a.height}, false,
                    ImGuiWindowFlags_NoScrollbar | ImGuiWindowFlags_NoScrollWithMouse);
  const float tabs = ImGui::GetTextLineHeight() + t.px(12);
  draw_tabs(slot, tabs);
  ImGui::SetCursorPos({t.px(9), tabs + t.px(4)});
  ImGui::BeginChild("panel", {a.width - t.px(18), a.height - tabs - t.px(12)}, false);
  if (ImGui::IsWindowHovered(ImGuiHoveredFlags_ChildWindows |
                             ImGuiHoveredFlags_AllowWhenBlockedByActiveItem) &&
      (ImGui::IsMouseClicked(ImGuiMouseButton_Left) || ImGui::GetIO().MouseWheel != 0))
    focused_ = kind;
  PanelContext context{state_, desk_};
  ImGui::PushID(static_cast<int>(kind));
  panel(kind).draw(context);
  ImGui::PopID();
  ImGui::EndChild();
  ImGui::EndChild();
  ImGui::PopID();
  areas_[static_cast<std::size_t>(kind)] = a;
}

/// The tabs that there is room for, the one in front in any case; the others in a menu after them.
void App::draw_tabs(const Layout::Slot& slot, float height) {
  const Theme& t = theme();
  const float right = slot.area.x + slot.area.width - t.px(36);  // of which the button at the end has some
  std::vector<float> widths;
  ImGui::PushFont(bold_font());
  for (const PanelKind kind : slot.panels)
    widths.push_back(ImGui::CalcTextSize(title_of(kind).data()).x + t.px(16));
  ImGui::PopFont();
  float x = slot.area.x + t.px(8);
  const float all = std::accumulate(widths.begin(), widths.end(), 0.0F), menu = t.px(26);
  const bool fit = x + all <= right;
  float room = right - x - (fit ? 0 : menu) - widths[slot.front];
  std::vector<PanelKind> hidden;
  for (std::size_t i = 0; i < slot.panels.size(); ++i) {
    if (i != slot.front && widths[i] > room) {
      hidden.push_back(slot.panels[i]);
      continue;
    }
    if (i != slot.front) room -= widths[i];
    draw_tab(slot, i, x, std::min(widths[i], right - x - (fit ? 0 : menu)), height);
    x += widths[i];
  }
  if (!hidden.empty()) draw_hidden_tabs(hidden, {x, slot.area.y}, {menu, height});
  draw_maximise(slot, x + (fit ? 0 : menu), height);
}

void App::draw_tab(const Layout::Slot& slot, std::size_t which, float x, float width, float height) {
  const Theme& t = theme();
  const PanelKind kind = slot.panels[which];
  ImGui::PushFont(bold_font());
  const std::string title = elided(std::string(title_of(kind)), width - t.px(6));
  const ImVec2 extent = ImGui::CalcTextSize(title.c_str());
  ImGui::PopFont();
  ImGui::SetCursorScreenPos({x, slot.area.y});
  ImGui::PushID(static_cast<int>(kind));
  if (ImGui::InvisibleButton("tab", {extent.x + t.px(10), height})) show(kind);
  const bool over = ImGui::IsItemHovered();
  if (ImGui::BeginPopupContextItem("move")) {
    ImGui::TextDisabled("Move this panel to where there is");
    for (const Layout::Slot& other : layout_.slots({0, 0, 1000, 1000}, 0, {1, 1}))
      if (std::find(slot.panels.begin(), slot.panels.end(), other.panels[other.front]) == slot.panels.end() &&
          ImGui::MenuItem(std::string(title_of(other.panels[other.front])).c_str()))
        layout_.move(kind, other.leaf);
    ImGui::EndPopup();
  }
  tip(facts_of(kind).question);
  ImGui::PopID();
  const bool front = which == slot.front;
  ImDrawList* list = ImGui::GetWindowDrawList();
  ImGui::PushFont(bold_font());
  list->AddText({x + t.px(5), slot.area.y + (height - extent.y) / 2}, tab_ink(t, front, over), title.c_str());
  ImGui::PopFont();
  if (front)
    list->AddRectFilled({x + t.px(5), slot.area.y + height - t.px(3)},
                        {x + t.px(5) + extent.x, slot.area.y + height - t.px(1)},
                        kind == focused_ ? t.accent : t.border);
}

void App::draw_hidden_tabs(const std::vector<PanelKind>& hidden, ImVec2 at, ImVec2 size) {
  const Theme& t = theme();
  ImGui::SetCursorScreenPos(at);
  if (ImGui::InvisibleButton("hidden tabs", size)) ImGui::OpenPopup("tabs");
  const ImU32 ink = tab_ink(t, false, ImGui::IsItemHovered());
  tip(counted(std::ssize(hidden), "more panel"));
  const ImVec2 middle = {at.x + size.x / 2, at.y + size.y / 2};
  ImGui::GetWindowDrawList()->AddTriangleFilled({middle.x - t.px(4), middle.y - t.px(2.5F)},
                                                {middle.x + t.px(4), middle.y - t.px(2.5F)},
                                                {middle.x, middle.y + t.px(3)}, ink);
  if (!ImGui::BeginPopup("tabs")) return;
  for (const PanelKind kind : hidden)
    if (ImGui::MenuItem(std::string(title_of(kind)).c_str())) show(kind);
  ImGui::EndPopup();
}

/// At the right end: a frame that fills the window, or the small one again.
void App::draw_maximise(const Layout::Slot& slot, float free_from, float height) {
  const Theme& t = theme();
  ImDrawList* list = ImGui::GetWindowDrawList();
  const float side = t.px(11);
  const ImVec2 at = {slot.area.x + slot.area.width - side - t.px(10), slot.area.y + (height - side) / 2};
  if (at.x < free_from) return;
  ImGui::SetCursorScreenPos({at.x - t.px(4), at.y - t.px(4)});
  if (ImGui::InvisibleButton("maximise", {side + t.px(8), side + t.px(8)})) {
    focused_ = slot.panels[slot.front];
    perform(ActionId::maximise);
  }
  const ImU32 color = ImGui::IsItemHovered() ? t.text : t.faint;
  tip(layout_.maximised() ? "Back to all panels" : "Fill the window with this panel");
  list->AddRect(at, {at.x + side, at.y + side}, color, 0, 0, t.px(1.3F));
  if (layout_.maximised())
    list->AddRectFilled({at.x + side * 0.25F, at.y + side * 0.25F},
                        {at.x + side * 0.75F, at.y + side * 0.75F}, color);
}

}  // namespace kvreplay::viewer
