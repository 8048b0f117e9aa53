#include "viewer/model/color_table.hpp"
#include "viewer/model/numbers.hpp"
#include "viewer/panels/channels/channel_parts.hpp"
#include "viewer/widgets/controls.hpp"
#include "viewer/widgets/theme.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <imgui.h>
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

/// The places before which another part of the pairs begins: the first of each, the second, none.
std::vector<Index> part_starts(const std::vector<Index>& partner, const ChannelPlaces& places) {
  const auto part = [&](Index place) {
    const Index c = places.channel(place), other = partner[static_cast<std::size_t>(c)];
    return other < 0 ? 2 : other > c ? 0 : 1;
  };
  std::vector<Index> starts;
  for (Index p = 1; p < places.d(); ++p)
    if (part(p) != part(p - 1)) starts.push_back(p);
  return starts;
}

/// Colour of a pair; `place` is 0 for the first pair, 1 for the last.
ImU32 pair_color(float place) { return to_imgui(color_of(ColorMap::viridis, 0.1F + 0.85F * place)); }

}  // namespace

Matrix<double> normalised(const Matrix<double>& matrix) {
  Matrix<double> values = matrix;
  for (Index r = 0; r < matrix.rows(); ++r)
    for (Index c = 0; c < matrix.cols(); ++c) {
      const double scale = std::sqrt(matrix(r, r)) * std::sqrt(matrix(c, c));
      values(r, c) = scale > 0 ? matrix(r, c) / scale : kNone;
    }
  return values;
}

double largest_off_diagonal(const Matrix<double>& matrix) {
  double largest = 0;
  for (Index r = 0; r < matrix.rows(); ++r)
    for (Index c = 0; c < matrix.cols(); ++c)
      if (r != c && std::isfinite(matrix(r, c))) largest = std::max(largest, std::abs(matrix(r, c)));
  return largest;
}

std::string ChannelView::column() const {
  return fmt::format("{}{}", outputs ? "output_interaction" : "interaction", normalised ? "_normalised" : "");
}

void ChannelView::describe(HeatmapContent& content, double largest) const {
  content.quantity =
      normalised ? fmt::format("{0}_ce / sqrt({0}_cc {0}_ee)", symbol()) : fmt::format("{}_ce", symbol());
  content.unit = normalised ? "no unit" : outputs ? "squared output" : "squared logit";
  content.is_signed = true;
  content.square = true;
  content.scale = normalised ? ScaleKind::linear : ScaleKind::symlog;
  content.range.kind = RangeKind::fixed;
  content.range.fixed_high = largest > 0 ? static_cast<float>(largest) : 1;
  content.range.fixed_low = -content.range.fixed_high;
  content.row_name = "channel c";
  content.column_name = "e";
}

const Matrix<double>* matrix_of(const ChannelAnswers& answers, bool outputs, std::size_t part) {
  if (!outputs) {
    if (answers.head == nullptr) return nullptr;
    return &answers.head->parts[std::min(part, answers.head->parts.size() - 1)].basis.scores.logits;
  }
  if (answers.outputs == nullptr) return nullptr;
  return &answers.outputs->outputs[std::min(part, answers.outputs->outputs.size() - 1)];
}

void ChannelMatrix::show(const Key& key, const Matrix<double>& matrix, const Matrix<double>* minus,
                         bool normalised, const ChannelPlaces& places) {
  if (key == key_) return;
  key_ = key;
  tiles_.clear();
  places_ = places;
  values_ = normalised ? viewer::normalised(matrix) : matrix;
  if (minus != nullptr) {
    const Matrix<double> less = normalised ? viewer::normalised(*minus) : *minus;
    for (Index r = 0; r < d(); ++r)
      for (Index c = 0; c < d(); ++c) values_(r, c) = difference_of(less(r, c), values_(r, c));
  }
  largest_ = largest_off_diagonal(values_);
}

std::shared_ptr<const Tile> ChannelMatrix::tile(const TileKey& key) {
  auto& tile = tiles_[key];
  if (tile == nullptr)
    tile = std::make_shared<const Tile>(tile_of_values({d(), d()}, key, [this](Index row, Index column) {
      return values_(places_.channel(row), places_.channel(column));
    }));
  return tile;
}

void draw_rotation_pairs(const HeatmapView& map, const std::vector<Index>& partner,
                         const ChannelPlaces& places) {
  if (partner.empty()) return;
  const Theme& t = theme();
  const ImVec2 low = map.map_low(), high = map.map_high();
  const float side = t.px(3), gap = t.px(1.5F);
  Index pairs = 0;
  const std::vector<Index> number = places.placed(pair_numbers(partner, pairs));
  ImDrawList* list = ImGui::GetWindowDrawList();
  list->PushClipRect({low.x, low.y - side - gap}, {high.x + side + gap, high.y}, true);
  for (std::size_t c = 0; c < number.size(); ++c) {
    if (number[c] < 0) continue;
    const ImU32 color =
        pair_color(pairs > 1 ? static_cast<float>(number[c]) / static_cast<float>(pairs - 1) : 0.5F);
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
  const std::vector<Index> starts = part_starts(partner, places);
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

void dim_channels(const HeatmapView& map, const ChannelSet& by_channel, const ChannelPlaces& places) {
  const ChannelSet pruned = places.placed(by_channel);
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

namespace {

constexpr float kSwatch = 14, kSwatchGap = 5, kEntryGap = 14;  // points

/// One strip's entry.
struct Swatch {
  std::string text, tip;
  bool rotation = false;
  float width() const { return theme().px(kSwatch + kSwatchGap) + ImGui::CalcTextSize(text.c_str()).x; }
};

std::vector<Swatch> swatches_of(const EdgeLegend& legend) {
  std::vector<Swatch> swatches;
  if (!legend.method.empty())
    swatches.push_back(
        {"pruned by " + legend.method,
         "Lower and left edge: the channels that " + legend.method +
             " prunes at this ratio. A click on another method's row shows what that prunes."});
  if (legend.rotation)
    swatches.push_back(
        {"rotation pairs, first to last",
         "Upper and right edge: RoPE rotates channels in pairs, and the two of a pair have one "
         "colour. A channel without a colour is not rotated.",
         true});
  return swatches;
}

/// Where each stands, from the upper left of the legend.
std::vector<ImVec2> places_of(const std::vector<Swatch>& swatches, float width) {
  const float line = ImGui::GetTextLineHeight() + theme().px(2);
  std::vector<ImVec2> places;
  ImVec2 at{0, 0};
  for (const Swatch& one : swatches) {
    if (at.x > 0 && at.x + one.width() > width) at = {0, at.y + line};
    places.push_back(at);
    at.x += one.width() + theme().px(kEntryGap);
  }
  return places;
}

}  // namespace

float EdgeLegend::height(float width) const {
  const std::vector<ImVec2> places = places_of(swatches_of(*this), width);
  return places.empty() ? 0 : places.back().y + ImGui::GetTextLineHeight() + theme().px(4);
}

void EdgeLegend::draw(float width) const {
  const Theme& t = theme();
  const std::vector<Swatch> swatches = swatches_of(*this);
  const std::vector<ImVec2> places = places_of(swatches, width);
  const ImVec2 corner = ImGui::GetCursorScreenPos();
  ImDrawList* list = ImGui::GetWindowDrawList();
  for (std::size_t i = 0; i < swatches.size(); ++i) {
    const ImVec2 at{corner.x + places[i].x, corner.y + places[i].y};
    const float line = ImGui::GetTextLineHeight(), thick = t.px(4);
    const float left = at.x, right = at.x + t.px(kSwatch), top = std::floor(at.y + (line - thick) / 2);
    if (swatches[i].rotation) {
      constexpr int steps = 7;
      for (int s = 0; s < steps; ++s) {
        const auto from = static_cast<float>(s), wide = (right - left) / static_cast<float>(steps);
        list->AddRectFilled({left + from * wide, top}, {left + (from + 1) * wide, top + thick},
                            pair_color(from / static_cast<float>(steps - 1)));
      }
    } else {
      list->AddRectFilled({left, top}, {right, top + thick}, t.warning);
    }
    ImGui::SetCursorScreenPos(at);
    ImGui::Dummy({swatches[i].width(), line});
    tip(swatches[i].tip);
    const float text_at = right + t.px(kSwatchGap);
    list->AddText({text_at, at.y}, t.dim,
                  elided(swatches[i].text, std::max(corner.x + width - text_at, 0.0F)).c_str());
  }
  ImGui::SetCursorScreenPos(corner);
  ImGui::Dummy({width, height(width)});
}

void draw_strip_tip(const HeatmapView& map, const std::vector<Index>& partner, const ChannelSet* pruned,
                    const std::string& method, const ChannelPlaces& places) {
  if (!ImGui::IsWindowHovered() || places.d() == 0) return;
  const ImVec2 low = map.map_low(), high = map.map_high(), mouse = ImGui::GetMousePos();
  const float reach = theme().px(5);
  const bool across = mouse.x >= low.x && mouse.x < high.x, down = mouse.y >= low.y && mouse.y < high.y;
  const bool above = across && mouse.y < low.y && mouse.y >= low.y - reach,
             below = across && mouse.y >= high.y && mouse.y < high.y + reach,
             left = down && mouse.x < low.x && mouse.x >= low.x - reach,
             right = down && mouse.x >= high.x && mouse.x < high.x + reach;
  if (!above && !below && !left && !right) return;
  const ImVec2 first = map.pixel_of(0, 0), next = map.pixel_of(1, 1);
  const auto place = static_cast<Index>(std::floor(across ? (mouse.x - first.x) / (next.x - first.x)
                                                          : (mouse.y - first.y) / (next.y - first.y)));
  if (place < 0 || place >= places.d()) return;
  const Index channel = places.channel(place);
  const auto n = static_cast<std::size_t>(channel);
  std::string says;
  if ((below || left) && pruned != nullptr)
    says = fmt::format("{} by {}", (*pruned)[n] != 0 ? "pruned" : "kept", method);
  if ((above || right) && n < partner.size())
    says = partner[n] < 0 ? "not rotated" : fmt::format("rotates with {}", partner[n]);
  if (says.empty()) return;
  ImGui::BeginTooltip();
  figure("channel", fmt::format("{}", channel));
  dim_text(says);
  ImGui::EndTooltip();
}

void draw_channel_tip(const Run& run, const ChannelAnswers& answers, std::size_t part, ChannelPair at,
                      const ChannelSet* pruned, const std::string& method) {
  const Index first = at.first, second = at.second;
  const ChannelScores& scores = answers.head->parts[part].basis.scores;
  const std::vector<double> frequency = rope_frequencies(run, answers.layer);
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
      if (other >= 0 && n < frequency.size())
        turns += fmt::format(", {} rad a position", number_text(frequency[n]));
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

}  // namespace kvreplay::viewer
