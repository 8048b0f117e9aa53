#include "viewer/panels/channels/channel_matrix.hpp"

#include "viewer/model/color_table.hpp"
#include "viewer/model/numbers.hpp"
#include "viewer/widgets/controls.hpp"
#include "viewer/widgets/theme.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
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

}  // namespace kvreplay::viewer
