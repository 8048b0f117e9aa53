#include "viewer/panels/text/text_legend.hpp"

#include "viewer/gl/ui_context.hpp"
#include "viewer/panels/metric_controls.hpp"
#include "viewer/panels/text/text_view.hpp"
#include "viewer/widgets/controls.hpp"
#include "viewer/widgets/theme.hpp"

#include <fmt/format.h>

#include <cmath>

namespace kvreplay::viewer {
namespace {

void draw_bar(const TextLegend& legend) {
  const Theme& t = theme();
  const bool ranks = legend.by_rank;
  mono_text(ranks ? fmt::format("rank {}", legend.l) : number_text(static_cast<double>(legend.scale->low)));
  ImGui::SameLine(0, t.px(5));
  const ImVec2 at = ImGui::GetCursorScreenPos();
  const float width = std::floor(t.px(90)), height = ImGui::GetTextLineHeight();
  for (int i = 0; i < 32; ++i)
    ImGui::GetWindowDrawList()->AddRectFilled(
        {at.x + width * static_cast<float>(i) / 32, at.y + 1},
        {at.x + width * static_cast<float>(i + 1) / 32, at.y + height - 1},
        tint_color(static_cast<std::uint8_t>(i * 255 / 31)));
  ImGui::GetWindowDrawList()->AddRect({at.x, at.y + 1}, {at.x + width, at.y + height - 1}, t.border);
  ImGui::Dummy({width, height});
  tip(fmt::format("{}: {}", title_with_unit(legend.metric),
                  ranks ? "by rank among the prompt's tokens"
                  : legend.scale->kind == ScaleKind::log
                      ? "the stronger the colour, the larger; a logarithmic scale, which begins at the "
                        "median of the tokens"
                      : "the stronger the colour, the larger"));
  ImGui::SameLine(0, t.px(5));
  mono_text(ranks ? "1" : number_text(static_cast<double>(legend.scale->high)));
  if (ranks || legend.scale->kind != ScaleKind::log) return;
  ImGui::SameLine(0, t.px(5));
  dim_text("log");
}

/// "struck" as evicted tokens look, and what that means.
void draw_struck(const TextLegend& legend) {
  const Theme& t = theme();
  const char* sample = "struck";
  const std::string meaning =
      legend.heads > 1
          ? fmt::format("evicted by {}, the fainter the more of {} heads", legend.setting, legend.heads)
      : legend.kept ? fmt::format("evicted by {}: {} of {} stay", legend.setting, *legend.kept, legend.l)
                    : fmt::format("evicted by {}", legend.setting);
  flow(ImGui::CalcTextSize(sample).x + ImGui::CalcTextSize(meaning.c_str()).x + t.px(20));
  const ImVec2 at = ImGui::GetCursorScreenPos();
  dim_text(sample);
  const float middle = std::floor(at.y + ImGui::GetTextLineHeight() * 0.56F);
  ImGui::GetWindowDrawList()->AddRectFilled(
      {at.x, middle}, {ImGui::GetItemRectMax().x, middle + std::max(t.px(1), 1.0F)}, t.dim);
  ImGui::SameLine(0, t.px(5));
  dim_text(elided(meaning, ImGui::GetContentRegionAvail().x));
}

}  // namespace

void draw_legend(const TextLegend& legend) {
  if (legend.scale == nullptr)
    ImGui::Dummy({0, ImGui::GetTextLineHeight()});
  else
    draw_bar(legend);
  if (legend.heads > 0) draw_struck(legend);
}

}  // namespace kvreplay::viewer
