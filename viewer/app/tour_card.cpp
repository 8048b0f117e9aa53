#include "viewer/app/tour_card.hpp"

#include "viewer/gl/ui_context.hpp"
#include "viewer/widgets/controls.hpp"
#include "viewer/widgets/theme.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <imgui_internal.h>
#include <string>

namespace kvreplay::viewer {

void draw_tour(Tour& tour, const Area& at, const Area& window) {
  if (!tour.running()) return;
  const Theme& t = theme();
  const TourStep step = tour.step();
  const float width = std::min(t.px(330), window.width * 0.9F);
  const float wrap = width - 2 * t.px(14);
  const std::string text(step.text);
  // What is pointed at stays in view: the card lies over its lower half.
  const ImGuiStyle& style = ImGui::GetStyle();
  const float height = ImGui::CalcTextSize(text.c_str(), nullptr, false, wrap).y +
                       ImGui::GetTextLineHeightWithSpacing() + 2 * style.ItemSpacing.y +
                       ImGui::GetFrameHeight() + t.px(2 + 24);
  const float x = std::clamp(at.x + (at.width - width) / 2, window.x, window.x + window.width - width);
  const float below =
      at.height < 2 * height ? at.y + at.height + t.px(8) : at.y + at.height - height - t.px(12);
  const float y = std::clamp(below, window.y, std::max(window.y, window.y + window.height - height));
  ImGui::SetNextWindowPos({x, y});
  ImGui::SetNextWindowSize({width, height});
  ImGui::PushStyleVar(ImGuiStyleVar_WindowPadding, {t.px(14), t.px(12)});
  ImGui::PushStyleVar(ImGuiStyleVar_WindowBorderSize, t.px(2));
  ImGui::PushStyleColor(ImGuiCol_Border, t.accent);
  ImGui::PushStyleColor(ImGuiCol_WindowBg, t.raised);
  ImGui::Begin("tour", nullptr,
               ImGuiWindowFlags_NoDecoration | ImGuiWindowFlags_NoMove | ImGuiWindowFlags_NoSavedSettings |
                   ImGuiWindowFlags_NoFocusOnAppearing | ImGuiWindowFlags_NoNav);
  heading(std::string(step.title).c_str());
  ImGui::PushTextWrapPos(ImGui::GetCursorPosX() + wrap);
  ImGui::TextUnformatted(text.c_str());
  ImGui::PopTextWrapPos();
  ImGui::Dummy({0, t.px(2)});
  ImGui::AlignTextToFramePadding();
  dim_text(fmt::format("{} of {}", tour.number() + 1, kTour.size()));
  const bool last = tour.number() + 1 == kTour.size();
  const char *skip = "Skip", *back = "Back", *next = last ? "Done" : "Next";
  float buttons = 0;
  for (const char* name : {skip, back, next})
    buttons += ImGui::CalcTextSize(name).x + 2 * style.FramePadding.x + style.ItemSpacing.x;
  ImGui::SameLine(width - t.px(14) - buttons + style.ItemSpacing.x);
  if (ImGui::Button(skip)) tour.end();
  ImGui::SameLine();
  ImGui::BeginDisabled(tour.number() == 0);
  if (ImGui::Button(back)) tour.back();
  ImGui::EndDisabled();
  ImGui::SameLine();
  if (ImGui::Button(next)) tour.next();
  ImGui::BringWindowToDisplayFront(ImGui::GetCurrentWindow());
  ImGui::End();
  ImGui::PopStyleColor(2);
  ImGui::PopStyleVar(2);
  if (at.width > 0)
    ImGui::GetForegroundDrawList()->AddRect({at.x, at.y}, {at.x + at.width, at.y + at.height}, t.accent,
                                            t.px(5), 0, t.px(2));
}

}  // namespace kvreplay::viewer
