#include "viewer/gl/ui_context.hpp"
#include "viewer/model/color_table.hpp"
#include "viewer/model/numbers.hpp"
#include "viewer/panels/channels/channel_parts.hpp"
#include "viewer/panels/curve_lines.hpp"
#include "viewer/panels/metric_controls.hpp"
#include "viewer/widgets/controls.hpp"
#include "viewer/widgets/theme.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <optional>

namespace kvreplay::viewer {

namespace {

/// Decades of a spectrum that are worth an axis.
constexpr double kSpectrumSpan = 1e8;
constexpr float kNameWidth = 84;  // points

struct ErrorColumn {
  const char* title;
  const char* tip;
  bool future, output;
  double of(const ChannelPruning& method) const {
    const ChannelPruning::RowFigures& rows = future ? method.future : method.window;
    return output ? rows.error : rows.relative_reconstruction;
  }
};

constexpr ErrorColumn kColumns[] = {
    {"logits",
     "Reconstruction error on the window's queries: squared change of the logits of the keys that lose "
     "channels, "
     "\xE2\x80\x96QK\xE2\x80\xB2 \xE2\x88\x92 QK\xE2\x80\x96\xC2\xB2 / \xE2\x80\x96QK\xE2\x80\x96\xC2\xB2",
     false, false},
    {"output",
     "Output error on the window's queries: \xCE\xA3\xE2\x80\x96o\xE2\x80\xB2 \xE2\x88\x92 "
     "o\xE2\x80\x96\xC2\xB2 / "
     "\xCE\xA3\xE2\x80\x96o\xE2\x80\x96\xC2\xB2, exact softmax",
     false, true},
    {"logits", "Reconstruction error on the decoding steps, whose queries no method has seen", true, false},
    {"output", "Output error on the decoding steps", true, true},
};

class MethodTable {
 public:
  MethodTable(const ChannelAnswers& answers, std::string& method) : answers_(answers), method_(method) {}

  void draw(const std::vector<const ErrorColumn*>& columns) {
    const Theme& t = theme();
    const float top = ImGui::GetCursorScreenPos().y;
    if (columns.size() > 2) ImGui::Dummy({0, ImGui::GetTextLineHeight() - t.px(3)});
    ImGui::PushStyleVar(ImGuiStyleVar_CellPadding, {t.px(4), t.px(1)});
    if (ImGui::BeginTable("methods", static_cast<int>(columns.size()) + 1)) {
      ImGui::TableSetupColumn("method", ImGuiTableColumnFlags_WidthFixed, t.px(kNameWidth));
      for (std::size_t c = 0; c < columns.size(); ++c)
        ImGui::TableSetupColumn(fmt::format("{}", c).c_str(), ImGuiTableColumnFlags_WidthStretch);
      header(columns);
      for (const ChannelPruning& one : answers_.prunings->methods) row(one, columns);
      for (const std::string& name : answers_.prunings->waiting) waiting_row(name);
      ImGui::EndTable();
    }
    ImGui::PopStyleVar();
    if (columns.size() > 2) groups(top, columns);
  }

 private:
  void header(const std::vector<const ErrorColumn*>& columns) {
    ImGui::TableNextRow();
    for (std::size_t c = 0; c < columns.size(); ++c) {
      ImGui::TableSetColumnIndex(static_cast<int>(c) + 1);
      const float left = ImGui::GetCursorScreenPos().x;
      if (c % 2 == 0) group_left_.push_back(left);
      if (c % 2 == 1) group_right_.push_back(left + ImGui::GetContentRegionAvail().x);
      right_aligned(columns[c]->title, theme().dim);
      tip(columns[c]->tip);
    }
  }

  /// Over both columns of a group, on a line above the table: what rows they are of.
  void groups(float top, const std::vector<const ErrorColumn*>& columns) const {
    const Theme& t = theme();
    ImDrawList* list = ImGui::GetWindowDrawList();
    for (std::size_t g = 0; g < group_right_.size(); ++g) {
      const char* name = columns[2 * g]->future ? "future" : "window";
      const ImVec2 extent = ImGui::CalcTextSize(name);
      const float left = group_left_[g] + t.px(10), right = group_right_[g];
      list->AddText({(left + right - extent.x) / 2, top}, t.dim, name);
      const float middle = std::floor(top + extent.y / 2) + 0.5F, half = extent.x / 2 + t.px(6);
      list->AddLine({left, middle}, {(left + right) / 2 - half, middle}, t.border);
      list->AddLine({(left + right) / 2 + half, middle}, {right, middle}, t.border);
    }
  }

  double least(const ErrorColumn& column) const {
    double best = kNone;
    for (const ChannelPruning& one : answers_.prunings->methods)
      if (const double v = column.of(one); !(v >= best)) best = std::isnan(v) ? best : v;
    return best;
  }

  NumberColumn numbers_of(const ErrorColumn& column) const {
    std::vector<double> values;
    for (const ChannelPruning& one : answers_.prunings->methods) values.push_back(column.of(one));
    return NumberColumn(values);
  }

  bool name_cell(const std::string& name) {
    const Theme& t = theme();
    ImGui::TableNextRow();
    ImGui::TableNextColumn();
    const ImVec2 at = ImGui::GetCursorScreenPos();
    const bool chosen = name == method_;
    if (ImGui::Selectable(name.c_str(), chosen, ImGuiSelectableFlags_SpanAllColumns)) method_ = name;
    if (chosen) {
      // The colour of the marks at the map's axes.
      const float side = ImGui::GetTextLineHeight() * 0.5F;
      const ImVec2 low = {at.x + t.px(kNameWidth) - side, at.y + (ImGui::GetTextLineHeight() - side) / 2};
      ImGui::GetWindowDrawList()->AddRectFilled(low, {low.x + side, low.y + side}, t.warning, t.px(1));
    }
    return ImGui::IsItemHovered();
  }

  void row(const ChannelPruning& one, const std::vector<const ErrorColumn*>& columns) {
    if (name_cell(one.method)) row_tip(one);
    for (const ErrorColumn* column : columns) {
      ImGui::TableNextColumn();
      const double value = column->of(one);
      const bool best = value == least(*column) && !answers_.stale;
      right_aligned_number(numbers_of(*column).text(value), best ? theme().text : theme().dim, best);
    }
    if (!one.lower_bound || one.proven || columns.front()->future) return;
    ImGui::TableNextRow();
    ImGui::TableNextColumn();
    dim_text("  bound");
    tip("No set of as many channels has a smaller error than this on the window's logits");
    ImGui::TableNextColumn();
    right_aligned_number(numbers_of(*columns.front()).text(*one.lower_bound / one.window_logits_sq),
                         theme().faint);
  }

  void row_tip(const ChannelPruning& one) const {
    ImGui::BeginTooltip();
    ImGui::PushTextWrapPos(theme().px(320));
    if (const auto rule = channel_rule_named(one.method)) {
      const std::string_view meaning = kChannelMethods[rule->method].meaning;
      ImGui::TextUnformatted(meaning.data(), meaning.data() + meaning.size());
    }
    if (one.lower_bound)
      dim_text(one.proven ? "Proven: no set of as many channels does better on the window's logits."
                          : "The best set found. No set has an error below the bound.");
    ImGui::PopTextWrapPos();
    if (!std::isnan(one.channels)) figure("channels pruned", fmt::format("{:.4g}", one.channels));
    figure("prompt's cache", bytes_text(one.bytes));
    ImGui::EndTooltip();
  }

  void waiting_row(const std::string& name) {
    name_cell(name);
    if (answers_.pending) {
      ImGui::TableNextColumn();
      right_aligned_number("\xE2\x80\xA6", theme().faint);
    }
  }

  const ChannelAnswers& answers_;
  std::string& method_;
  std::vector<float> group_left_, group_right_;
};

/// With so many columns of numbers.
float table_width(int columns) {
  constexpr float kPadding = 9;  // points, of a column
  return theme().px(kNameWidth + kPadding) +
         static_cast<float>(columns) * (theme().px(kPadding) + mono_width("0.00000"));
}

/// True if there is room for errors on both sets of rows.
bool has_room_for_both() { return ImGui::GetContentRegionAvail().x >= table_width(4); }

}  // namespace

float least_table_width() { return table_width(2); }

void draw_channel_table(const ChannelAnswers& answers, std::string& method, bool& future,
                        const std::string& beside, bool fixed) {
  const auto& methods = answers.prunings->methods;
  const bool has_future = std::any_of(methods.begin(), methods.end(),
                                      [](const ChannelPruning& m) { return !std::isnan(m.future.error); });
  const bool both = has_future && has_room_for_both();
  std::vector<const ErrorColumn*> columns;
  if (!both && has_future && fixed) {
    dim_text(fmt::format("on the queries of the {}{}{}", future ? "future" : "window",
                         beside.empty() ? "" : ", ", beside));
  } else if (!both && has_future) {
    either("rows", "Window", "Future", future);
    ImGui::SameLine();
    dim_text(beside);
  }
  for (const ErrorColumn& column : kColumns)
    if (both || column.future == (future && has_future)) columns.push_back(&column);
  MethodTable(answers, method).draw(columns);
}

void edit_ratio(const ChannelAnswers& answers, Semantics semantics, double& ratio) {
  if (!answers.ratios.empty()) {
    std::vector<std::string> texts;
    for (const double one : answers.ratios) texts.push_back(fmt::format("ratio {:g}", one));
    const std::vector<std::string_view> names(texts.begin(), texts.end());
    const double at = answers.prunings->ratio;
    auto chosen = static_cast<std::size_t>(std::find(answers.ratios.begin(), answers.ratios.end(), at) -
                                           answers.ratios.begin());
    if (choose("##ratio", names, chosen, ImGui::GetContentRegionAvail().x / theme().scale))
      ratio = answers.ratios[chosen];
    tip("The pruning ratios that the run computed");
    return;
  }
  const Index d = answers.head != nullptr ? answers.head->parts.front().basis.scores.logits.rows() : 0;
  const Index asked = pruned_channels(ratio, d, semantics);
  const bool roomy = has_room_for_both();
  const std::string text = roomy ? fmt::format("{:.3g} % = {} of {}", 100 * ratio, asked, d)
                                 : fmt::format("{:.3g} %", 100 * ratio);
  ImGui::PushFont(mono_font());
  const float width = ImGui::CalcTextSize(roomy ? "88.5 % = 888 of 888" : "88.5 %").x;
  ImGui::PopFont();
  auto value = static_cast<float>(ratio);
  ImGui::SetNextItemWidth(std::max(theme().px(50), ImGui::GetContentRegionAvail().x - width - theme().px(6)));
  if (ImGui::SliderFloat("##ratio", &value, 0, static_cast<float>(kMostChannelRatio), "",
                         ImGuiSliderFlags_AlwaysClamp | ImGuiSliderFlags_NoRoundToFormat))
    ratio = std::clamp(std::round(static_cast<double>(value) * 200) / 200, 0.0, kMostChannelRatio);
  tip("Pruning ratio: the share of key channels that are set to 0");
  ImGui::SameLine(0, theme().px(6));
  ImGui::AlignTextToFramePadding();
  mono_text(text);
}

void draw_spectrum(const Vector<double>& spectrum, ImVec2 size, PlotView& view) {
  if (spectrum.size() == 0) return;
  const double most = spectrum.maxCoeff();
  double least = most;
  for (const double v : spectrum)
    if (v > most / kSpectrumSpan) least = std::min(least, v);
  std::vector<double> rank(spectrum.size());
  std::iota(rank.begin(), rank.end(), 1.0);
  Plot plot("spectrum", size, {"rank", false, 1, std::max(2.0, rank.back())},
            {"eigenvalue, squared logit", true, least / 1.5, most * 1.5}, view);
  plot.line(rank, {spectrum.data(), rank.size()}, theme().series[0]);
  if (!plot.hovered()) return;
  const auto at = std::clamp<Index>(std::lround(plot.x_of(ImGui::GetMousePos().x)), 1, spectrum.size());
  plot.list()->AddCircleFilled(plot.at(static_cast<double>(at), spectrum[at - 1]), theme().px(3),
                               theme().series[0]);
  ImGui::BeginTooltip();
  figure("rank", fmt::format("{}", at));
  figure("eigenvalue", number_text(spectrum[at - 1]));
  figure("share up to here", number_text(spectrum.head(at).sum() / spectrum.sum()));
  ImGui::EndTooltip();
}

void draw_queries(const ChannelHead& head, Index query_head, ImVec2 size, PlotView& view) {
  const auto g = static_cast<std::size_t>(query_head);
  struct Rows {
    const char* name;
    const ChannelMoments* moments;
    ImU32 color;
  };
  std::vector<Rows> all;
  const Theme& t = theme();
  if (g < head.window.size()) all.push_back({"window", &head.window[g], t.series[0]});
  if (g < head.future.size()) all.push_back({"decoding", &head.future[g], t.series[1]});
  if (all.empty()) return;
  double low = 0, high = 0;
  for (const Rows& rows : all) {
    low = std::min(low, (rows.moments->mean - rows.moments->deviation).minCoeff());
    high = std::max(high, (rows.moments->mean + rows.moments->deviation).maxCoeff());
  }
  const Index d = all.front().moments->mean.size();
  std::vector<double> channel(d);
  std::iota(channel.begin(), channel.end(), 0.0);
  const double room = std::max(0.04 * (high - low), 1e-30);
  Plot plot(
      "queries", size, {"channel of the query", false, 0, std::max(1.0, channel.back())},
      {fmt::format("query head {}: mean \u00b1 spread of q", query_head), false, low - room, high + room},
      view);
  plot.horizontal(0, faded(t.faint, 0.6F));
  for (const Rows& rows : all) {
    const Vector<double> above = rows.moments->mean + rows.moments->deviation,
                         below = rows.moments->mean - rows.moments->deviation;
    for (const Vector<double>* const edge : {&above, &below})
      draw_curve(plot, channel, {edge->data(), channel.size()}, rows.color, Stroke::dotted, 1.0F);
    plot.line(channel, {rows.moments->mean.data(), channel.size()}, rows.color);
  }
  float x = plot.low_corner().x + t.px(8);
  for (const Rows& rows : all) {
    plot.label({x, plot.low_corner().y + t.px(4)}, rows.name, rows.color);
    x += ImGui::CalcTextSize(rows.name).x + t.px(12);
  }
  if (!plot.hovered()) return;
  const auto at = std::clamp<Index>(std::lround(plot.x_of(ImGui::GetMousePos().x)), 0, d - 1);
  plot.vertical(static_cast<double>(at), faded(t.faint, 0.8F));
  ImGui::BeginTooltip();
  figure("channel", fmt::format("{}", at));
  for (const Rows& rows : all)
    figure(rows.name, fmt::format("{} \u00b1 {}", number_text(rows.moments->mean[at]),
                                  number_text(rows.moments->deviation[at])));
  ImGui::EndTooltip();
}

}  // namespace kvreplay::viewer
