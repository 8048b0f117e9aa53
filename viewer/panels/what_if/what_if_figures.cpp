#include "viewer/panels/what_if/what_if_figures.hpp"

#include "viewer/gl/ui_context.hpp"
#include "viewer/model/numbers.hpp"
#include "viewer/widgets/controls.hpp"
#include "viewer/widgets/theme.hpp"
#include "viewer/work/what_if_compensation.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <span>
#include <string_view>

namespace kvreplay::viewer {
namespace {

std::string whole(double value) {
  return std::isnan(value) ? number_text(value) : fmt::format("{:.0f}", value);
}

/// Of a figure that is taken on either rows the words say which.
WhatIfFigure on_rows(const FigureFacts& facts, RowSet rows, double (*of)(const WhatIf&),
                     std::string (*text)(double)) {
  WhatIfFigure figure{std::string(facts.name),
                      std::string(facts.title),
                      std::string(facts.unit),
                      std::string(facts.what),
                      facts.better,
                      of,
                      text};
  if (!facts.rows.window || !facts.rows.future) return figure;
  figure.name += fmt::format("_{}", name_of(rows));
  figure.title += fmt::format(", {}", name_of(rows));
  figure.about += rows == RowSet::window ? ", on the window's rows" : ", on the decoding steps";
  return figure;
}

template <RowSet rows, double ErrorSplit::*sum>
WhatIfFigure of_split(std::string_view name, std::string_view about) {
  WhatIfFigure figure{
      std::string(name),  std::string(name), std::string(facts_of(EvictionFigure::output_error).unit),
      std::string(about), Better::smaller,   [](const WhatIf& w) { return split_figure(w, rows, sum); },
      number_text};
  figure.name += fmt::format("_{}", name_of(rows));
  return figure;
}

template <RowSet rows>
std::array<WhatIfFigure, 6> of_splits() {
  using C = CompensationFigure;
  const auto name = [](C figure) { return facts_of(figure).name; };
  const auto what = [](C figure) { return facts_of(figure).what; };
  return {of_split<rows, &ErrorSplit::selection>(name(C::selection), what(C::selection)),
          of_split<rows, &ErrorSplit::mass>(name(C::mass), what(C::mass)),
          of_split<rows, &ErrorSplit::values>(name(C::values), what(C::values)),
          of_split<rows, &ErrorSplit::bound>(name(C::bound), what(C::bound)),
          of_split<rows, &ErrorSplit::weighted>("weighted", "selection and mass together"),
          of_split<rows, &ErrorSplit::plain>("plain", "output_error of the kept tokens as they were")};
}

std::array<WhatIfFigure, kShownFigures> shown_figures() {
  using E = EvictionFigure;
  return {{
      {"tokens", "Kept tokens", "tokens", "Tokens of the prompt that stay in the cache", Better::neither,
       [](const WhatIf& w) { return static_cast<double>(w.tokens); }, whole},
      on_rows(
          facts_of(E::output_error), RowSet::window, [](const WhatIf& w) { return w.window.error; },
          number_text),
      on_rows(
          facts_of(E::output_error), RowSet::future, [](const WhatIf& w) { return w.future.error; },
          number_text),
      on_rows(
          facts_of(E::eviction_loss), RowSet::future, [](const WhatIf& w) { return w.eviction_loss; },
          number_text),
      on_rows(
          facts_of(E::optimality_gap), RowSet::future, [](const WhatIf& w) { return w.optimality_gap; },
          number_text),
      on_rows(
          facts_of(E::oracle_recall), RowSet::future, [](const WhatIf& w) { return w.oracle_recall; },
          percent_text),
      on_rows(
          facts_of(E::bytes), RowSet::none, [](const WhatIf& w) { return w.bytes; }, bytes_text),
      {"bytes_saved", "Saved", "", "Share of the whole prompt's bytes that is saved", Better::larger,
       [](const WhatIf& w) { return w.prompt_bytes > 0 ? 1 - w.bytes / w.prompt_bytes : kNone; },
       percent_text},
  }};
}

}  // namespace

bool WhatIfFigure::is_plain() const { return text == static_cast<std::string (*)(double)>(number_text); }
bool WhatIfFigure::is_share() const { return text == percent_text; }

const std::array<WhatIfFigure, kWhatIfFigures>& what_if_figures() {
  static const std::array<WhatIfFigure, kWhatIfFigures> figures = [] {
    std::array<WhatIfFigure, kWhatIfFigures> all;
    auto next = all.begin();
    const auto add = [&](const auto& some) { next = std::copy(some.begin(), some.end(), next); };
    add(shown_figures());
    add(of_splits<RowSet::window>());
    add(of_splits<RowSet::future>());
    add(of_splits<RowSet::reference>());
    const FigureFacts& error = facts_of(CompensationFigure::output_error);
    *next = of_split<RowSet::reference, &ErrorSplit::change_sq>(error.name, error.what);
    return all;
  }();
  return figures;
}

WhatIfFigures figures_of(const WhatIf& answer) {
  WhatIfFigures figures{};
  for (std::size_t i = 0; i < kWhatIfFigures; ++i) figures[i] = what_if_figures()[i].of(answer);
  return figures;
}

void figure_table(const WhatIf* first, const WhatIf* second, bool with_names) {
  const Theme& t = theme();
  const std::span<const WhatIfFigure> figures(what_if_figures().data(), kShownFigures);
  float title_width = 0, number_width = mono_width("88.8 %");
  std::vector<std::array<std::string, 2>> texts;
  for (const WhatIfFigure& figure : figures) {
    const std::array values = {first != nullptr ? figure.of(*first) : kNone,
                               second != nullptr ? figure.of(*second) : kNone};
    const NumberColumn numbers(values);
    auto& pair = texts.emplace_back();
    for (std::size_t s = 0; s < 2; ++s) {
      pair[s] = figure.is_plain() ? numbers.text(values[s]) : figure.text(values[s]);
      number_width = std::max(number_width, mono_width(pair[s]));
    }
    title_width = std::max(title_width, ImGui::CalcTextSize(figure.title.c_str()).x);
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
  for (std::size_t f = 0; f < figures.size(); ++f) {
    const WhatIfFigure& figure = figures[f];
    ImGui::TableNextRow();
    ImGui::TableNextColumn();
    ImGui::PushTextWrapPos(0);
    dim_text(figure.title);
    ImGui::PopTextWrapPos();
    tip(figure.about.c_str());
    const double a = first != nullptr ? figure.of(*first) : kNone;
    const double b = second != nullptr ? figure.of(*second) : kNone;
    // The better of the two stands out.
    const auto color = [&](double mine, double other) {
      if (figure.better == Better::neither || std::isnan(mine) || std::isnan(other) || mine == other)
        return t.text;
      return (mine > other) == (figure.better == Better::smaller) ? t.dim : t.text;
    };
    ImGui::TableNextColumn();
    number(texts[f][0], color(a, b));
    ImGui::TableNextColumn();
    number(texts[f][1], color(b, a));
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
