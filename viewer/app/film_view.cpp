#include "viewer/app/film_view.hpp"

#include "viewer/gl/ui_context.hpp"
#include "viewer/model/numbers.hpp"
#include "viewer/widgets/controls.hpp"
#include "viewer/widgets/theme.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <numeric>
#include <utility>

namespace kvreplay::viewer {
namespace {

/// Points.
constexpr float kMargin = 18, kHead = 70, kFoot = 31, kCosts = 236, kBar = 13, kThinBar = 6;

std::string share_text(Index budget, Index l) {
  return fmt::format("{:.0f} %", 100 * static_cast<double>(budget) / static_cast<double>(l));
}

void text_at(ImVec2 at, ImU32 color, const std::string& text, ImFont* font = nullptr) {
  if (font == nullptr) font = ImGui::GetFont();
  ImGui::GetWindowDrawList()->AddText(font, font->FontSize, at, color, text.c_str());
}

float width_of(const std::string& text, ImFont* font) {
  return font->CalcTextSizeA(font->FontSize, INFINITY, 0, text.c_str()).x;
}

/// A bar as long as a value is large, of a scale from 0 to `most`, and a mark in it.
void bar(ImVec2 low, ImVec2 size, double value, double most, ImU32 color, std::optional<double> mark = {}) {
  const Theme& t = theme();
  ImDrawList* list = ImGui::GetWindowDrawList();
  const auto along = [&](double of) {
    return most > 0 ? size.x * static_cast<float>(std::clamp(of / most, 0.0, 1.0)) : 0.0F;
  };
  list->AddRectFilled(low, {low.x + size.x, low.y + size.y}, t.raised, t.px(2));
  list->AddRectFilled(low, {low.x + along(value), low.y + size.y}, color, t.px(2));
  if (mark)
    list->AddRectFilled({low.x + along(*mark) - t.px(1), low.y - t.px(3)},
                        {low.x + along(*mark) + t.px(1), low.y + size.y + t.px(3)}, t.warning);
}

/// What a setting keeps, in plain words.
std::string plain_text(const WhatIfSettings& settings) {
  const auto base = kBases.named(settings.base);
  const auto metric = kTokenMetrics.named(settings.score);
  std::string text(base ? kBases[*base].plain : std::string_view());
  if (!settings.score.empty())
    text += fmt::format(", by {}", metric ? kTokenMetrics[*metric].plain : settings.score);
  return text;
}

/// What of a text is lit up because it went in the last steps.
TokenTint just_evicted(const BudgetSlide& slide, std::size_t step, std::size_t side) {
  constexpr std::array kFades = {150.0F, 90.0F, 45.0F};
  constexpr float kFew = 0.25F;  // of the heads: less is noise
  TokenTint tint;
  tint.level.assign(slide.run()->shape().l, 0);
  for (std::size_t back = 0; back < kFades.size() && back < step; ++back) {
    const auto& now = slide.steps()[step - back].sides[side].evicted;
    const auto& before = slide.steps()[step - back - 1].sides[side].evicted;
    for (std::size_t p = 0; p < now.size(); ++p) {
      const auto share = static_cast<float>(now[p] - before[p]) / static_cast<float>(slide.heads());
      if (share > kFew)
        tint.level[p] = std::max(tint.level[p], static_cast<std::int16_t>(kFades[back] * share));
    }
  }
  return tint;
}

}  // namespace

bool FilmView::draw(PanelContext& context, const BudgetSlide& slide, std::size_t step) {
  const Theme& t = theme();
  const ImGuiViewport* frame = ImGui::GetMainViewport();
  ImGui::SetNextWindowPos(frame->Pos);
  ImGui::SetNextWindowSize(frame->Size);
  ImGui::PushStyleVar(ImGuiStyleVar_WindowPadding, {0, 0});
  ImGui::PushStyleVar(ImGuiStyleVar_WindowRounding, 0);
  ImGui::PushStyleVar(ImGuiStyleVar_WindowBorderSize, 0);
  ImGui::PushStyleColor(ImGuiCol_WindowBg, t.panel);
  ImGui::Begin("film", nullptr, ImGuiWindowFlags_NoDecoration | ImGuiWindowFlags_NoInputs);
  ImGui::PopStyleColor();
  ImGui::PopStyleVar(3);
  if (begun_ != &slide) begin(slide);
  const float margin = t.px(kMargin), inner = frame->Size.x - 2 * margin;
  const float top = t.px(kHead), foot = frame->Size.y - t.px(kFoot), gap = t.px(12);
  const float height = std::floor((foot - top - gap) / 2);
  const float costs = t.px(kCosts), text = inner - costs - t.px(20);
  const float line = TextView::line_height();
  // Whole lines.
  const ImVec2 text_size = {text, std::floor((height - line) / line) * line};
  PanelContext of_run = context.of(slide.run());
  const Answer<TextLayout> layout = lines_.ask(of_run, TextView::line_width(text_size, false));
  const bool there = layout && !layout.stale;
  if (there) {
    if (std::exchange(layout_, layout.value) != layout.value) {
      const auto top = layout_->line(first_line(slide, static_cast<Index>(text_size.y / line)));
      for (TextView& view : views_) view.begin_at(top.empty() ? Index{0} : top.front().token);
    }
    moves_ = false;
    draw_head(slide, step, {margin, t.px(14)}, inner);
    for (std::size_t side = 0; side < 2; ++side) {
      const ImVec2 low = {margin, top + static_cast<float>(side) * (height + gap)};
      draw_text(slide, step, side, low, text_size);
      draw_cost(slide, step, side, {margin + inner - costs, low.y}, {costs, height});
    }
    draw_foot(slide, {margin, foot + t.px(5)}, inner);
  }
  ImGui::End();
  return there && !moves_ && layout_->tokens() > 0;
}

void FilmView::begin(const BudgetSlide& slide) {
  begun_ = &slide;
  marked_.clear();
  for (const Index token : slide.needed().tokens) marked_.push_back({token, token + 1});
  for (std::size_t side = 0; side < 2; ++side) lost_[side] = slide.first_lost(side);
}

Index FilmView::first_line(const BudgetSlide& slide, Index lines) const {
  constexpr int kLost = 100;  // counts for so many needed tokens
  std::vector<int> worth(layout_->lines(), 0);
  for (const Index token : slide.needed().tokens) ++worth[layout_->line_of(token)];
  for (const auto& lost : lost_)
    if (lost) worth[layout_->line_of(lost->token)] += kLost;
  Index first_best = 0, last_best = 0;  // of equal ones the middle: what is looked at has text around it
  int most = -1;
  for (Index first = 0; first <= std::max<Index>(layout_->lines() - lines, 0); ++first) {
    const auto begin = worth.begin() + first;
    const int sum = std::accumulate(begin, begin + std::min(lines, layout_->lines() - first), 0);
    if (sum > most) first_best = first;
    if (sum >= most) last_best = first;
    most = std::max(most, sum);
  }
  return std::midpoint(first_best, std::min(last_best, first_best + lines - 1));
}

void FilmView::draw_head(const BudgetSlide& slide, std::size_t step, ImVec2 low, float width) const {
  const Theme& t = theme();
  const Run& run = *slide.run();
  const Index l = run.shape().l, budget = slide.steps()[step].budget;
  const std::string share = share_text(budget, l), kept = fmt::format("of {} tokens kept", l);
  const bool says_name = run.model().find(run.name()) != std::string::npos;
  const std::string title = run.model().empty() ? run.name()
                            : says_name         ? run.model()
                                                : fmt::format("{} \xC2\xB7 {}", run.model(), run.name());
  text_at(low, t.text, title, bold_font());
  const std::string of =
      slide.head() ? fmt::format("layer {}, KV head {}", slide.run()->layer_number(slide.head()->layer),
                                 slide.head()->kv_head)
                   : fmt::format("all {} KV heads, each with this budget", slide.heads());
  text_at({low.x, low.y + t.px(19)}, t.dim, of);
  ImFont* large = large_font();
  const float right = low.x + width, rest = std::max(width_of(kept, ui_font()), t.px(kCosts) - t.px(86));
  text_at({right - rest, low.y + t.px(15)}, t.dim, kept);
  text_at({right - rest - t.px(8) - width_of(share, large), low.y - t.px(4)}, t.text, share, large);
  bar({low.x, low.y + t.px(44)}, {width, t.px(4)}, static_cast<double>(budget), static_cast<double>(l),
      t.dim);
}

void FilmView::draw_text(const BudgetSlide& slide, std::size_t step, std::size_t side, ImVec2 low,
                         ImVec2 size) {
  const Theme& t = theme();
  const SlideSide& now = slide.steps()[step].sides[side];
  const std::string name = fmt::format("{}  {}", "AB"[side], slide.settings()[side].policy());
  text_at(low, t.series[side], name, bold_font());
  const float behind = width_of(name, bold_font()) + t.px(10);
  text_at({low.x + behind, low.y}, t.dim, elided(plain_text(slide.settings()[side]), size.x - behind));
  const TokenTint tint = just_evicted(slide, step, side);
  TextViewContent content;
  content.layout = layout_;
  content.l = slide.run()->shape().l;
  content.evicted = [&](Index token) {
    return static_cast<float>(now.evicted[token]) / static_cast<float>(slide.heads());
  };
  content.tint = &tint;
  content.marked = marked_;
  content.scrolls = false;
  content.vanish = true;
  if (lost_[side] && step >= lost_[side]->step) content.row = lost_[side]->token;
  ImGui::SetCursorScreenPos({low.x, low.y + TextView::line_height()});
  views_[side].draw(side == 0 ? "A" : "B", size, content);
  moves_ |= views_[side].moves();
}

void FilmView::draw_cost(const BudgetSlide& slide, std::size_t step, std::size_t side, ImVec2 low,
                         ImVec2 size) const {
  const Theme& t = theme();
  const float width = size.x;
  const SlideSide& now = slide.steps()[step].sides[side];
  const std::optional<BudgetSlide::Lost>& lost = lost_[side];
  const SlideSide* at_loss = lost && step >= lost->step ? &slide.steps()[lost->step].sides[side] : nullptr;
  const auto mark = [&](double SlideSide::*value) {
    return at_loss != nullptr ? std::optional(at_loss->*value) : std::nullopt;
  };
  float y = low.y;
  text_at({low.x, y}, t.dim,
          fmt::format("output error{}", slide.on_future() ? ", decoding steps" : ", window"));
  y += t.px(18);
  text_at({low.x, y}, t.text, number_text(now.error), large_font());
  y += t.px(40);
  bar({low.x, y}, {width, t.px(kBar)}, now.error, slide.largest_error(), t.series[side],
      mark(&SlideSide::error));
  y += t.px(kBar + 10);
  if (const double most = slide.largest_nats(); !std::isnan(most)) {
    text_at({low.x, y}, t.dim, "predicted loss");
    const std::string number = fmt::format("{} nats a step", number_text(now.nats));
    text_at({low.x + width - width_of(number, ui_font()), y}, t.text, number);
    y += t.px(19);
    bar({low.x, y}, {width, t.px(kThinBar)}, now.nats, most, t.series[side], mark(&SlideSide::nats));
    y += t.px(kThinBar + 12);
  }
  const float note = 2 * ImGui::GetTextLineHeight();
  draw_curves(slide, step, side, {low.x, y + t.px(4)}, {width, low.y + size.y - y - note - t.px(12)});
  if (at_loss == nullptr) return;
  const std::string word = token_text(slide.run()->labels(), lost->token, 20);
  ImGui::SetCursorScreenPos({low.x, low.y + size.y - note});
  wrapped_text(
      fmt::format("First {} evicted{} at {}{}", slide.needed().of_question ? "needle" : "needed token",
                  slide.heads() > 1 ? " by most heads" : "",
                  share_text(slide.steps()[lost->step].budget, slide.run()->shape().l),
                  word.empty() ? std::string() : fmt::format(": \"{}\"", word)),
      t.warning, width);
}

/// How the errors came to be what they are: a setting's own, and faint the other's.
void FilmView::draw_curves(const BudgetSlide& slide, std::size_t step, std::size_t side, ImVec2 low,
                           ImVec2 size) const {
  const Theme& t = theme();
  ImDrawList* list = ImGui::GetWindowDrawList();
  const auto last = static_cast<float>(std::max<std::size_t>(slide.steps().size() - 1, 1));
  const auto at = [&](std::size_t i, double error) {
    const double most = std::max(slide.largest_error(), 1e-300);
    return ImVec2(low.x + size.x * static_cast<float>(i) / last,
                  low.y + size.y * static_cast<float>(1 - error / most));
  };
  list->AddLine({low.x, low.y + size.y}, {low.x + size.x, low.y + size.y}, t.border, t.px(1));
  for (const std::size_t of : {1 - side, side}) {
    for (std::size_t i = 0; i <= step; ++i) list->PathLineTo(at(i, slide.steps()[i].sides[of].error));
    list->PathStroke(of == side ? t.series[of] : faded(t.series[of], 0.35F), ImDrawFlags_None,
                     t.px(of == side ? 2 : 1.2F));
  }
  list->AddCircleFilled(at(step, slide.steps()[step].sides[side].error), t.px(3.4F), t.series[side]);
  if (const auto& lost = lost_[side]; lost && step >= lost->step) {
    const float x = at(lost->step, 0).x;
    list->AddLine({x, low.y}, {x, low.y + size.y}, t.warning, t.px(1.4F));
  }
}

void FilmView::draw_foot(const BudgetSlide& slide, ImVec2 low, float width) const {
  const Theme& t = theme();
  const NeededTokens& needed = slide.needed();
  float x = low.x;
  if (!needed.tokens.empty()) {
    const std::string word = needed.of_question ? "needle" : "needed";
    text_at({x, low.y}, t.text, word);
    const float end = x + width_of(word, ui_font());
    ImGui::GetWindowDrawList()->AddRectFilled({x, low.y}, {end, low.y + t.px(2.4F)}, mark_color());
    x = end + t.px(6);
    const std::string meaning = needed.of_question
                                    ? std::string("what the question asks for")
                                    : fmt::format("{}, of all tokens those of largest {}",
                                                  needed.tokens.size(), kTokenMetrics[needed.metric].plain);
    text_at({x, low.y}, t.dim, meaning);
  }
  const Index first = views_[0].top().value_or(0), l = slide.run()->shape().l;
  Index last = first;
  while (last + 1 < layout_->tokens() && views_[0].in_view(last + 1)) ++last;
  if (first == 0 && last + 1 >= l) return;
  const std::string shown = fmt::format("tokens {} to {} of {}", first, std::min(last, l - 1), l);
  text_at({low.x + width - width_of(shown, ui_font()), low.y}, t.dim, shown);
}

}  // namespace kvreplay::viewer
