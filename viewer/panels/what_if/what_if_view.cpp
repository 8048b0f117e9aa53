
#include "viewer/gl/ui_context.hpp"
#include "viewer/panels/what_if/what_if_controls.hpp"
#include "viewer/widgets/controls.hpp"
#include "viewer/widgets/theme.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <string_view>
#include <vector>

namespace kvreplay::viewer {
namespace {

constexpr float kBar = 15, kRowGap = 2, kLabel = 16;  // points

/// The tokens of one pixel, how many are kept, and how many of these by this set alone.
struct KeptCounted {
  Index tokens = 0, kept = 0, alone = 0;
};

ImU32 color_of(const KeptCounted& counts, ImU32 alone) {
  const Theme& t = theme();
  if (counts.tokens == 0) return t.window;
  const auto share = [&](Index n) { return static_cast<float>(n) / static_cast<float>(counts.tokens); };
  const ImU32 color = mixed(t.raised, t.dim, share(counts.kept));
  // A single difference among many tokens is still to be seen.
  return counts.alone > 0 ? mixed(color, alone, std::max(share(counts.alone), 0.45F)) : color;
}

constexpr float kSideBySide = 560, kLeastBars = 56, kBarGap = 8;  // points

struct StepFacts {
  const char* label;
  const char* about;
};
constexpr std::array<StepFacts, 3> kSteps{{
    {"tokens chosen",
     "What is missing because of which tokens were kept: with their values as they were, and of the "
     "attention "
     "as much as the whole prompt had"},
    {"their weights", "The same with the attention that the kept tokens really get, their biases included"},
    {"their values", "The same with the values that they have now: the output error of this cache"},
}};
constexpr const char* kPlainTip = "Output error of the same tokens left as they were (none)";
constexpr const char* kBoundTip =
    "The least that any values could reach on these very queries beside the keys and biases that are kept. "
    "Only "
    "where queries outnumber tokens.";

float text_width(const std::string& text) { return ImGui::CalcTextSize(text.c_str()).x; }

/// The two marks, in a legend and over the bars.
void plain_mark(float x, float top, float bottom) {
  const Theme& t = theme();
  const float dash = t.px(3);
  for (float y = top; y < bottom; y += 2 * dash)
    ImGui::GetWindowDrawList()->AddLine({x, y}, {x, std::min(y + dash, bottom)}, t.text, t.px(1.4F));
}
void bound_mark(float x, float top, float bottom) {
  ImGui::GetWindowDrawList()->AddLine({x, top}, {x, bottom}, theme().text, theme().px(1.4F));
}

/// One setting's waterfall.
class Waterfall {
 public:
  Waterfall(std::size_t setting, const WhatIf& answer, RowSet rows, float width, double most)
      : setting_(setting),
        answer_(answer),
        rows_(rows),
        left_(ImGui::GetCursorScreenPos().x),
        width_(width),
        most_(most) {}

  void draw() {
    const auto steps = error_steps(answer_, rows_);
    title();
    if (!steps) return why_none();
    legend(*steps);
    bars(*steps);
  }

 private:
  void title() const {
    const Theme& t = theme();
    const float side = ImGui::GetTextLineHeight() * 0.7F;
    const ImVec2 at = ImGui::GetCursorScreenPos();
    const float top = at.y + (ImGui::GetTextLineHeight() - side) / 2;
    ImGui::GetWindowDrawList()->AddRectFilled({at.x, top}, {at.x + side, top + side},
                                              setting_colors()[setting_], t.px(2));
    ImGui::SetCursorScreenPos({at.x + side + t.px(6), at.y});
    heading(setting_ == 0 ? "A" : "B");
    ImGui::SameLine(0, t.px(6));
    const CompensationFacts& facts = kCompensations[answer_.compensated->method];
    ImGui::TextUnformatted(std::string(facts.name).c_str());
    tip(facts.meaning);
  }

  void why_none() const {
    const CompensationFacts& facts = kCompensations[answer_.compensated->method];
    const WhatIf::Compensated& found = *answer_.compensated;
    const bool anywhere = found.split_window || found.split_future || found.split_reference;
    ImGui::SetCursorScreenPos({left_, ImGui::GetCursorScreenPos().y});
    ImGui::PushTextWrapPos(ImGui::GetCursorPosX() + width_);
    dim_text(anywhere     ? fmt::format("Nothing is known on {} queries.", name_of(rows_))
             : facts.slot ? "No split: one token more stands beside the kept ones."
                          : "No split: the keys are no longer the tokens' own.");
    ImGui::PopTextWrapPos();
  }

  /// Legend of the marks, beside the title if there is room.
  void legend(const ErrorSteps& steps) const {
    entry("none", steps.plain, plain_mark, kPlainTip);
    if (!std::isnan(steps.bound)) entry("bound", steps.bound, bound_mark, kBoundTip);
  }
  void entry(const char* name, double value, void (*mark)(float, float, float), const char* about) const {
    const Theme& t = theme();
    const std::string number = number_text(value);
    const float line = ImGui::GetTextLineHeight(), space = t.px(5);
    const float needed = t.px(4) + space + text_width(name) + space + mono_width(number);
    if (ImGui::GetItemRectMax().x + t.px(12) + needed <= left_ + width_)
      ImGui::SameLine(0, t.px(12));
    else
      ImGui::SetCursorScreenPos({left_, ImGui::GetCursorScreenPos().y});
    const ImVec2 at = ImGui::GetCursorScreenPos();
    mark(at.x + t.px(2), at.y + t.px(1), at.y + line - t.px(1));
    ImGui::SetCursorScreenPos({at.x + t.px(4) + space, at.y});
    dim_text(name);
    tip(about);
    ImGui::SameLine(0, space);
    mono_text(number);
    tip(about);
  }

  void bars(const ErrorSteps& steps) const {
    const Theme& t = theme();
    const std::array<double, 3> running{steps.selection, steps.weighted, steps.error};
    float labels = 0, numbers = 0;
    for (std::size_t i = 0; i < running.size(); ++i) {
      labels = std::max(labels, text_width(kSteps[i].label));
      numbers = std::max(numbers, mono_width(number_text(running[i])));
    }
    const float gap = t.px(kBarGap), line = ImGui::GetTextLineHeight();
    // Where it is narrow, a bar stands below its label.
    const bool below = width_ - labels - numbers - 2 * gap < t.px(kLeastBars);
    const float from = left_ + (below ? 0 : labels + gap),
                to = left_ + width_ - (below ? t.px(3) : numbers + gap);
    const float bar = std::floor(line * 0.62F), row = below ? line + bar + t.px(5) : line + t.px(3);
    const float top = ImGui::GetCursorScreenPos().y + t.px(2);
    const auto x_of = [&](double error) {
      return std::isnan(error) || most_ <= 0 ? from : from + (to - from) * static_cast<float>(error / most_);
    };
    float first = 0, last = 0;
    for (std::size_t i = 0; i < running.size(); ++i) {
      const float y = top + static_cast<float>(i) * row;
      ImGui::SetCursorScreenPos({left_, y});
      ImGui::PushID(static_cast<int>(2 * i + setting_));
      ImGui::InvisibleButton("step", {width_, row});
      ImGui::PopID();
      explain(i, i == 0 ? 0 : running[i - 1], running[i], steps);
      ImDrawList* list = ImGui::GetWindowDrawList();
      list->AddText({left_, y}, t.dim, kSteps[i].label);
      const std::string number = number_text(running[i]);
      ImGui::PushFont(mono_font());
      list->AddText({left_ + width_ - mono_width(number), y}, t.text, number.c_str());
      ImGui::PopFont();
      const float bar_top = std::floor(below ? y + line + t.px(1) : y + (line - bar) / 2);
      step(x_of(0), x_of(i == 0 ? 0 : running[i - 1]), x_of(running[i]), bar_top, bar_top + bar);
      if (i == 0) first = bar_top;
      last = bar_top + bar;
    }
    const float over = t.px(2);
    if (!std::isnan(steps.plain)) plain_mark(x_of(steps.plain), first - over, last + over);
    if (!std::isnan(steps.bound)) bound_mark(x_of(steps.bound), first - over, last + over);
    ImGui::SetCursorScreenPos({left_, top + 3 * row});
    ImGui::Dummy({0, 0});
  }

  /// The error up to here is quiet, what this step adds full; what it takes away is an outline.
  void step(float zero, float before, float now, float top, float bottom) const {
    const ImU32 color = setting_colors()[setting_];
    ImDrawList* list = ImGui::GetWindowDrawList();
    list->AddRectFilled({zero, top}, {std::max(std::min(before, now), zero + 1), bottom},
                        faded(color, 0.45F));
    if (now > before) list->AddRectFilled({before, top}, {now, bottom}, color);
    if (now < before) {
      list->AddRectFilled({now, top}, {before, bottom}, faded(color, 0.1F));
      list->AddRect({now, top}, {before, bottom}, faded(color, 0.6F));
    }
  }

  static void explain(std::size_t i, double before, double now, const ErrorSteps& steps) {
    if (!ImGui::IsItemHovered()) return;
    ImGui::BeginTooltip();
    ImGui::PushTextWrapPos(theme().px(320));
    ImGui::TextUnformatted(kSteps[i].about);
    ImGui::PopTextWrapPos();
    figure("error so far", number_text(now));
    const auto change = [&](const char* name, double from) {
      if (from > 0 && !std::isnan(now)) figure(name, fmt::format("{:+.1f} %", 100 * (now - from) / from));
    };
    if (i > 0) change("by this step", before);
    if (i + 1 == kSteps.size()) change("against none", steps.plain);
    ImGui::EndTooltip();
  }

  std::size_t setting_;
  const WhatIf& answer_;
  RowSet rows_;
  float left_, width_;
  double most_;
};

}  // namespace

void KeptStrip::draw(const char* id, float width, const KeptStripContent& content, HeatmapLinks& links) {
  const Theme& t = theme();
  const ImVec2 at = ImGui::GetCursorScreenPos();
  const float bar = std::floor(t.px(kBar)), gap = std::floor(t.px(kRowGap)), foot = at.y + 2 * bar + gap;
  axis_.begin(at.x + t.px(kLabel), std::max(static_cast<int>(width - t.px(kLabel)), 8), content.l);
  const float left = axis_.left(), right = axis_.right();
  ImDrawList* list = ImGui::GetWindowDrawList();
  ImGui::SetCursorScreenPos({left, at.y});
  ImGui::InvisibleButton(id, {right - left, foot - at.y});
  if (const auto shared = links.columns.find(content.link); links.joined && shared != links.columns.end())
    axis_.join(shared->second.axis, shared->second.pixels);
  const AxisView before = axis_.view();
  axis_.take_mouse();
  if (links.joined && !(before == axis_.view())) links.columns[content.link] = {axis_.view(), axis_.pixels()};

  const std::array<const KeptSet*, 2> sets = {content.a, content.b};
  const auto kept = [&](std::size_t s, Index token) {
    return static_cast<std::size_t>(token) < sets[s]->size() && (*sets[s])[token] != 0;
  };
  const bool both_known = sets[0] != nullptr && sets[1] != nullptr;
  for (std::size_t s = 0; s < 2; ++s) {
    const float top = at.y + static_cast<float>(s) * (bar + gap);
    ImGui::PushFont(bold_font());
    list->AddText({at.x, top + (bar - ImGui::GetTextLineHeight()) / 2}, t.dim, s == 0 ? "A" : "B");
    ImGui::PopFont();
    list->AddRectFilled({left, top}, {right, top + bar}, t.raised);
    if (sets[s] == nullptr) continue;
    axis_.draw(top, top + bar, [&](Index first, Index end) {
      KeptCounted counts;
      for (Index token = first; token < end; ++token) {
        ++counts.tokens;
        if (!kept(s, token)) continue;
        ++counts.kept;
        if (both_known && !kept(1 - s, token)) ++counts.alone;
      }
      return color_of(counts, setting_colors()[s]);
    });
  }

  list->PushClipRect({left, at.y - t.px(3)}, {right, foot + t.px(3)}, true);
  const auto mark = [&](Index token, ImU32 color) {
    const float x = std::floor(axis_.x_of(token)) + 0.5F;
    list->AddLine({x, at.y - t.px(3)}, {x, foot + t.px(3)}, color, t.px(1.4F));
  };
  // Marks of tokens chosen together are drawn above the bars, so that they do not hide the kept tokens.
  axis_.draw(at.y - t.px(3), at.y - 1, [&](Index first, Index end) {
    const auto next = std::lower_bound(content.chosen.begin(), content.chosen.end(), first);
    return next != content.chosen.end() && *next < end ? t.accent : ImU32{0};
  });
  if (content.hovered) mark(*content.hovered, faded(t.text, 0.6F));
  if (content.selected) mark(*content.selected, t.accent);
  list->PopClipRect();
  axis_.draw_numbers(foot, 1);
  // Its height in points, whatever its bars are rounded to.
  ImGui::SetCursorScreenPos({at.x, at.y + t.px(2 * kBar + kRowGap + 6) + ImGui::GetTextLineHeight()});
}

void kept_legend(const KeptDifference& difference, float width) {
  const Theme& t = theme();
  const float side = ImGui::GetTextLineHeight() * 0.6F, space = t.px(4);
  const auto text_of = [](Index tokens, const char* what) { return fmt::format("{} {}", what, tokens); };
  float needed = ImGui::GetItemRectSize().x;
  for (const std::string& text : {text_of(difference.both, "both"), text_of(difference.only_first, "only A"),
                                  text_of(difference.only_second, "only B")})
    needed += t.px(12) + side + space + ImGui::CalcTextSize(text.c_str()).x;
  const bool narrow = width < needed;
  const auto part = [&](Index tokens, const char* what, ImU32 color) {
    flow(side + space + ImGui::CalcTextSize(text_of(tokens, what).c_str()).x + t.px(4));
    const ImVec2 at = ImGui::GetCursorScreenPos();
    const float top = at.y + (ImGui::GetTextLineHeight() - side) / 2;
    ImGui::GetWindowDrawList()->AddRectFilled({at.x, top}, {at.x + side, top + side}, color, t.px(1.5F));
    ImGui::SetCursorScreenPos({at.x + side + space, at.y});
    dim_text(text_of(tokens, what));
  };
  part(difference.both, "both", t.dim);
  part(difference.only_first, narrow ? "A" : "only A", setting_colors()[0]);
  part(difference.only_second, narrow ? "B" : "only B", setting_colors()[1]);
}

bool any_compensated(const std::array<const WhatIf*, 2>& answers) {
  return std::any_of(answers.begin(), answers.end(),
                     [](const WhatIf* answer) { return answer != nullptr && answer->compensated; });
}

void error_waterfalls(const std::array<const WhatIf*, 2>& answers, std::optional<RowSet>& rows, float width) {
  const Theme& t = theme();
  std::vector<RowSet> there;
  std::vector<std::string_view> names;
  for (const RowSet one : {RowSet::future, RowSet::window, RowSet::reference})
    if (std::any_of(answers.begin(), answers.end(),
                    [&](const WhatIf* answer) { return answer != nullptr && error_steps(*answer, one); })) {
      there.push_back(one);
      names.push_back(name_of(one));
    }
  ImGui::AlignTextToFramePadding();
  heading("Where the error comes from");
  tip("The output error step by step: what the choice of the tokens costs, then with their weights, then "
      "with "
      "their values. Filled: what a step adds; outlined: what it takes away.");
  RowSet shown = RowSet::future;
  if (!there.empty()) {
    const auto picked = rows ? std::find(there.begin(), there.end(), *rows) : there.end();
    auto at = static_cast<std::size_t>(picked == there.end() ? 0 : picked - there.begin());
    float needed = 0;
    for (const std::string_view name : names)
      needed += text_width(std::string(name)) + 2 * ImGui::GetStyle().FramePadding.x + t.px(1);
    flow(needed);
    if (segments("rows", names, at)) rows = there[at];
    shown = there[at];
  }
  double most = 0;
  for (const WhatIf* answer : answers)
    if (const auto steps = answer != nullptr ? error_steps(*answer, shown) : std::nullopt)
      for (const double error : {steps->selection, steps->weighted, steps->error, steps->plain, steps->bound})
        if (!std::isnan(error)) most = std::max(most, error);
  const ImVec2 at = ImGui::GetCursorScreenPos();
  const bool both =
      answers[0] != nullptr && answers[0]->compensated && answers[1] != nullptr && answers[1]->compensated;
  const bool beside = both && width >= t.px(kSideBySide);
  const float gap = t.px(18), each = beside ? (width - gap) / 2 : width;
  float bottom = at.y;
  for (std::size_t s = 0; s < answers.size(); ++s) {
    if (answers[s] == nullptr || !answers[s]->compensated) continue;
    ImGui::SetCursorScreenPos({at.x + (beside && s == 1 ? each + gap : 0), beside ? at.y : bottom});
    ImGui::BeginGroup();
    Waterfall(s, *answers[s], shown, each, most).draw();
    ImGui::EndGroup();
    bottom = std::max(bottom, ImGui::GetItemRectMax().y + t.px(4));
  }
  ImGui::SetCursorScreenPos({at.x, bottom});
}

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
    return fmt::format("{} ({}, {}), on the same queries; known once all heads are computed", what,
                       facts.name, facts.unit);
  };
  lines.push_back({&figure, "loss_step, all heads",
                   about(kLossStep,
                         "What the model is predicted to lose: with what all heads and layers do to a query "
                         "added up before it is squared"),
                   of(&ModelLoss::step)});
  lines.push_back(
      {&figure, "loss_layer, all heads",
       about(kLossLayer,
             "Of all heads and layers, with what the queries and heads of a layer do added up before "
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
    // All heads' losses stand behind the last of the one head's: on the decoding steps, where there are any.
    const bool last_loss =
        figure.loss_on && (n + 1 == shown.size() || !what_if_figures()[shown[n + 1]].loss_on);
    if (heads != nullptr && last_loss) add_model_lines(figure, *heads, lines);
  }
  return lines;
}

void figure_table(std::span<const FigureLine> lines, bool comparable, bool with_names) {
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
      if (!comparable || figure.better == Better::neither || std::isnan(mine) || std::isnan(other) ||
          mine == other)
        return t.text;
      return (mine > other) == (figure.better == Better::smaller) ? t.dim : t.text;
    };
    ImGui::TableNextColumn();
    right_aligned_number(texts[n][0], color(a, b));
    ImGui::TableNextColumn();
    right_aligned_number(texts[n][1], color(b, a));
    if (!wide) continue;
    ImGui::TableNextColumn();
    if (!comparable || a == b || std::isnan(a) || std::isnan(b)) continue;
    if (figure.is_share())
      right_aligned_number(points_text(b - a), t.dim);
    else if (a != 0)
      right_aligned_number(std::abs(b / a) < 10 ? fmt::format("{:+.1f} %", 100 * (b - a) / std::abs(a))
                                                : fmt::format("x {:.3g}", b / a),
                           t.dim);
    tip("B against A");
  }
  ImGui::EndTable();
  ImGui::PopStyleVar();
}

}  // namespace kvreplay::viewer
