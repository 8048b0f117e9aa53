#include "viewer/panels/channels/channel_map.hpp"

#include "viewer/model/heatmap_image.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace kvreplay::viewer {
namespace {

/// The matrix that is shown of a head; null where it is not there.
const Matrix<double>* matrix_of(const ChannelAnswers& answers, bool outputs, std::size_t part) {
  if (!outputs) {
    if (answers.head == nullptr) return nullptr;
    return &answers.head->parts[std::min(part, answers.head->parts.size() - 1)].basis.scores.logits;
  }
  if (answers.outputs == nullptr) return nullptr;
  return &answers.outputs->outputs[std::min(part, answers.outputs->outputs.size() - 1)];
}

}  // namespace

HeatmapContent ChannelMap::heatmap_content(const ChannelMapContent& content, const Matrix<double>* matrix,
                                           const Matrix<double>* minus) {
  const char* symbol = content.outputs ? "M" : "H";
  HeatmapContent c;
  c.key = {content.now.key, symbol, content.part, content.normalised,
           minus != nullptr ? content.pinned.answers->key : Key()};
  if (matrix != nullptr) matrix_.show(c.key, *matrix, minus, content.normalised);
  c.tile = [this, matrix](const TileKey& key) {
    Answer<Tile> answer;
    if (matrix != nullptr) answer.value = matrix_.tile(key);
    answer.pending = matrix == nullptr;
    return answer;
  };
  c.quantity =
      content.normalised ? fmt::format("{0}_ce / sqrt({0}_cc {0}_ee)", symbol) : fmt::format("{}_ce", symbol);
  if (minus != nullptr) c.quantity += ", less that of " + content.pinned.name;
  c.unit = content.normalised ? "" : content.outputs ? "squared output" : "squared logit";
  c.is_signed = true;
  c.square = true;
  c.scale = content.normalised ? ScaleKind::linear : ScaleKind::symlog;
  c.range.kind = RangeKind::fixed;
  // The diagonal is larger than all else: it is cut off.
  c.range.fixed_high = matrix == nullptr ? 1 : static_cast<float>(matrix_.largest_off_diagonal());
  if (c.range.fixed_high == 0) c.range.fixed_high = 1;  // two runs that are the same
  c.range.fixed_low = -c.range.fixed_high;
  c.row_name = "channel c";
  c.column_name = "channel e";
  if (content.pruned != nullptr)
    for (std::size_t i = 0; i < content.pruned->size(); ++i)
      if ((*content.pruned)[i] != 0) c.column_marks.push_back(static_cast<Index>(i));
  c.row_marks = c.column_marks;
  c.outline_cell = true;
  return c;
}

void ChannelMap::draw(AppState& state, ImVec2 size, const ChannelMapContent& content) {
  const Selection& selected = state.selection();
  const ChannelAnswers* pinned = content.pinned.answers;
  const Matrix<double>* matrix = matrix_of(content.now, content.outputs, content.part);
  const Matrix<double>* minus =
      pinned != nullptr ? matrix_of(*pinned, content.outputs, content.part) : nullptr;
  const bool waits = pinned != nullptr && minus == nullptr && pinned->pending;
  if (waits) matrix = nullptr;
  if (matrix == nullptr) minus = nullptr;
  subtracts_ = minus != nullptr;
  HeatmapContent c = heatmap_content(content, matrix, minus);
  const Index d = state.run()->shape().d;
  c.size = {d, d};
  if (matrix == nullptr && !content.now.pending && !waits) {
    c.size = {0, 0};
    c.hint = "The run's results have no output-space matrix: no method needed it.";
  }
  if (selected.channels) {
    c.row = selected.channels->first;
    c.column = selected.channels->second;
  }
  const HeatmapHit hit = map_.draw("channels", size, c, state.links);
  if (c.size.rows == 0) return;
  if (content.dim && content.pruned != nullptr) dim_channels(map_, *content.pruned);
  const ChannelHead* head = content.now.head.get();
  if (head != nullptr) draw_rotation_pairs(map_, head->parts[content.part].basis.scores.rope_partner);
  if (!hit.hovered || matrix == nullptr) return;
  draw_channel_tip(*state.run(), content.now, content.part, {hit.row, hit.column}, content.pruned,
                   content.method);
  if (!hit.clicked) return;
  Selection next = selected;
  next.channels = ChannelPair{hit.row, hit.column};
  state.select(std::move(next), "channels");
}

}  // namespace kvreplay::viewer
