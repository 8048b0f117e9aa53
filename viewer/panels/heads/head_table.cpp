#include "viewer/gl/ui_context.hpp"
#include "viewer/panels/heads/head_parts.hpp"
#include "viewer/panels/metric_controls.hpp"
#include "viewer/widgets/controls.hpp"
#include "viewer/widgets/theme.hpp"

#include <algorithm>
#include <cmath>
#include <imgui_stdlib.h>
#include <span>

namespace kvreplay::viewer {
namespace {

/// The padding of cells, and what the arrow of the column that is sorted by takes, in points.
constexpr float kPadding = 4, kArrow = 13;

enum Column { kRank, kLayer, kHead, kValue, kColumnCount };

/// A header whose name may use all of the column but the arrow, which ImGui's own would leave room for in
/// every column.
void header(int column) {
  const ImVec2 at = ImGui::GetCursorScreenPos();
  const char* name = ImGui::TableGetColumnName(column);
  ImGui::PushStyleColor(ImGuiCol_Text, theme().dim);  // the arrow
  ImGui::PushID(column);
  ImGui::TableHeader(" ");
  ImGui::PopID();
  ImGui::PopStyleColor();
  const float room = ImGui::GetContentRegionAvail().x;
  ImGui::GetWindowDrawList()->AddText(at, theme().dim, elided(name, room).c_str());
  if (ImGui::CalcTextSize(name).x > room) tip(name);
}

}  // namespace

bool HeadTable::takes(const HeadPlace& place) const {
  if (filter_ && !filter_->takes(place.value)) return false;
  return chosen_.empty() ||
         std::binary_search(chosen_.begin(), chosen_.end(), place.row * map_->values.cols() + place.kv_head);
}

void HeadTable::choose(const std::vector<Index>& heads) {
  if (chosen_ == heads) return;
  chosen_ = heads;
  seen_.reset();
  sort();
}

void HeadTable::show(std::shared_ptr<const FigureMap> map, const Key& key) {
  if (map_ && map && key == key_) return;
  map_ = std::move(map);
  key_ = key;
  seen_.reset();  // places have changed
  ranking_.clear();
  bars_ = {};
  held_.clear();
  if (map_) {
    ranking_ = worst_first(*map_);
    bars_ = head_bars(*map_);
    double sum = 0;
    for (const HeadPlace& place : ranking_) held_.push_back(sum += std::isnan(place.value) ? 0 : place.value);
    for (double& held : held_) held /= sum;
    if (map_->figure.facts.better != Better::smaller || bars_.low < 0 || !(sum > 0)) held_.clear();
  }
  numbers_ = {};
  if (map_)
    numbers_ = NumberColumn(std::span(map_->values.data(), static_cast<std::size_t>(map_->values.size())));
  ranks_.assign(map_ ? static_cast<std::size_t>(map_->values.size()) : 0, 0);
  for (std::size_t i = 0; i < ranking_.size(); ++i)
    if (!std::isnan(ranking_[i].value))
      ranks_[ranking_[i].row * map_->values.cols() + ranking_[i].kv_head] = static_cast<Index>(i) + 1;
  sort();
}

Index HeadTable::rank(Index row, Index kv_head) const {
  const Index at = map_ ? row * map_->values.cols() + kv_head : 0;
  return at < std::ssize(ranks_) ? ranks_[at] : 0;
}

void HeadTable::sort() {
  order_.clear();
  for (std::size_t i = 0; i < ranking_.size(); ++i)
    if (takes(ranking_[i])) order_.push_back(i);
  // By a key that ascends, worse heads first among equal ones; heads without a value stay at the end.
  const auto key = [&](std::size_t i) {
    const HeadPlace& place = ranking_[i];
    const double at = column_ == kRank    ? static_cast<double>(i)
                      : column_ == kLayer ? static_cast<double>(place.layer)
                      : column_ == kHead  ? static_cast<double>(place.kv_head)
                                          : place.value;
    return descending_ ? -at : at;
  };
  const bool by_value = column_ == kRank || column_ == kValue;
  std::stable_sort(order_.begin(), order_.end(), [&](std::size_t a, std::size_t b) {
    const bool none_a = std::isnan(ranking_[a].value), none_b = std::isnan(ranking_[b].value);
    if (by_value && (none_a || none_b)) return !none_a && none_b;
    return key(a) < key(b);
  });
}

float HeadTable::least_width() const {
  ImGui::PushFont(mono_font());
  const float number = ImGui::CalcTextSize(kWidestNumber).x, rank = ImGui::CalcTextSize("888").x;
  ImGui::PopFont();
  return ImGui::CalcTextSize("layerhead").x + rank + number + theme().px(4 * 2 * kPadding + kArrow + 12);
}

void HeadTable::keep_in_view(const AppState& state, float row_height) {
  const std::pair now(state.selection().layer, state.selection().kv_head);
  const float room = ImGui::GetWindowHeight() - row_height - ImGui::GetFrameHeight();
  // With other places or another size the list starts from its top: how it came to be must not show.
  const bool anew = !seen_ || room != room_;
  if (!anew && *seen_ == now) return;
  seen_ = now;
  room_ = room;
  const auto at = std::find_if(order_.begin(), order_.end(), [&](std::size_t i) {
    return ranking_[i].layer == now.first && ranking_[i].kv_head == now.second;
  });
  if (at == order_.end() || !state.head_chosen()) return;
  const float y = static_cast<float>(at - order_.begin()) * row_height;
  const float top = anew ? 0 : ImGui::GetScrollY();
  if (y < top || y > top + room)
    ImGui::SetScrollY(std::max(0.0F, y - std::floor(room / 2 / row_height) * row_height));  // whole rows
  else if (anew)
    ImGui::SetScrollY(0);
}

void HeadTable::draw_row(PanelContext& context, const HeadPlace& place, const HeatmapView& heatmap) {
  const Theme& t = theme();
  const Selection& selection = context.state.selection();
  const bool selected = place.layer == selection.layer && place.kv_head == selection.kv_head;
  ImGui::TableNextRow();
  if (context.state.hover.layer == place.layer && context.state.hover.kv_head == place.kv_head)
    ImGui::TableSetBgColor(ImGuiTableBgTarget_RowBg0, t.raised);
  ImGui::PushFont(mono_font());
  ImGui::TableNextColumn();
  const Index rank = this->rank(place.row, place.kv_head);
  const float first_width = ImGui::GetContentRegionAvail().x;
  const ImVec2 at = ImGui::GetCursorPos();
  ImGui::PushID(static_cast<int>(place.row * map_->values.cols() + place.kv_head));
  if (ImGui::Selectable("##head", selected, ImGuiSelectableFlags_SpanAllColumns)) {
    seen_ = {place.layer, place.kv_head};
    context.state.select_head(place.layer, place.kv_head);
  }
  if (ImGui::IsItemHovered()) {
    context.state.next_hover.layer = place.layer;
    context.state.next_hover.kv_head = place.kv_head;
  }
  ImGui::PopID();
  ImGui::SetCursorPos(at);
  right_aligned(rank > 0 ? std::to_string(rank) : "", selected ? t.dim : t.faint, first_width);
  for (const Index number : {context.state.run()->layer_number(place.layer).number, place.kv_head}) {
    ImGui::TableNextColumn();
    right_aligned(std::to_string(number), t.text);
  }
  ImGui::TableNextColumn();
  const float number_width = ImGui::CalcTextSize(kWidestNumber).x;
  const ImVec2 low = ImGui::GetCursorScreenPos();
  const float room = ImGui::GetContentRegionAvail().x - number_width - t.px(8);
  right_aligned(numbers_.text(place.value), std::isnan(place.value) ? t.faint : t.text, number_width);
  ImGui::PopFont();
  if (std::isnan(place.value) || room < t.px(5)) return;
  draw_bar(place, heatmap, {low.x + number_width + t.px(8), low.y}, room);
}

void HeadTable::draw_bar(const HeadPlace& place, const HeatmapView& heatmap, ImVec2 low, float room) {
  const Theme& t = theme();
  const float line = ImGui::GetTextLineHeight();
  ImDrawList* const list = ImGui::GetWindowDrawList();
  const Index rank = this->rank(place.row, place.kv_head);
  const std::string held = rank > 0 && !held_.empty() && room > t.px(100)
                               ? percent_text(held_[static_cast<std::size_t>(rank) - 1])
                               : std::string();
  if (!held.empty()) {
    room -= ImGui::CalcTextSize("100.0 %").x + t.px(6);
    list->AddText({low.x + std::min(room, t.px(320)) + t.px(6), low.y}, t.dim, held.c_str());
  }
  // Where there is no room for a length there is for a colour.
  const float width = room < t.px(28) ? 0 : std::min(room, t.px(320));
  const auto at = [&](double amount) { return low.x + width * static_cast<float>(bars_.place(amount)); };
  const float origin = at(0), end = at(bars_.amount(place.value));
  const float at_scale = heatmap.scale().place(static_cast<float>(place.value));
  list->AddRectFilled(
      {std::min(origin, end), low.y + line * 0.22F},
      {std::max({origin, end, std::min(origin, end) + t.px(width > 0 ? 1 : 5)}), low.y + line * 0.82F},
      to_imgui(color_of(heatmap.colors(), std::clamp(at_scale, 0.0F, 1.0F))), t.px(1.5F));
  if (bars_.low < 0 && width > 0) list->AddLine({origin, low.y}, {origin, low.y + line}, t.faint, t.px(1));
}

void HeadTable::draw(PanelContext& context, ImVec2 size, const HeatmapView& heatmap) {
  if (!map_) return;
  const Theme& t = theme();
  const Better better = map_->figure.facts.better;
  const ImVec2 at = ImGui::GetCursorScreenPos();
  if (!context.figure) text_beside(better != Better::neither ? "worst first" : "largest first");
  tip(better == Better::neither
          ? "Neither end of this metric is worse. Bars begin at 0. n and p step through the heads in this "
            "order."
      : better == Better::smaller
          ? "Larger is worse. Bars begin at 0; the per cent is the share of the sum over all heads that this "
            "head and all worse ones hold. n and p step through the heads in this order."
          : "Smaller is worse. A bar is the distance to the best value. n and p step through the heads in "
            "this order.");
  float line = ImGui::GetTextLineHeight() + t.px(4);
  if (!context.figure) {
    edit_filter(size.x, at.x + size.x);
    line = ImGui::GetFrameHeight() + t.px(4);
  }
  ImGui::SetCursorScreenPos({at.x, at.y + line});
  ImGui::PushStyleVar(ImGuiStyleVar_CellPadding, {t.px(kPadding), t.px(2)});
  draw_table(context, {size.x, size.y - line}, heatmap);
  ImGui::PopStyleVar();
}

/// Right of what the table is sorted by.
void HeadTable::edit_filter(float width, float right) {
  const float wanted = std::min(theme().px(110), width * 0.5F);
  ImGui::SameLine();
  ImGui::SetCursorScreenPos({right - wanted, ImGui::GetCursorScreenPos().y});
  ImGui::SetNextItemWidth(wanted);
  const bool wrong = !typed_.empty() && !filter_;
  if (wrong) ImGui::PushStyleColor(ImGuiCol_Text, theme().warning);
  if (ImGui::InputTextWithHint("##filter", "filter: < 0.8", &typed_)) {
    filter_ = value_filter(typed_);
    seen_.reset();
    sort();
  }
  if (wrong) ImGui::PopStyleColor();
  tip("Shows, and n and p step through, the heads with such values: < 0.8, >= 10%");
}

void HeadTable::draw_table(PanelContext& context, ImVec2 size, const HeatmapView& heatmap) {
  const Theme& t = theme();
  if (!ImGui::BeginTable("heads", kColumnCount,
                         ImGuiTableFlags_ScrollY | (context.figure ? 0 : ImGuiTableFlags_Sortable), size))
    return;
  ImGui::PushFont(mono_font());
  const float rank = ImGui::CalcTextSize(map_->values.size() > 999 ? "88888" : "888").x;
  ImGui::PopFont();
  const auto fixed = [&](const char* name, float least, ImGuiID id) {
    const float width = std::max(ImGui::CalcTextSize(name).x, least);
    ImGui::TableSetupColumn(
        name, ImGuiTableColumnFlags_WidthFixed | (id == kRank ? ImGuiTableColumnFlags_DefaultSort : 0),
        width + (static_cast<int>(id) == column_ ? t.px(kArrow) : 0), id);
  };
  fixed("#", rank - t.px(kArrow) / 2, kRank);
  fixed("layer", 0, kLayer);
  fixed("head", 0, kHead);
  ImGui::TableSetupColumn(map_->figure.path.back().c_str(),
                          ImGuiTableColumnFlags_WidthStretch | ImGuiTableColumnFlags_PreferSortDescending, 0,
                          kValue);
  ImGui::TableSetupScrollFreeze(0, 1);
  ImGui::TableNextRow(ImGuiTableRowFlags_Headers);
  for (int c = 0; c < kColumnCount; ++c) {
    ImGui::TableSetColumnIndex(c);
    header(c);
    if (c == kValue) tip(map_->figure.title.c_str());
  }
  if (ImGuiTableSortSpecs* specs = ImGui::TableGetSortSpecs();
      !context.figure && specs != nullptr && specs->SpecsDirty && specs->SpecsCount > 0) {
    column_ = static_cast<int>(specs->Specs->ColumnUserID);
    descending_ = specs->Specs->SortDirection == ImGuiSortDirection_Descending;
    specs->SpecsDirty = false;
    sort();
  }
  const float row_height = ImGui::GetTextLineHeight() + 2 * ImGui::GetStyle().CellPadding.y;
  if (!context.figure) keep_in_view(context.state, row_height);
  ImGuiListClipper clipper;
  clipper.Begin(static_cast<int>(order_.size()), row_height);
  while (clipper.Step())
    for (int i = clipper.DisplayStart; i < clipper.DisplayEnd; ++i)
      draw_row(context, ranking_[order_[i]], heatmap);
  ImGui::EndTable();
}

}  // namespace kvreplay::viewer
