#include "viewer/panels/what_if/what_if_figures.hpp"

#include "viewer/gl/ui_context.hpp"
#include "viewer/model/numbers.hpp"
#include "viewer/widgets/controls.hpp"
#include "viewer/widgets/theme.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace kvreplay::viewer {
namespace {

std::string whole(double value) {
  return std::isnan(value) ? number_text(value) : fmt::format("{:.0f}", value);
}
std::string percent(double value) {
  return std::isnan(value) ? number_text(value) : fmt::format("{:.1f} %", 100 * value);
}

}  // namespace

const std::array<WhatIfFigure, kWhatIfFigures>& what_if_figures() {
  static const std::array<WhatIfFigure, kWhatIfFigures> figures{{
      {"tokens",
       "Kept tokens",
       "tokens",
       "Tokens of the prompt that stay in the cache",
       {},
       [](const WhatIf& w) { return static_cast<double>(w.tokens); },
       whole},
      {"output_error_window", "Error, window", "",
       "output_error on the window rows: sum ||o_M - o||\xC2\xB2 / sum ||o||\xC2\xB2, o_M the attention over "
       "what is kept",
       true, [](const WhatIf& w) { return w.window.error; }, number_text},
      {"output_error_future", "Error, future", "",
       "output_error on the decoding steps: sum ||o_M - o||\xC2\xB2 / sum ||o||\xC2\xB2, o_M the attention "
       "over what is kept",
       true, [](const WhatIf& w) { return w.future.error; }, number_text},
      {"eviction_loss", "Eviction loss", "output",
       "Sum of oracle_importance over the evicted tokens (LU-KV eq. 6)", true,
       [](const WhatIf& w) { return w.eviction_loss; }, number_text},
      {"optimality_gap", "Optimality gap", "output",
       "Eviction loss less that of the best set of this size (LU-KV eq. 7)", true,
       [](const WhatIf& w) { return w.optimality_gap; }, number_text},
      {"oracle_recall", "Oracle recall", "",
       "Share of the kept tokens that the best set of this size keeps, too", false,
       [](const WhatIf& w) { return w.oracle_recall; }, percent},
      {"bytes", "Bytes", "bytes", "Keys and values kept, in the dump's number format", true,
       [](const WhatIf& w) { return w.bytes; }, bytes_text},
      {"bytes_saved", "Saved", "", "Share of the whole prompt's bytes that is saved", false,
       [](const WhatIf& w) { return w.prompt_bytes > 0 ? 1 - w.bytes / w.prompt_bytes : kNone; }, percent},
  }};
  return figures;
}

WhatIfFigures figures_of(const WhatIf& answer) {
  WhatIfFigures figures{};
  for (std::size_t i = 0; i < kWhatIfFigures; ++i) figures[i] = what_if_figures()[i].of(answer);
  return figures;
}

void figure_table(const WhatIf* first, const WhatIf* second) {
  const Theme& t = theme();
  const bool wide = ImGui::GetContentRegionAvail().x >= t.px(300);
  ImGui::PushStyleVar(ImGuiStyleVar_CellPadding, {t.px(3), t.px(1)});
  if (!ImGui::BeginTable("figures", wide ? 4 : 3)) return ImGui::PopStyleVar();
  ImGui::TableSetupColumn("figure", ImGuiTableColumnFlags_WidthFixed, t.px(92));
  ImGui::TableSetupColumn("A", ImGuiTableColumnFlags_WidthStretch, 1);
  ImGui::TableSetupColumn("B", ImGuiTableColumnFlags_WidthStretch, 1);
  if (wide) ImGui::TableSetupColumn("B to A", ImGuiTableColumnFlags_WidthFixed, t.px(64));
  const auto number = [&](const std::string& text, ImU32 color) {
    ImGui::PushFont(mono_font());
    const float width = ImGui::CalcTextSize(text.c_str()).x;
    ImGui::SetCursorPosX(ImGui::GetCursorPosX() + std::max(0.0F, ImGui::GetContentRegionAvail().x - width));
    ImGui::PushStyleColor(ImGuiCol_Text, color);
    ImGui::TextUnformatted(text.c_str());
    ImGui::PopStyleColor();
    ImGui::PopFont();
  };
  for (const WhatIfFigure& figure : what_if_figures()) {
    ImGui::TableNextRow();
    ImGui::TableNextColumn();
    dim_text(figure.title);
    tip(figure.about);
    const double a = first != nullptr ? figure.of(*first) : kNone;
    const double b = second != nullptr ? figure.of(*second) : kNone;
    // The better of the two stands out.
    const auto color = [&](double mine, double other) {
      if (!figure.larger_is_worse || std::isnan(mine) || std::isnan(other) || mine == other) return t.text;
      return (mine > other) == *figure.larger_is_worse ? t.dim : t.text;
    };
    ImGui::TableNextColumn();
    number(figure.text(a), color(a, b));
    ImGui::TableNextColumn();
    number(figure.text(b), color(b, a));
    if (!wide) continue;
    ImGui::TableNextColumn();
    if (a != b && a != 0 && !std::isnan(a) && !std::isnan(b))
      number(std::abs(b / a) < 10 ? fmt::format("{:+.1f} %", 100 * (b - a) / std::abs(a))
                                  : fmt::format("x {:.3g}", b / a),
             t.dim);
    tip("B against A");
  }
  ImGui::EndTable();
  ImGui::PopStyleVar();
}

}  // namespace kvreplay::viewer
