#include "viewer/panels/findings/finding_strip.hpp"

#include "viewer/gl/ui_context.hpp"
#include "viewer/widgets/controls.hpp"
#include "viewer/widgets/theme.hpp"

#include <fmt/format.h>

#include <algorithm>

namespace kvreplay::viewer {
namespace {

constexpr const char *kBack = "\xE2\x80\xB9", *kOn = "\xE2\x80\xBA";
/// The share of the room above the status line that all lines may take.
constexpr float kMostShare = 0.16F;

}  // namespace

void FindingStrip::look(PanelContext& context) {
  source_.look(context);
  if (shown_ >= source_.list().size()) shown_ = 0;
}

float FindingStrip::line() const { return ImGui::GetTextLineHeight() + theme().px(4); }

std::size_t FindingStrip::lines() const {
  if (source_.waits()) return std::max<std::size_t>(source_.list().size(), 1);
  return source_.most();
}

bool FindingStrip::folded(float room) const {
  if (folded_) return *folded_;
  return static_cast<float>(lines()) * line() + theme().px(14) > kMostShare * room;
}

float FindingStrip::height(float room) const {
  if (!shows_list() && !source_.pending() && !source_.waits()) return 0;
  return static_cast<float>(folded(room) ? 1 : lines()) * line() + theme().px(8) + theme().px(6);
}

/// "Worth knowing" with the triangle that folds, and of folded ones which it is.
void FindingStrip::draw_label(float room) {
  const Theme& t = theme();
  const bool is_folded = folded(room);
  const ImVec2 at = ImGui::GetCursorScreenPos();
  const char* title = "Worth knowing";
  ImGui::PushFont(bold_font());
  const ImVec2 extent = ImGui::CalcTextSize(title);
  ImGui::PopFont();
  const float mark = ImGui::GetTextLineHeight() * 0.5F;
  const float width = mark + t.px(6) + extent.x;
  if (shows_list() && ImGui::InvisibleButton("fold", {width, line()}))
    folded_ = !is_folded;
  else if (!shows_list())
    ImGui::Dummy({width, line()});
  const ImU32 color = shows_list() && ImGui::IsItemHovered() ? t.text : t.dim;
  if (shows_list()) tip(is_folded ? "Show all of them" : "Fold into one line");
  ImDrawList* list = ImGui::GetWindowDrawList();
  const float x = at.x, y = at.y + (line() - mark) / 2, half = mark / 2;
  if (is_folded)
    list->AddTriangleFilled({x, y}, {x + mark, y + half}, {x, y + mark}, color);
  else
    list->AddTriangleFilled({x, y + mark * 0.2F}, {x + mark, y + mark * 0.2F}, {x + half, y + mark}, color);
  list->AddText(bold_font(), bold_font()->FontSize, {x + mark + t.px(6), at.y + (line() - extent.y) / 2},
                color, title);
  if (!is_folded || source_.list().size() < 2) return;
  const std::size_t count = source_.list().size();
  ImGui::SameLine(0, t.px(10));
  ImGui::SetCursorPosY(ImGui::GetCursorPosY() + (line() - ImGui::GetTextLineHeight()) / 2);
  dim_text(fmt::format("{} of {}", shown_ + 1, count));
  ImGui::SameLine(0, t.px(4));
  if (small_button(kBack)) shown_ = (shown_ + count - 1) % count;
  ImGui::SameLine(0, t.px(2));
  if (small_button(kOn)) shown_ = (shown_ + 1) % count;
}

std::optional<PanelKind> FindingStrip::draw_finding(PanelContext& context, std::size_t which, float width) {
  const Theme& t = theme();
  const Finding& finding = source_.list()[which];
  const ImVec2 at = ImGui::GetCursorScreenPos();
  ImGui::PushID(static_cast<int>(which));
  const bool clicked = ImGui::InvisibleButton("finding", {std::max(width, 1.0F), line()});
  const bool over = ImGui::IsItemHovered();
  ImGui::PopID();
  const std::string shown = elided(finding.text, width);
  const ImVec2 place{at.x, at.y + (line() - ImGui::GetTextLineHeight()) / 2};
  ImDrawList* list = ImGui::GetWindowDrawList();
  list->AddText(place, over ? t.accent : t.text, shown.c_str());
  if (over) {
    ImGui::SetMouseCursor(ImGuiMouseCursor_Hand);
    const float under = place.y + ImGui::GetTextLineHeight();
    list->AddLine({place.x, under}, {place.x + ImGui::CalcTextSize(shown.c_str()).x, under}, t.accent);
    tip(finding.text + "\nA click shows where.");
  }
  if (!clicked) return std::nullopt;
  return follow(finding, context.state);
}

/// While there is no finding yet.
void FindingStrip::draw_state(float width) {
  if (source_.waits()) {
    const std::string title = "Look for it";
    if (small_button(title.c_str())) source_.begin();
    ImGui::SameLine();
    const float used = ImGui::CalcTextSize(title.c_str()).x + 4 * ImGui::GetStyle().FramePadding.x;
    const char* why = "takes minutes for a dump of this size: every head is ranked, some policies compared";
    dim_text(elided(why, width - used));
    return;
  }
  if (!source_.pending()) return;
  dim_text(elided(source_.progress(), width - theme().px(40)));
  busy_mark();
}

std::optional<PanelKind> FindingStrip::draw(PanelContext& context, float width, float room) {
  const float whole = height(room);
  if (whole <= 0) return std::nullopt;
  const Theme& t = theme();
  const ImVec2 at = ImGui::GetCursorScreenPos();
  ImGui::GetWindowDrawList()->AddRectFilled(at, {at.x + width, at.y + whole - t.px(6)}, t.panel, t.px(5));
  std::optional<PanelKind> leads;
  ImGui::PushStyleVar(ImGuiStyleVar_ItemSpacing, {t.px(4), 0});
  ImGui::SetCursorScreenPos({at.x + t.px(9), at.y + t.px(4)});
  ImGui::BeginGroup();
  draw_label(room);
  ImGui::SameLine(0, t.px(12));
  const float x = ImGui::GetCursorScreenPos().x, left = at.x + width - x - t.px(9);
  ImGui::EndGroup();
  const auto go_to = [&](std::size_t number) {
    ImGui::SetCursorScreenPos({x, at.y + t.px(4) + static_cast<float>(number) * line()});
  };
  const std::size_t count = source_.list().size();
  if (!shows_list()) {
    ImGui::SetCursorScreenPos({x, at.y + t.px(4) + (line() - ImGui::GetTextLineHeight()) / 2});
    draw_state(left);
  } else if (folded(room)) {
    go_to(0);
    leads = draw_finding(context, shown_, left);
  } else {
    for (std::size_t i = 0; i < count; ++i) {
      go_to(i);
      if (const auto panel = draw_finding(context, i, left)) leads = panel;
    }
  }
  ImGui::PopStyleVar();
  return leads;
}

nlohmann::json FindingStrip::save() const {
  nlohmann::json json = nlohmann::json::object();
  if (folded_) json["folded"] = *folded_;
  return json;
}

void FindingStrip::load(const nlohmann::json& json) {
  if (!json.is_object()) return;
  if (const auto found = json.find("folded"); found != json.end() && found->is_boolean())
    folded_ = found->get<bool>();
}

}  // namespace kvreplay::viewer
