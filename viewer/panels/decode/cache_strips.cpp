#include "viewer/panels/decode/cache_strips.hpp"

#include "viewer/widgets/theme.hpp"

#include <algorithm>
#include <cmath>

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

}  // namespace kvreplay::viewer
