#include "viewer/panels/text/text_view.hpp"

#include "data/utf8.hpp"
#include "viewer/gl/ui_context.hpp"
#include "viewer/widgets/theme.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdlib>
#include <imgui.h>
#include <string_view>
#include <utility>

namespace kvreplay::viewer {
namespace {

/// Largest share of the background in the letters of an evicted token.
constexpr float kDimmed = 0.52F;
/// Share of the background in the tint of tokens that are not chosen while others are.
constexpr float kAside = 0.65F;

constexpr int kMostLevel = 255;

/// Colours of the levels -kMostLevel .. kMostLevel.
struct TintColors {
  std::array<ImU32, 2 * kMostLevel + 1> fill, ink;
};

TintColors tint_colors(const Theme& t) {
  TintColors made;
  const ImU32 light = theme_of(true).text, dark = theme_of(false).text;
  for (std::size_t i = 0; i < made.fill.size(); ++i) {
    const int level = static_cast<int>(i) - kMostLevel;
    const float share = static_cast<float>(std::abs(level)) / kMostLevel;
    made.fill[i] = mixed(t.panel, level < 0 ? t.series[0] : t.series[5], share);
    made.ink[i] = contrast(light, made.fill[i]) > contrast(dark, made.fill[i]) ? light : dark;
  }
  return made;
}

const TintColors& tint_colors() {
  static const TintColors in_dark = tint_colors(theme_of(true)), in_light = tint_colors(theme_of(false));
  return theme().dark ? in_dark : in_light;
}

}  // namespace

ImU32 tint_color(int level) { return tint_colors().fill[level + kMostLevel]; }
ImU32 tint_ink(int level) { return tint_colors().ink[level + kMostLevel]; }

ImU32 mark_color() { return theme().series[2]; }

float TextView::line_width(ImVec2 size, bool scrolls) {
  return std::floor(size.x - (scrolls ? ImGui::GetStyle().ScrollbarSize : 0) - theme().px(4));
}

float TextView::line_height() { return std::floor(ImGui::GetTextLineHeight() * 1.5F); }

ImVec2 TextView::pixel_of(Index token) const {
  const TextPiece& piece = layout_->piece_of(token);
  return {at_.x + piece.x + piece.width / 2,
          at_.y + (static_cast<float>(layout_->line_of(token)) + 0.5F) * line_height()};
}

bool TextView::in_view(Index token) const {
  if (layout_ == nullptr || token >= layout_->tokens()) return false;
  const Index line = layout_->line_of(token);
  return line >= first_ && line < end_;
}

/// Scrolls to the requested token. After a new layout, the token that was at the top stays at the top.
void TextView::scroll(const TextViewContent& content, float height) {
  const TextLayout& layout = *content.layout;
  const float line = line_height();
  std::optional<float> to;
  if (layout_ != content.layout && top_ && *top_ < layout.tokens())
    to = static_cast<float>(layout.line_of(*top_)) * line;
  layout_ = content.layout;
  if (wanted_ && *wanted_ < layout.tokens()) {
    const float y = static_cast<float>(layout.line_of(*wanted_)) * line,
                now = to.value_or(ImGui::GetScrollY());
    if (y < now || y + line > now + height) to = std::max(y - (height - line) / 2, 0.0F);
  }
  wanted_.reset();
  moves_ = to.has_value() && *to != ImGui::GetScrollY();
  if (moves_) ImGui::SetScrollY(*to);
}

TextHit TextView::draw(const char* id, ImVec2 size, const TextViewContent& content) {
  TextHit hit;
  ImGui::BeginChild(
      id, size, false,
      content.scrolls ? ImGuiWindowFlags_AlwaysVerticalScrollbar : ImGuiWindowFlags_NoScrollbar);
  const float line = line_height(), height = ImGui::GetWindowHeight();
  at_ = ImGui::GetCursorScreenPos();
  const ImVec2 low = ImGui::GetWindowPos();
  ImGui::Dummy({1, static_cast<float>(content.layout->lines()) * line});
  scroll(content, height);
  ImGui::SetCursorScreenPos(low);
  ImGui::InvisibleButton("tokens",
                         {std::max(line_width(size, content.scrolls), 1.0F), std::max(height, 1.0F)});
  hit = take_mouse(content, at_);
  const auto first = std::max<Index>(static_cast<Index>((low.y - at_.y) / line), 0);
  const auto end = std::min<Index>(static_cast<Index>((low.y - at_.y + height) / line) + 1, layout_->lines());
  for (Index n = first; n < end; ++n) draw_line(content, n, {at_.x, at_.y + static_cast<float>(n) * line});
  first_ = first;
  end_ = end;
  top_.reset();
  if (first < end) top_ = layout_->line(first).front().token;
  ImGui::EndChild();
  return hit;
}

void TextView::draw_line(const TextViewContent& content, Index number, ImVec2 at) const {
  const Theme& t = theme();
  ImDrawList* list = ImGui::GetWindowDrawList();
  const float line = line_height(), letters = ImGui::GetTextLineHeight();
  const float top = at.y + 1, foot = at.y + line - 1, text_top = at.y + std::floor((line - letters) / 2);
  const auto under = [&](const TextPiece& piece, float above, float thick, ImU32 color) {
    list->AddRectFilled({at.x + piece.x, foot - above - thick}, {at.x + piece.x + piece.width, foot - above},
                        color);
  };
  for (const TextPiece& piece : content.layout->line(number)) {
    const Index token = piece.token;
    const bool candidate = token < content.l;
    const int level =
        candidate && content.tint != nullptr ? content.tint->shown_level(token, content.by_rank) : 0;
    const float evicted = candidate && content.evicted ? content.evicted(token) : 0;
    const ImVec2 low = {at.x + piece.x, top}, high = {at.x + piece.x + piece.width, foot};
    const bool chosen = std::binary_search(content.chosen.begin(), content.chosen.end(), token);
    const bool aside = !content.chosen.empty() && !chosen;
    const ImU32 behind = level == 0 ? t.panel
                         : aside    ? mixed(tint_color(level), t.panel, kAside)
                                    : tint_color(level);
    if (level != 0) list->AddRectFilled(low, high, behind);
    const bool dragged = drag_from_ && drag_to_ && token >= std::min(*drag_from_, *drag_to_) &&
                         token <= std::max(*drag_from_, *drag_to_);
    if (dragged) list->AddRectFilled(low, high, faded(t.accent, 0.35F));
    const std::string_view text = content.layout->text(piece);
    // On strong colours less: they leave letters less contrast to lose.
    const float dimmed =
        (piece.blank ? 1 : evicted) * kDimmed * (1 - 0.5F * static_cast<float>(std::abs(level)) / 255);
    const float towards = aside ? std::max(dimmed, kDimmed) : dimmed;
    const ImU32 full = aside ? t.text : tint_ink(level);
    const ImU32 faint = mixed(full, behind, towards);
    const ImU32 ink = candidate ? readable(faint, behind) : t.dim;
    list->AddText({low.x, text_top}, ink, text.data(), text.data() + text.size());
    if (evicted > 0 && !piece.blank) {
      const float middle = std::floor(text_top + letters * 0.56F);
      list->AddRectFilled({low.x, middle}, {high.x, middle + std::max(t.px(1), 1.0F)},
                          faded(full, 0.65F * evicted));
    }
    const auto match = std::upper_bound(content.matches.begin(), content.matches.end(), token,
                                        [](Index p, const TextMatch& m) { return p < m.first; });
    if (match != content.matches.begin() && std::prev(match)->last >= token)
      under(piece, 0, t.px(2), t.warning);
    if (chosen) under(piece, 0, t.px(2.4F), t.accent);
    if (std::ranges::any_of(content.marked, [&](const auto& span) { return span.contains(token); }))
      list->AddRectFilled({low.x, top}, {high.x, top + t.px(2.4F)}, mark_color());
  }
  // Around what stands of a token on this line: its spaces and its letters together.
  const auto pieces = content.layout->line(number);
  const auto frame = [&](std::optional<Index> token, ImU32 color, float thick) {
    const auto is_its = [&](const TextPiece& piece) { return piece.token == token; };
    const auto first = std::find_if(pieces.begin(), pieces.end(), is_its);
    if (first == pieces.end()) return;
    const auto last = std::find_if_not(first, pieces.end(), is_its) - 1;
    list->AddRect({at.x + first->x, top}, {at.x + last->x + last->width, foot}, color, t.px(2), 0, thick);
  };
  frame(content.hovered, faded(t.text, 0.6F), t.px(1));
  frame(content.row, t.warning, t.px(1.4F));
  frame(content.selected, t.accent, t.px(1.8F));
}

TextHit TextView::take_mouse(const TextViewContent& content, ImVec2 at) {
  TextHit hit;
  const ImVec2 mouse = ImGui::GetIO().MousePos;
  const auto line = static_cast<Index>(std::floor((mouse.y - at.y) / line_height()));
  if (ImGui::IsItemHovered() || ImGui::IsItemActive())
    hit.token = content.layout->token_at(line, mouse.x - at.x);
  if (ImGui::IsItemActivated()) {
    drag_from_ = hit.token;
    drag_to_.reset();
  }
  if (ImGui::IsItemActive() && drag_from_ && ImGui::IsMouseDragging(ImGuiMouseButton_Left) && hit.token &&
      *hit.token < content.l)
    drag_to_ = hit.token;
  if (ImGui::IsItemDeactivated()) {
    if (drag_from_ && drag_to_ && *drag_from_ != *drag_to_)
      hit.dragged = std::minmax(*drag_from_, *drag_to_);
    else
      hit.clicked = hit.token.has_value() && hit.token == drag_from_;
    drag_from_.reset();
    drag_to_.reset();
  }
  return hit;
}

Answer<TextLayout> TextLines::ask(PanelContext& context, float width) {
  const ImFont* font = ui_font();
  if (advances_ == nullptr || advances_->em != font->FontSize) {
    Advances now{font->FontSize, {}, font->FallbackAdvanceX};
    now.of.assign(font->IndexAdvanceX.begin(), font->IndexAdvanceX.end());
    advances_ = std::make_shared<const Advances>(std::move(now));
  }
  const std::shared_ptr<const Run>& run = context.run();
  const JobRequest request{.key = {run->key(), "text_layout", width, advances_->em},
                           .title = "Lines of the text",
                           .urgency = Urgency::now,
                           .slot = {run->key(), "text_layout"}};
  return context.queue.ask<TextLayout>(request, [run, width, advances = advances_](JobControl&) {
    return TextLayout(reading_texts(run->labels(), run->shape().T), width, [&](std::string_view text) {
      float sum = 0;
      while (!text.empty()) {
        const Character next = first_character(text);
        sum += next.code < advances->of.size() ? advances->of[next.code] : advances->others;
        text.remove_prefix(next.bytes.size());
      }
      return sum;
    });
  });
}

}  // namespace kvreplay::viewer
