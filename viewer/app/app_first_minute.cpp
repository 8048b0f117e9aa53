#include "viewer/app/app.hpp"
#include "viewer/gl/ui_context.hpp"
#include "viewer/model/layout.hpp"
#include "viewer/model/tour.hpp"
#include "viewer/widgets/controls.hpp"
#include "viewer/widgets/theme.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <imgui_internal.h>
#include <string>
#include <utility>

// What meets who opens the dashboard for the first time: the start page, the findings, the tour, panels for a
// question.

namespace kvreplay::viewer {
namespace {

/// Draws the step's card over `at`, within `window`, and a frame around what it speaks of; moves the tour on
/// as its buttons say. Last in a frame.
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

}  // namespace

void App::draw_start(const Area& area) {
  const std::string opening = opening_.empty() ? std::string() : opening_.back().path.string();
  const auto chosen = start_page_.draw(desk_, area, {options_.sample, recent_, opening, open_error_});
  if (!chosen) return;
  open_error_.clear();
  open(chosen->path);
  if (chosen->sample && !tour_seen_) perform(ActionId::tour);
}

/// What it takes above the panels. One panel that fills the window has it for itself.
float App::draw_findings(const Area& area) {
  finding_area_ = {};
  if (layout_.maximised()) return 0;
  PanelContext context{state_, desk_};
  findings_.look(context);
  const float height = findings_.height(area.height);
  if (height <= 0) return 0;
  finding_area_ = {area.x, area.y, area.width, height};
  ImGui::SetCursorScreenPos({area.x, area.y});
  ImGui::PushID("findings");
  if (const auto panel = findings_.draw(context, area.width, area.height)) show(*panel);
  ImGui::PopID();
  return height;
}

void App::draw_tour() {
  if (!tour_.running() || !state_.run()) return;
  const std::size_t before = tour_.number();
  const ImGuiViewport* view = ImGui::GetMainViewport();
  const Area window{view->Pos.x, view->Pos.y, view->Size.x, view->Size.y};
  const TourStep& step = tour_.step();
  const Area at = step.panel ? area(*step.panel) : step.findings ? finding_area_ : Area{};
  viewer::draw_tour(tour_, at.width > 0 ? at : window, window);
  if (tour_.running() && tour_.number() != before && tour_.step().panel) show(*tour_.step().panel);
}

/// What is asked decides what is seen; the head stays.
void App::arrange(Preset preset) {
  layout_ = layout_for(preset);
  show(kPresets[preset].panel);
  switch (preset) {
    case Preset::bad_heads:
      state_.comparison.score = TokenMetric::attn;
      state_.comparison.reference = TokenMetric::exact_remove;
      return;
    case Preset::policies: {
      WhatIfSettings other;
      other.base = name_of(EvictionBase::h2o);
      state_.setting_a = {};
      state_.setting_b = std::move(other);
      state_.show_b = false;
      state_.show_kept = true;
      return;
    }
    case Preset::channels:
    case Preset::decode:
      return;
  }
}

}  // namespace kvreplay::viewer
