#include "viewer/panels/channels/channel_table.hpp"

#include "viewer/gl/ui_context.hpp"
#include "viewer/model/color_table.hpp"
#include "viewer/model/numbers.hpp"
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

/// More boundaries than these do not part the matrix, they hatch it.
constexpr std::size_t kMostLines = 3;

/// The number of each channel's pair, by lower channel; -1 where it is not rotated.
std::vector<Index> pair_numbers(const std::vector<Index>& partner, Index& pairs) {
  std::vector<Index> number(partner.size(), -1);
  pairs = 0;
  for (std::size_t c = 0; c < partner.size(); ++c) {
    const Index other = partner[c];
    if (other < 0 || other >= std::ssize(partner)) continue;
    number[c] = other > static_cast<Index>(c) ? pairs++ : number[other];
  }
  return number;
}

/// The channels before which another part of the pairs begins: the first of each, the second, none.
std::vector<Index> part_starts(const std::vector<Index>& partner) {
  const auto part = [&](std::size_t c) {
    return partner[c] < 0 ? 2 : partner[c] > static_cast<Index>(c) ? 0 : 1;
  };
  std::vector<Index> starts;
  for (std::size_t c = 1; c < partner.size(); ++c)
    if (part(c) != part(c - 1)) starts.push_back(static_cast<Index>(c));
  return starts;
}

Matrix<double> normalised(const Matrix<double>& matrix) {
  Matrix<double> values = matrix;
  for (Index r = 0; r < matrix.rows(); ++r)
    for (Index c = 0; c < matrix.cols(); ++c) {
      const double scale = std::sqrt(matrix(r, r)) * std::sqrt(matrix(c, c));
      values(r, c) = scale > 0 ? matrix(r, c) / scale : kNone;
    }
  return values;
}

}  // namespace

void ChannelMatrix::show(const Key& key, const Matrix<double>& matrix, const Matrix<double>* minus,
                         bool normalised) {
  if (key == key_) return;
  key_ = key;
  tiles_.clear();
  values_ = normalised ? viewer::normalised(matrix) : matrix;
  if (minus != nullptr) {
    const Matrix<double> less = normalised ? viewer::normalised(*minus) : *minus;
    for (Index r = 0; r < d(); ++r)
      for (Index c = 0; c < d(); ++c) values_(r, c) = difference_of(less(r, c), values_(r, c));
  }
  largest_ = 0;
  for (Index r = 0; r < d(); ++r)
    for (Index c = 0; c < d(); ++c)
      if (r != c && std::isfinite(values_(r, c))) largest_ = std::max(largest_, std::abs(values_(r, c)));
}

std::shared_ptr<const Tile> ChannelMatrix::tile(const TileKey& key) {
  auto& tile = tiles_[key];
  if (tile == nullptr) tile = std::make_shared<const Tile>(tile_of_values({d(), d()}, key, values_));
  return tile;
}

void draw_rotation_pairs(const HeatmapView& map, const std::vector<Index>& partner) {
  const Theme& t = theme();
  const ImVec2 low = map.map_low(), high = map.map_high();
  const float side = t.px(3), gap = t.px(1.5F);
  Index pairs = 0;
  const std::vector<Index> number = pair_numbers(partner, pairs);
  ImDrawList* list = ImGui::GetWindowDrawList();
  list->PushClipRect({low.x, low.y - side - gap}, {high.x + side + gap, high.y}, true);
  for (std::size_t c = 0; c < number.size(); ++c) {
    if (number[c] < 0) continue;
    const float place = pairs > 1 ? static_cast<float>(number[c]) / static_cast<float>(pairs - 1) : 0.5F;
    const ImU32 color = to_imgui(color_of(ColorMap::viridis, 0.1F + 0.85F * place));
    const auto at = static_cast<double>(c);
    const ImVec2 begin = map.pixel_of(at, at), end = map.pixel_of(at + 1, at + 1);
    if (end.x > low.x && begin.x < high.x)
      list->AddRectFilled({std::max(begin.x, low.x), low.y - gap - side},
                          {std::min(end.x, high.x), low.y - gap}, color);
    if (end.y > low.y && begin.y < high.y)
      list->AddRectFilled({high.x + gap, std::max(begin.y, low.y)},
                          {high.x + gap + side, std::min(end.y, high.y)}, color);
  }
  list->PopClipRect();
  const std::vector<Index> starts = part_starts(partner);
  if (starts.size() > kMostLines) return;
  const ImVec2 first = map.pixel_of(0, 0);
  const auto d = static_cast<double>(partner.size());
  const ImVec2 last = map.pixel_of(d, d);
  list->PushClipRect(low, high, true);
  for (const Index start : starts) {
    const ImVec2 at = map.pixel_of(static_cast<double>(start), static_cast<double>(start));
    const ImU32 color = IM_COL32(90, 96, 105, 150);
    list->AddLine({std::floor(at.x) + 0.5F, first.y}, {std::floor(at.x) + 0.5F, last.y}, color);
    list->AddLine({first.x, std::floor(at.y) + 0.5F}, {last.x, std::floor(at.y) + 0.5F}, color);
  }
  list->PopClipRect();
}

void dim_channels(const HeatmapView& map, const ChannelSet& pruned) {
  ImDrawList* list = ImGui::GetWindowDrawList();
  list->PushClipRect(map.map_low(), map.map_high(), true);
  const ImU32 veil = faded(theme().panel, 0.7F);
  const auto d = static_cast<double>(pruned.size());
  const ImVec2 first = map.pixel_of(0, 0), last = map.pixel_of(d, d);
  // Rows in full, columns between them: no cell twice.
  double kept_from = 0;
  const auto columns_of_kept = [&](double to) {
    if (to <= kept_from) return;
    for (std::size_t c = 0; c < pruned.size(); ++c) {
      std::size_t end = c;
      while (end < pruned.size() && pruned[end] != 0) ++end;
      if (end > c)
        list->AddRectFilled(map.pixel_of(kept_from, static_cast<double>(c)),
                            map.pixel_of(to, static_cast<double>(end)), veil);
      c = end;
    }
  };
  for (std::size_t r = 0; r < pruned.size(); ++r) {
    if (pruned[r] == 0) continue;
    std::size_t end = r;
    while (end < pruned.size() && pruned[end] != 0) ++end;
    columns_of_kept(static_cast<double>(r));
    list->AddRectFilled({first.x, map.pixel_of(static_cast<double>(r), 0).y},
                        {last.x, map.pixel_of(static_cast<double>(end), 0).y}, veil);
    kept_from = static_cast<double>(end);
    r = end - 1;
  }
  columns_of_kept(d);
  list->PopClipRect();
}

void draw_channel_tip(const Run& run, const ChannelAnswers& answers, std::size_t part, ChannelPair at,
                      const ChannelSet* pruned, const std::string& method) {
  const Index first = at.first, second = at.second;
  const ChannelScores& scores = answers.head->parts[part].basis.scores;
  const std::optional<Rope> rope =
      run.dump() != nullptr ? run.dump()->rope(answers.layer) : std::optional<Rope>();
  ImGui::BeginTooltip();
  const auto channel = [&](const char* name, Index c) {
    const auto n = static_cast<std::size_t>(c);
    std::string text = fmt::format("{}", c);
    if (scores.key_sq.size() > c)
      text += fmt::format("   \xE2\x80\x96k\xE2\x80\x96 {}", number_text(std::sqrt(scores.key_sq[c])));
    figure(name, text);
    if (n < scores.rope_partner.size()) {
      const Index other = scores.rope_partner[n];
      std::string turns = other < 0 ? "not rotated" : fmt::format("rotates with {}", other);
      if (other >= 0 && rope) {
        const bool half = rope->style == Rope::Style::half;
        const auto pair = static_cast<std::size_t>(half ? std::min(c, other) : std::min(c, other) / 2);
        if (pair < rope->inv_freq.size())
          turns += fmt::format(", {} rad a position", number_text(rope->inv_freq[pair]));
      }
      dim_text(turns);
    }
    if (pruned != nullptr && (*pruned)[n] != 0) dim_text(fmt::format("pruned by {}", method));
  };
  channel("c", first);
  if (second != first) channel("e", second);
  ImGui::Separator();
  const auto pair = [&](const char* name, const Matrix<double>& matrix) {
    figure(fmt::format("{}_ce", name).c_str(), number_text(matrix(first, second)));
    if (first == second) return;
    ImGui::SameLine();
    const double scale = std::sqrt(matrix(first, first)) * std::sqrt(matrix(second, second));
    figure("normalised", number_text(matrix(first, second) / scale));
  };
  pair("H", scores.logits);
  if (answers.outputs != nullptr)
    pair("M", answers.outputs->outputs[std::min(part, answers.outputs->outputs.size() - 1)]);
  ImGui::EndTooltip();
}

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
     "Reconstruction error on the window's rows: squared change of the logits of the keys that lose "
     "channels, "
     "\xE2\x80\x96QK\xE2\x80\xB2 \xE2\x88\x92 QK\xE2\x80\x96\xC2\xB2 / \xE2\x80\x96QK\xE2\x80\x96\xC2\xB2",
     false, false},
    {"output",
     "Output error on the window's rows: \xCE\xA3\xE2\x80\x96o\xE2\x80\xB2 \xE2\x88\x92 "
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
      right_aligned_number(numbers_of(*column).text(value),
                           answers_.stale ? theme().faint
                           : best         ? theme().text
                                          : theme().dim,
                           best);
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
                          : "The search was cut short: the best set found. The bound says what no set can "
                            "beat.");
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

/// Whether there is room for errors on both sets of rows.
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
    dim_text(fmt::format("on the rows of the {}{}{}", future ? "future" : "window",
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
            {"eigenvalue", true, least / 1.5, most * 1.5}, view);
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
  Plot plot("queries", size, {"channel of the query", false, 0, std::max(1.0, channel.back())},
            {fmt::format("query head {}", query_head), false, low - room, high + room}, view);
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
