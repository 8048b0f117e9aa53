#include "analysis/options/option.hpp"
#include "analysis/results/schema.hpp"
#include "viewer/gl/ui_context.hpp"
#include "viewer/model/token_text.hpp"
#include "viewer/panels/decode/decode_parts.hpp"
#include "viewer/panels/pinned_run.hpp"
#include "viewer/widgets/controls.hpp"
#include "viewer/widgets/theme.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

namespace kvreplay::viewer {

namespace {

/// The positions of one pixel.
struct Counts {
  Index there = 0, kept = 0, leaving = 0;
};

ImU32 color_of(const Counts& counts, ImU32 kept) {
  const Theme& t = theme();
  if (counts.there == 0) return 0;
  if (counts.leaving > 0) return t.text;  // one among many is still to be seen
  if (counts.kept == 0) return t.raised;
  const float share = static_cast<float>(counts.kept) / static_cast<float>(counts.there);
  return mixed(t.raised, kept, 0.25F + 0.75F * share);
}

}  // namespace

void CacheStrips::begin(float left, float right, Index positions, const Marks& marks) {
  axis_.begin(left, std::max(static_cast<int>(right - left), 8), positions);
  marks_ = marks;
}

void CacheStrips::draw(const char* id, float height, ImU32 color, const CacheFates& fates, Index step) {
  const Theme& t = theme();
  const float left = axis_.left(), right = axis_.right();
  const float top = ImGui::GetCursorScreenPos().y, foot = top + height;
  ImGui::SetCursorScreenPos({left, top});
  ImGui::InvisibleButton(id, {right - left, height});
  axis_.take_mouse();
  ImDrawList* list = ImGui::GetWindowDrawList();
  list->AddRectFilled({left, top}, {right, foot}, t.window);
  axis_.draw(top, foot, [&](Index first, Index end) {
    Counts counts;
    for (Index position = first; position < end; ++position) {
      const Held held = held_at(fates, position, step);
      if (held == Held::not_there_yet) break;
      ++counts.there;
      if (held == Held::kept) ++counts.kept;
      if (held == Held::leaves_now) ++counts.leaving;
    }
    return color_of(counts, color);
  });
  list->PushClipRect({left, top - t.px(2)}, {right, foot + t.px(2)}, true);
  const auto mark = [&](Index position, ImU32 ink) {
    const float x = std::floor(axis_.x_of(position)) + 0.5F;
    list->AddLine({x, top - t.px(2)}, {x, foot + t.px(2)}, ink, t.px(1.2F));
  };
  mark(marks_.now, faded(t.dim, 0.8F));
  if (marks_.hovered) mark(*marks_.hovered, faded(t.text, 0.6F));
  if (marks_.selected) mark(*marks_.selected, t.accent);
  list->PopClipRect();
  ImGui::SetCursorScreenPos({left, foot});
}

void CacheStrips::draw_numbers() const {
  axis_.draw_numbers(ImGui::GetCursorScreenPos().y, theme().px(1));
  ImGui::Dummy({0, PositionAxis::height()});
}

namespace {

constexpr float kNumber = 62, kButton = 16, kHeld = 46;  // points
constexpr std::array kErrors = {DecodeFigure::mean, DecodeFigure::max, DecodeFigure::last};
constexpr std::size_t kFigures = kErrors.size();
/// As decode.csv has them.
std::array<double, kFigures> figures_of(const DecodeRun& run) { return {run.mean, run.max, run.last}; }

/// Draws only: at the right end of a column that ends at `right`. Bold is as wide as it would be otherwise.
void number_at(float right, float y, const std::string& text, ImU32 color, bool bold) {
  ImGui::PushFont(mono_font());
  ImDrawList* list = ImGui::GetWindowDrawList();
  const float x = right - ImGui::CalcTextSize(text.c_str()).x;
  list->AddText({x, y}, color, text.c_str());
  if (bold) list->AddText({x - theme().px(0.7F), y}, color, text.c_str());
  ImGui::PopFont();
}

/// Tooltip of a row: the decoding run and, if there is one, the pinned run's next to it.
std::string run_text(const DecodeShown& shown, std::size_t r) {
  const DecodeRun& run = shown.runs()[r];
  std::string text = fmt::format(
      "{}: {}. {}", title_of(run), counted(run.budget, "token"),
      run.append_only ? "Nothing cached is ever evicted; a new token stays if it ranks high enough."
                      : "After every step the cache is cut back to the budget.");
  if (const DecodeRun* pinned = shown.pinned_run(r))
    text += fmt::format("\nPinned: mean {}, max {}, last {}", pinned_text(run.mean, pinned->mean),
                        pinned_text(run.max, pinned->max), pinned_text(run.last, pinned->last));
  return text;
}

}  // namespace

std::string fate_text(const CacheFates& fates, Index position) {
  const Index left = fates.left_at[position];
  if (left == CacheFates::kStays) return "stays to the end";
  if (left == CacheFates::kWithPrompt) return "evicted after the prompt";
  if (left < 0) return "left before step 0";
  if (position == fates.first_step + left) return fmt::format("turned away at step {}", left);
  return fmt::format("leaves at step {}", left);
}

std::string title_of(const DecodeRun& run) {
  return run.append_only ? run.policy + ", append-only" : run.policy;
}

/// Layout that all rows of a frame share, and the values of one row.
struct DecodeList::Row {
  float left = 0, right = 0, bar = 0;
  Index step = 0;
  ImU32 color = 0;
  bool editable = false;
  std::array<double, kFigures> least{};
  std::array<NumberColumn, kFigures> numbers{};
};

void DecodeList::draw_row(const DecodeShown& shown, std::size_t r, const Row& row, Done& done) {
  const Theme& t = theme();
  const DecodeAnswers& answers = shown.now;
  const DecodeRun& run = answers.view->runs[r];
  const ImVec2 at = ImGui::GetCursorScreenPos();
  const float height = ImGui::GetTextLineHeight() + t.px(3), text_y = at.y + t.px(1);
  const float button = row.editable ? t.px(kButton) : 0;
  ImDrawList* list = ImGui::GetWindowDrawList();
  ImGui::InvisibleButton("row", {row.right - row.left - button, height});
  if (ImGui::IsItemHovered()) {
    done.pointed = r;
    list->AddRectFilled(at, {row.right, at.y + height}, t.raised, t.px(3));
    tip(run_text(shown, r));
  }
  draw_key(list, {row.left + t.px(2), std::floor(at.y + height / 2) + 0.5F}, t.px(16), row.color,
           stroke_of(run), 2);
  const std::array<double, kFigures> figures = figures_of(run);
  float right = row.right - button;
  for (std::size_t f = figures.size(); f-- > 0; right -= t.px(kNumber)) {
    const bool best = figures[f] == row.least[f] && answers.view->runs.size() > 1 && !answers.stale;
    number_at(right, text_y, row.numbers[f].text(figures[f]), best ? t.text : t.dim, best);
  }
  const float name = row.left + t.px(24);
  list->AddText({name, text_y}, t.text, elided(title_of(run), right - t.px(4) - name).c_str());
  if (row.editable) {
    const float cross = t.px(3.2F);
    const ImVec2 middle = {row.right - t.px(kButton) / 2, at.y + height / 2};
    ImGui::SetCursorScreenPos({row.right - t.px(kButton), at.y});
    if (ImGui::InvisibleButton("remove", {t.px(kButton), height})) done.removed = run.policy;
    const ImU32 ink = ImGui::IsItemHovered() ? t.text : t.faint;
    tip("Removes the policy");
    list->AddLine({middle.x - cross, middle.y - cross}, {middle.x + cross, middle.y + cross}, ink,
                  t.px(1.2F));
    list->AddLine({middle.x - cross, middle.y + cross}, {middle.x + cross, middle.y - cross}, ink,
                  t.px(1.2F));
  }
  ImGui::SetCursorScreenPos({row.left, at.y + height});
  if (r >= answers.fates.size()) return;
  const float top = ImGui::GetCursorScreenPos().y;
  strips_.draw("strip", row.bar, row.color, answers.fates[r], row.step);
  const std::vector<Index> sizes = cache_sizes(run);
  number_at(row.right, top + (row.bar - ImGui::GetTextLineHeight()) / 2, fmt::format("{}", sizes[row.step]),
            t.dim, false);
  ImGui::SetCursorScreenPos({row.left, top + row.bar + t.px(3)});
}

DecodeList::Done DecodeList::draw(AppState& state, const DecodeShown& shown, bool editable) {
  const Theme& t = theme();
  Done done;
  const DecodeAnswers& answers = shown.now;
  const Index step = shown.step;
  const std::vector<DecodeRun>& runs = shown.runs();
  if (runs.empty()) return done;
  const ImVec2 at = ImGui::GetCursorScreenPos(), room = ImGui::GetContentRegionAvail();
  Row row;
  row.left = at.x;
  row.right = std::floor(at.x + room.x);
  row.step = step;
  row.editable = editable;
  const float line = ImGui::GetTextLineHeight();
  const float rows = room.y - line - t.px(2) - (answers.fates.empty() ? 0 : PositionAxis::height());
  row.bar =
      std::clamp(std::floor(rows / static_cast<float>(runs.size()) - line - t.px(6)), t.px(13), t.px(34));

  float right = row.right - (editable ? t.px(kButton) : 0);
  for (std::size_t f = kFigures; f-- > 0; right -= t.px(kNumber)) {
    const FigureFacts& facts = facts_of(kErrors[f]);
    const std::string title(facts.name), about(facts.what);
    ImGui::SetCursorScreenPos({right - ImGui::CalcTextSize(title.c_str()).x, at.y});
    dim_text(title);
    tip(about.c_str());
    row.least[f] = std::numeric_limits<double>::infinity();
    std::vector<double> values;
    for (const DecodeRun& run : runs) {
      values.push_back(figures_of(run)[f]);
      row.least[f] = std::min(row.least[f], values.back());
    }
    row.numbers[f] = NumberColumn(values);
  }
  ImGui::SetCursorScreenPos({row.left, at.y + line + t.px(2)});
  if (!answers.fates.empty())
    strips_.begin(row.left, row.right - t.px(kHeld), runs.front().T,
                  {state.selection().token, state.hover.token, runs.front().first_step + step});
  ImGui::PushStyleVar(ImGuiStyleVar_ItemSpacing, {ImGui::GetStyle().ItemSpacing.x, 0});
  for (std::size_t r = 0; r < runs.size(); ++r) {
    ImGui::PushID(static_cast<int>(r));
    row.color = shown.color_of(runs[r]);
    draw_row(shown, r, row, done);
    ImGui::PopID();
  }
  ImGui::PopStyleVar();
  if (!answers.fates.empty()) {
    const float foot = ImGui::GetCursorScreenPos().y - t.px(2);
    ImGui::SetCursorScreenPos({row.left, foot});
    strips_.draw_numbers();
    const char* held = "held";
    ImGui::SetCursorScreenPos({row.right - ImGui::CalcTextSize(held).x, foot + t.px(4)});
    dim_text(held);
    tip("Tokens in the cache after the step, decoded ones included");
    draw_tip(state, shown);
  }
  return done;
}

void DecodeList::draw_tip(AppState& state, const DecodeShown& shown) const {
  const auto position = strips_.axis().hovered();
  if (!position) return;
  state.next_hover.token = position;
  if (strips_.axis().clicked()) state.select_cell(state.selection().row, position);
  ImGui::BeginTooltip();
  figure("token", fmt::format("{}  {}", *position, token_text(state.run()->labels(), *position, 32)));
  for (std::size_t r = 0; r < shown.now.fates.size(); ++r) {
    dim_text(title_of(shown.runs()[r]));
    ImGui::SameLine();
    ImGui::TextUnformatted(fate_text(shown.now.fates[r], *position).c_str());
    const CacheFates* pinned = shown.pinned_fates(r);
    if (pinned == nullptr || *position >= std::ssize(pinned->left_at)) continue;
    ImGui::SameLine();
    dim_text("pinned: " + fate_text(*pinned, *position));
  }
  ImGui::EndTooltip();
}

}  // namespace kvreplay::viewer
