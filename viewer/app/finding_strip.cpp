#include "viewer/app/app.hpp"
#include "viewer/gl/ui_context.hpp"
#include "viewer/widgets/controls.hpp"
#include "viewer/widgets/theme.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <string>

namespace kvreplay::viewer {
namespace {

constexpr const char *kBack = "\xE2\x80\xB9", *kOn = "\xE2\x80\xBA";
constexpr const char* kTitle = "Worth knowing";
/// The share of the room that all findings may take, a line each and with those that take two.
constexpr float kMostShare = 0.16F, kMostWrappedShare = 0.22F;
constexpr std::size_t kMostLines = 2;
/// Sentences that are not known yet may be so long: letters.
constexpr float kLongSentence = 190;

}  // namespace

void FindingStrip::look(PanelContext& context) {
  source_.look(context);
  of_dump_ = context.state.run() != nullptr && context.state.run()->results() == nullptr;
  if (shown_ >= source_.list().size()) shown_ = 0;
}

float FindingStrip::line() { return ImGui::GetTextLineHeight() + theme().px(4); }
float FindingStrip::more_line() { return ImGui::GetTextLineHeight(); }

float FindingStrip::label_width() const {
  ImGui::PushFont(bold_font());
  const float title = ImGui::CalcTextSize(kTitle).x;
  ImGui::PopFont();
  return ImGui::GetTextLineHeight() * 0.5F + theme().px(6) + title;
}

float FindingStrip::text_width(float width) const { return width - label_width() - theme().px(9 + 12 + 9); }

float FindingStrip::finding_height(std::size_t which, float width, std::size_t most_lines) const {
  const std::size_t lines = wrapped(source_.list()[which].text, width, most_lines).size();
  return line() + static_cast<float>(lines - 1) * more_line();
}

float FindingStrip::list_height(float width, std::size_t most_lines) const {
  const std::size_t known = source_.list().size();
  const bool wraps = most_lines > 1 && width < kLongSentence * ImGui::CalcTextSize("n").x;
  const float to_come = of_dump_ ? line() + (wraps ? more_line() : 0) : 0;
  const std::size_t all = source_.waits() ? std::max<std::size_t>(known, 1) : std::max(known, source_.most());
  float height = 0;
  for (std::size_t i = 0; i < all; ++i)
    height += std::max(i < known ? finding_height(i, width, most_lines) : line(), to_come);
  return height;
}

std::size_t FindingStrip::lines_each(ImVec2 room) const {
  if (!shows_list() && source_.waits()) return 1;
  const float wrapped = list_height(text_width(room.x), kMostLines) + theme().px(14);
  return wrapped <= kMostWrappedShare * room.y ? kMostLines : 1;
}

bool FindingStrip::folded(ImVec2 room) const {
  if (folded_) return *folded_;
  if (lines_each(room) > 1) return false;
  return list_height(text_width(room.x), 1) + theme().px(14) > kMostShare * room.y;
}

float FindingStrip::height(ImVec2 room) const {
  if (!shows_list() && !source_.pending() && !source_.waits()) return 0;
  const float list = folded(room) ? line() : list_height(text_width(room.x), lines_each(room));
  return std::max(list, line()) + theme().px(8) + theme().px(6);
}

/// "Worth knowing" with the triangle that folds, and of folded ones which it is.
void FindingStrip::draw_label(bool is_folded) {
  const Theme& t = theme();
  const ImVec2 at = ImGui::GetCursorScreenPos();
  const float mark = ImGui::GetTextLineHeight() * 0.5F, width = label_width();
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
  list->AddText(bold_font(), bold_font()->FontSize,
                {x + mark + t.px(6), at.y + (line() - bold_font()->FontSize) / 2}, color, kTitle);
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

std::optional<PanelKind> FindingStrip::draw_finding(PanelContext& context, std::size_t which, float width,
                                                    std::size_t most_lines) {
  const Theme& t = theme();
  const Finding& finding = source_.list()[which];
  const ImVec2 at = ImGui::GetCursorScreenPos();
  ImGui::PushID(static_cast<int>(which));
  const bool clicked =
      ImGui::InvisibleButton("finding", {std::max(width, 1.0F), finding_height(which, width, most_lines)});
  const bool over = ImGui::IsItemHovered();
  ImGui::PopID();
  ImVec2 place{at.x, at.y + (line() - ImGui::GetTextLineHeight()) / 2};
  ImDrawList* list = ImGui::GetWindowDrawList();
  for (const std::string& shown : wrapped(finding.text, width, most_lines)) {
    list->AddText(place, over ? t.accent : t.text, shown.c_str());
    place.y += more_line();
    if (over)
      list->AddLine({place.x, place.y}, {place.x + ImGui::CalcTextSize(shown.c_str()).x, place.y}, t.accent);
  }
  if (over) {
    ImGui::SetMouseCursor(ImGuiMouseCursor_Hand);
    tip(finding.text + "\nA click shows where.");
  }
  if (!clicked) return std::nullopt;
  return follow(finding, context.state);
}

/// Room that was reserved for longer or more findings is spread between the existing ones.
std::optional<PanelKind> FindingStrip::draw_list(PanelContext& context, ImVec2 room, float height) {
  const ImVec2 at = ImGui::GetCursorScreenPos();
  const float width = text_width(room.x);
  const std::size_t count = source_.list().size(), lines = lines_each(room);
  float taken = 0;
  for (std::size_t i = 0; i < count; ++i) taken += finding_height(i, width, lines);
  const bool all = !source_.pending() && !source_.waits();
  const float part = all ? std::floor(std::max(height - taken, 0.0F) / static_cast<float>(count)) : 0.0F;
  std::optional<PanelKind> leads;
  float y = at.y + std::floor(part / 2);
  for (std::size_t i = 0; i < count; ++i) {
    ImGui::SetCursorScreenPos({at.x, y});
    if (const auto panel = draw_finding(context, i, width, lines)) leads = panel;
    y += finding_height(i, width, lines) + part;
  }
  return leads;
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

std::optional<PanelKind> FindingStrip::draw(PanelContext& context, ImVec2 room) {
  const float whole = height(room);
  if (whole <= 0) return std::nullopt;
  const Theme& t = theme();
  const bool is_folded = folded(room);
  const ImVec2 at = ImGui::GetCursorScreenPos();
  ImGui::GetWindowDrawList()->AddRectFilled(at, {at.x + room.x, at.y + whole - t.px(6)}, t.panel, t.px(5));
  std::optional<PanelKind> leads;
  ImGui::PushStyleVar(ImGuiStyleVar_ItemSpacing, {t.px(4), 0});
  ImGui::SetCursorScreenPos({at.x + t.px(9), at.y + t.px(4)});
  ImGui::BeginGroup();
  draw_label(is_folded);
  ImGui::SameLine(0, t.px(12));
  const float x = ImGui::GetCursorScreenPos().x, left = at.x + room.x - x - t.px(9);
  ImGui::EndGroup();
  ImGui::SetCursorScreenPos({x, at.y + t.px(4)});
  if (!shows_list()) {
    ImGui::SetCursorScreenPos({x, at.y + t.px(4) + (line() - ImGui::GetTextLineHeight()) / 2});
    draw_state(left);
  } else if (is_folded) {
    leads = draw_finding(context, shown_, left, 1);
  } else {
    leads = draw_list(context, room, whole - t.px(8 + 6));
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
