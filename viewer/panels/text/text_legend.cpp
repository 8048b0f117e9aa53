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

/// The bar's ends and what it means.
struct BarText {
  std::string low, high, meaning;
  bool log = false;
};

BarText bar_text(const TextLegend& legend) {
  const std::string title = title_with_unit(legend.metric);
  const auto number = [](float value) { return number_text(static_cast<double>(value)); };
  const bool log = legend.scale->kind == ScaleKind::log;
  if (!legend.less.empty()) {
    const float most = legend.scale->high;
    const std::string how = log ? "; a logarithmic scale, which begins at the median magnitude" : "";
    if (!legend.by_rank)
      return {number(-most), fmt::format("+{}", number(most)),
              fmt::format("{} less that of {}: the one colour where it is larger here, the other where it "
                          "is smaller{}",
                          title, legend.less, how),
              log};
    return {fmt::format("down {:.0f}", most), fmt::format("up {:.0f}", most),
            fmt::format("Places by {} among the prompt's tokens that a token is further up, or down, than in "
                        "{}{}",
                        name_of(legend.metric), legend.less, how),
            log};
  }
  if (legend.by_rank)
    return {fmt::format("rank {}", legend.l), "1",
            fmt::format("{}: by rank among the prompt's tokens", title)};
  return {number(legend.scale->low), number(legend.scale->high),
          fmt::format("{}: the stronger the colour, the larger{}", title,
                      log ? "; a logarithmic scale, which begins at the median of the tokens" : ""),
          log};
}

void draw_bar(const TextLegend& legend) {
  const Theme& t = theme();
  const BarText text = bar_text(legend);
  mono_text(text.low);
  ImGui::SameLine(0, t.px(5));
  const ImVec2 at = ImGui::GetCursorScreenPos();
  const float width = std::floor(t.px(90)), height = ImGui::GetTextLineHeight();
  constexpr int kCells = 32, kLast = kCells - 1;
  for (int i = 0; i < kCells; ++i)
    ImGui::GetWindowDrawList()->AddRectFilled(
        {at.x + width * static_cast<float>(i) / kCells, at.y + 1},
        {at.x + width * static_cast<float>(i + 1) / kCells, at.y + height - 1},
        tint_color(legend.less.empty() ? i * 255 / kLast : (2 * i - kLast) * 255 / kLast));
  ImGui::GetWindowDrawList()->AddRect({at.x, at.y + 1}, {at.x + width, at.y + height - 1}, t.border);
  ImGui::Dummy({width, height});
  tip(text.meaning);
  ImGui::SameLine(0, t.px(5));
  mono_text(text.high);
  if (text.log) {
    ImGui::SameLine(0, t.px(5));
    dim_text("log");
  }
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
