#include "viewer/widgets/plot.hpp"

#include "viewer/gl/ui_context.hpp"
#include "viewer/model/numbers.hpp"
#include "viewer/widgets/controls.hpp"
#include "viewer/widgets/theme.hpp"

#include <algorithm>
#include <cmath>
#include <vector>

namespace kvreplay::viewer {
namespace {

ValueScale scale_of(const PlotAxis& axis, double low, double high) {
  ValueScale scale;
  scale.kind = axis.log ? ScaleKind::log : ScaleKind::linear;
  scale.low = static_cast<float>(low);
  scale.high = static_cast<float>(high);
  return usable(scale);
}

/// The part of an axis that is `zoom` times narrower around the place t.
void zoom_axis(const ValueScale& scale, float t, float zoom, double& low, double& high) {
  low = scale.value_at(t - t / zoom);
  high = scale.value_at(t + (1 - t) / zoom);
}

}  // namespace

Plot::Plot(const char* id, ImVec2 size, const PlotAxis& x, const PlotAxis& y, PlotView& view,
           bool keep_left_drag)
    : x_(view.zoomed ? scale_of(x, view.x_low, view.x_high) : scale_of(x, x.low, x.high)),
      y_(view.zoomed ? scale_of(y, view.y_low, view.y_high) : scale_of(y, y.low, y.high)),
      x_ranks_(x.ranks),
      y_ranks_(y.ranks),
      list_(ImGui::GetWindowDrawList()) {
  const Theme& t = theme();
  const float line_height = ImGui::GetTextLineHeight();
  const ImVec2 at = ImGui::GetCursorScreenPos();
  size.x = std::max(size.x, t.px(90));
  size.y = std::max(size.y, t.px(110));

  ImGui::PushFont(mono_font());
  const float top = t.px(6) + (y.title.empty() ? 0 : line_height),
              bottom = t.px(8) + (x.title.empty() ? 1 : 2) * line_height;
  const int most_y = std::max(2, static_cast<int>((size.y - top - bottom) / t.px(34)));
  std::vector<double> y_ticks = scale_ticks(y_, most_y);
  float label_width = t.px(20);
  for (const double tick : y_ticks)
    label_width = std::max(label_width, ImGui::CalcTextSize(number_text(tick).c_str()).x);
  ImGui::PopFont();

  area_low_ = {std::floor(at.x + label_width + t.px(10)), std::floor(at.y + top)};
  area_high_ = {std::floor(at.x + size.x - t.px(10)), std::floor(at.y + size.y - bottom)};
  area_high_.x = std::max(area_high_.x, area_low_.x + 10);
  area_high_.y = std::max(area_high_.y, area_low_.y + 10);

  ImGui::SetCursorScreenPos(area_low_);
  ImGui::InvisibleButton(id, {area_high_.x - area_low_.x, area_high_.y - area_low_.y},
                         ImGuiButtonFlags_MouseButtonLeft | ImGuiButtonFlags_MouseButtonRight |
                             ImGuiButtonFlags_MouseButtonMiddle);
  ImGui::SetItemAllowOverlap();  // lines that can be dragged lie on it
  hovered_ = ImGui::IsItemHovered();
  const ImGuiIO& io = ImGui::GetIO();
  const float width = area_high_.x - area_low_.x, height = area_high_.y - area_low_.y;
  const bool dragging =
      ImGui::IsItemActive() && (ImGui::IsMouseDragging(ImGuiMouseButton_Middle, 1) ||
                                (!keep_left_drag && ImGui::IsMouseDragging(ImGuiMouseButton_Left, 3)));
  if (hovered_ && io.MouseWheel != 0) {
    const float zoom = std::pow(1.2F, io.MouseWheel);
    const ValueScale old_x = x_, old_y = y_;
    zoom_axis(old_x, turned((io.MousePos.x - area_low_.x) / width, x_ranks_), zoom, view.x_low, view.x_high);
    zoom_axis(old_y, turned((area_high_.y - io.MousePos.y) / height, y_ranks_), zoom, view.y_low,
              view.y_high);
    view.zoomed = true;
  } else if (dragging && (io.MouseDelta.x != 0 || io.MouseDelta.y != 0)) {
    const float dx = (x_ranks_ ? -1 : 1) * io.MouseDelta.x / width,
                dy = (y_ranks_ ? 1 : -1) * io.MouseDelta.y / height;
    view.x_low = x_.value_at(-dx);
    view.x_high = x_.value_at(1 - dx);
    view.y_low = y_.value_at(-dy);
    view.y_high = y_.value_at(1 - dy);
    view.zoomed = true;
  }
  if (hovered_ && ImGui::IsMouseDoubleClicked(ImGuiMouseButton_Left)) view.zoomed = false;
  if (view.zoomed) {
    x_ = scale_of(x, view.x_low, view.x_high);
    y_ = scale_of(y, view.y_low, view.y_high);
  } else {
    x_ = scale_of(x, x.low, x.high);
    y_ = scale_of(y, y.low, y.high);
  }

  list_->AddRectFilled(area_low_, area_high_, t.plot, t.px(2));
  ImGui::PushFont(mono_font());
  y_ticks = scale_ticks(y_, most_y);
  if (y_ranks_) std::reverse(y_ticks.begin(), y_ticks.end());
  float free_above = area_high_.y + 2 * line_height;
  for (const double tick : y_ticks) {
    if (y_ranks_ && tick < 1) continue;
    const float py = std::floor(this->at(0, tick).y) + 0.5F;
    list_->AddLine({area_low_.x, py}, {area_high_.x, py}, t.grid);
    const std::string text = number_text(tick);
    const ImVec2 extent = ImGui::CalcTextSize(text.c_str());
    // Not into the line below, where the other axis has its numbers.
    const float y_top = std::min(py - extent.y / 2, area_high_.y + t.px(3) - extent.y);
    if (y_top + extent.y > free_above) continue;
    list_->AddText({area_low_.x - extent.x - t.px(5), y_top}, t.dim, text.c_str());
    free_above = y_top;
  }
  float free_from = area_low_.x - t.px(20);
  std::vector<double> x_ticks = scale_ticks(x_, std::max(2, static_cast<int>(width / t.px(64))));
  if (x_ranks_) std::reverse(x_ticks.begin(), x_ticks.end());
  for (const double tick : x_ticks) {
    if (x_ranks_ && tick < 1) continue;
    const float px = std::floor(this->at(tick, 0).x) + 0.5F;
    list_->AddLine({px, area_low_.y}, {px, area_high_.y}, t.grid);
    const std::string text = number_text(tick);
    const float half = ImGui::CalcTextSize(text.c_str()).x / 2;
    if (px - half < free_from || px + half > at.x + size.x) continue;
    list_->AddText({px - half, area_high_.y + t.px(3)}, t.dim, text.c_str());
    free_from = px + half + t.px(8);
  }
  ImGui::PopFont();
  const std::string x_title = elided(x.title, width), y_title = elided(y.title, width + t.px(10));
  const float title_width = ImGui::CalcTextSize(x_title.c_str()).x;
  list_->AddText({area_high_.x - title_width, area_high_.y + line_height + t.px(5)}, t.dim, x_title.c_str());
  list_->AddText({area_low_.x, at.y}, t.dim, y_title.c_str());
  list_->PushClipRect(area_low_, area_high_, true);
  ImGui::SetCursorScreenPos({at.x, at.y + size.y});
}

Plot::~Plot() {
  list_->PopClipRect();
  list_->AddRect(area_low_, area_high_, theme().border, theme().px(2));
}

ImVec2 Plot::at(double x, double y) const {
  const auto place = [](const ValueScale& scale, bool ranks, double v) {
    const float t = turned(scale.place(static_cast<float>(v)), ranks);
    return std::isfinite(t) ? std::clamp(t, -8.0F, 9.0F) : (std::isnan(t) ? t : (t > 0 ? 9.0F : 0.0F));
  };
  return {area_low_.x + place(x_, x_ranks_, x) * (area_high_.x - area_low_.x),
          area_high_.y - place(y_, y_ranks_, y) * (area_high_.y - area_low_.y)};
}

double Plot::x_of(float pixel) const {
  return x_.value_at(turned((pixel - area_low_.x) / (area_high_.x - area_low_.x), x_ranks_));
}
double Plot::y_of(float pixel) const {
  return y_.value_at(turned((area_high_.y - pixel) / (area_high_.y - area_low_.y), y_ranks_));
}

void Plot::line(std::span<const double> x, std::span<const double> y, ImU32 color, float thickness) {
  std::vector<ImVec2> run;
  const auto flush = [&] {
    if (run.size() > 1)
      list_->AddPolyline(run.data(), static_cast<int>(run.size()), color, ImDrawFlags_None,
                         theme().px(thickness));
    if (run.size() == 1) list_->AddCircleFilled(run.front(), theme().px(2), color);
    run.clear();
  };
  for (std::size_t i = 0; i < std::min(x.size(), y.size()); ++i) {
    if (std::isnan(x[i]) || std::isnan(y[i])) {
      flush();
      continue;
    }
    const ImVec2 next = at(x[i], y[i]);
    // A line through a sharp corner would lose its thickness there.
    if (const std::size_t n = run.size(); n > 1) {
      const ImVec2 from = run[n - 2], corner = run[n - 1];
      if ((corner.x - from.x) * (next.x - corner.x) + (corner.y - from.y) * (next.y - corner.y) < 0) {
        flush();
        run.push_back(corner);
      }
    }
    run.push_back(next);
    if (run.size() >= 8000) {  // ImGui's indices have 16 bits
      const ImVec2 last = run.back();
      flush();
      run.push_back(last);
    }
  }
  flush();
}

void Plot::vertical(double x, ImU32 color, float thickness) {
  const float px = std::floor(at(x, 0).x) + 0.5F;
  list_->AddLine({px, area_low_.y}, {px, area_high_.y}, color, theme().px(thickness));
}

void Plot::horizontal(double y, ImU32 color, float thickness) {
  const float py = std::floor(at(0, y).y) + 0.5F;
  list_->AddLine({area_low_.x, py}, {area_high_.x, py}, color, theme().px(thickness));
}

bool Plot::drag_vertical(const char* id, double& x, ImU32 color) {
  const float px = std::floor(at(x, 0).x) + 0.5F, grab = theme().px(5);
  const ImVec2 cursor = ImGui::GetCursorScreenPos();
  ImGui::SetCursorScreenPos({px - grab, area_low_.y});
  ImGui::InvisibleButton(id, {2 * grab, area_high_.y - area_low_.y});
  const bool held = ImGui::IsItemActive(), over = ImGui::IsItemHovered() || held;
  ImGui::SetCursorScreenPos(cursor);
  if (over) ImGui::SetMouseCursor(ImGuiMouseCursor_ResizeEW);
  bool moved = false;
  if (held) {
    const double to = x_of(std::clamp(ImGui::GetIO().MousePos.x, area_low_.x, area_high_.x));
    moved = to != x;
    x = to;
  }
  vertical(x, color, over ? 2.0F : 1.2F);
  const float cx = std::floor(at(x, 0).x) + 0.5F;
  list_->AddTriangleFilled({cx - grab, area_low_.y}, {cx + grab, area_low_.y},
                           {cx, area_low_.y + grab * 1.4F}, color);
  return moved;
}

void Plot::label(ImVec2 pixel, const char* text, ImU32 color) {
  const ImVec2 extent = ImGui::CalcTextSize(text);
  pixel.x = std::clamp(pixel.x, area_low_.x + theme().px(2),
                       std::max(area_low_.x + theme().px(2), area_high_.x - extent.x - theme().px(2)));
  pixel.y = std::clamp(pixel.y, area_low_.y, std::max(area_low_.y, area_high_.y - extent.y));
  list_->AddText(pixel, color, text);
}

}  // namespace kvreplay::viewer
