#include "viewer/panels/what_if/figure_table.hpp"

#include "viewer/gl/ui_context.hpp"
#include "viewer/model/numbers.hpp"
#include "viewer/widgets/controls.hpp"
#include "viewer/widgets/theme.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace kvreplay::viewer {
namespace {

/// The losses of all heads that `figure` is the one head's of.
void add_model_lines(const WhatIfFigure& figure, const std::array<WhatIfHeads, 2>& heads,
                     std::vector<FigureLine>& lines) {
  const auto of = [&](double (ModelLoss::*loss)() const) {
    std::array<double, 2> values{};
    for (std::size_t s = 0; s < 2; ++s) {
      const auto found = heads[s].loss(*figure.loss_on);
      values[s] = found ? ((*found).*loss)() : kNone;
    }
    return values;
  };
  const auto about = [&](const FigureFacts& facts, const char* what) {
    return fmt::format("{} ({}, {}), on the same rows; known once all heads are computed", what, facts.name,
                       facts.unit);
  };
  lines.push_back({&figure, "loss_step, all heads",
                   about(kLossStep,
                         "What the model is predicted to lose: with what all heads and layers do in a row "
                         "added up before it is squared"),
                   of(&ModelLoss::step)});
  lines.push_back(
      {&figure, "loss_layer, all heads",
       about(kLossLayer,
             "Of all heads and layers, with what the rows and heads of a layer do added up before "
             "it is squared"),
       of(&ModelLoss::layer)});
  lines.push_back({&figure, "loss_row, all heads",
                   about(kLossRow,
                         "The sum of all heads' own losses, which leaves out that what they do adds up or "
                         "cancels"),
                   of(&ModelLoss::row)});
}

}  // namespace

std::vector<FigureLine> figure_lines(const Dump& dump, const std::array<const WhatIf*, 2>& answers,
                                     const std::array<WhatIfHeads, 2>* heads) {
  std::vector<FigureLine> lines;
  const std::vector<std::size_t> shown = shown_figures(dump);
  for (std::size_t n = 0; n < shown.size(); ++n) {
    const WhatIfFigure& figure = what_if_figures()[shown[n]];
    const auto value = [&](std::size_t s) { return answers[s] != nullptr ? figure.of(*answers[s]) : kNone; };
    lines.push_back({&figure, figure.title, figure.about, {value(0), value(1)}});
    // Of the decoding steps, where there are any.
    const bool last_loss =
        figure.loss_on && (n + 1 == shown.size() || !what_if_figures()[shown[n + 1]].loss_on);
    if (heads != nullptr && last_loss) add_model_lines(figure, *heads, lines);
  }
  return lines;
}

void figure_table(std::span<const FigureLine> lines, bool with_names) {
  const Theme& t = theme();
  float title_width = 0, number_width = mono_width("88.8 %");
  std::vector<std::array<std::string, 2>> texts;
  for (const FigureLine& line : lines) {
    const NumberColumn numbers(line.values);
    auto& pair = texts.emplace_back();
    for (std::size_t s = 0; s < 2; ++s) {
      pair[s] = line.figure->is_plain() ? numbers.text(line.values[s]) : line.figure->text(line.values[s]);
      number_width = std::max(number_width, mono_width(pair[s]));
    }
    title_width = std::max(title_width, ImGui::CalcTextSize(line.title.c_str()).x);
  }
  number_width += t.px(6);
  const float room = ImGui::GetContentRegionAvail().x;
  const bool wide = room >= title_width + 2 * number_width + mono_width("+88.8 points") + t.px(6);
  // Rather a title than a number gives way: it goes on in a second line.
  title_width = std::clamp(room - 2 * number_width - t.px(6), t.px(40), title_width);
  ImGui::PushStyleVar(ImGuiStyleVar_CellPadding, {t.px(3), t.px(1)});
  if (!ImGui::BeginTable("figures", wide ? 4 : 3)) return ImGui::PopStyleVar();
  ImGui::TableSetupColumn("figure", ImGuiTableColumnFlags_WidthFixed, title_width);
  ImGui::TableSetupColumn("A", ImGuiTableColumnFlags_WidthStretch, 1);
  ImGui::TableSetupColumn("B", ImGuiTableColumnFlags_WidthStretch, 1);
  if (wide) ImGui::TableSetupColumn("B to A", ImGuiTableColumnFlags_WidthFixed, mono_width("+88.8 points"));
  const auto number = [&](const std::string& text, ImU32 color) {
    ImGui::PushFont(mono_font());
    right_aligned(text, color);
    ImGui::PopFont();
  };
  if (with_names) {
    ImGui::TableNextRow();
    ImGui::TableNextColumn();
    for (const char* name : {"A", "B"}) {
      ImGui::TableNextColumn();
      right_aligned(name, t.dim);
    }
  }
  for (std::size_t n = 0; n < lines.size(); ++n) {
    const WhatIfFigure& figure = *lines[n].figure;
    ImGui::TableNextRow();
    ImGui::TableNextColumn();
    ImGui::PushTextWrapPos(0);
    dim_text(lines[n].title);
    ImGui::PopTextWrapPos();
    tip(lines[n].about);
    const auto [a, b] = lines[n].values;
    // The better of the two stands out.
    const auto color = [&](double mine, double other) {
      if (figure.better == Better::neither || std::isnan(mine) || std::isnan(other) || mine == other)
        return t.text;
      return (mine > other) == (figure.better == Better::smaller) ? t.dim : t.text;
    };
    ImGui::TableNextColumn();
    number(texts[n][0], color(a, b));
    ImGui::TableNextColumn();
    number(texts[n][1], color(b, a));
    if (!wide) continue;
    ImGui::TableNextColumn();
    if (a == b || std::isnan(a) || std::isnan(b)) continue;
    if (figure.is_share())
      number(points_text(b - a), t.dim);
    else if (a != 0)
      number(std::abs(b / a) < 10 ? fmt::format("{:+.1f} %", 100 * (b - a) / std::abs(a))
                                  : fmt::format("x {:.3g}", b / a),
             t.dim);
    tip("B against A");
  }
  ImGui::EndTable();
  ImGui::PopStyleVar();
}

}  // namespace kvreplay::viewer
