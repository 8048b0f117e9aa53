// What meets who opens the dashboard for the first time: the start page, the findings, the tour, panels for a
// question.

#include "viewer/app/app.hpp"
#include "viewer/app/tour_card.hpp"

#include <utility>

namespace kvreplay::viewer {

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
