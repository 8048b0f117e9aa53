#include "viewer/model/numbers.hpp"
#include "viewer/panels/channels/channel_parts.hpp"
#include "viewer/panels/picture_frame.hpp"
#include "viewer/questions/csv_table.hpp"
#include "viewer/widgets/controls.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <imgui.h>
#include <limits>
#include <span>
#include <utility>

namespace kvreplay::viewer {
namespace {

/// Channels between two matrices, as a share of d.
constexpr Index kGapShare = 12, kLeastGap = 2;

}  // namespace

/// Takes over what is shown of a head, once.
void ChannelSheet::take(const Run& run, const ChannelAnswers& answers, Index kv_head) {
  for (Index p = 0; p < parts_; ++p) {
    Picture& picture = pictures_[static_cast<std::size_t>(kv_head * parts_ + p)];
    const auto part = static_cast<std::size_t>(p);
    const Matrix<double>* matrix = matrix_of(answers, view_.outputs, part);
    if (matrix == nullptr) {
      picture = {};
      continue;
    }
    Key key(answers.key, p, view_.outputs, view_.normalised, view_.arrangement);
    if (picture.key == key) continue;
    picture.key = std::move(key);
    picture.values = view_.normalised ? normalised(*matrix) : *matrix;
    picture.places = arranged(run, answers, part, view_.arrangement);
    picture.largest = largest_off_diagonal(picture.values);
  }
}

void ChannelSheet::ask(PanelContext& context, ChannelQuestions& questions, const ChannelSettings& settings) {
  const Run& run = *context.run();
  const Index heads = run.shape().n_kv;
  pending_ = false;
  error_.clear();
  std::vector<ChannelAnswers> answers;
  for (Index g = 0; g < heads; ++g) {
    const ChannelAnswers& one =
        answers.emplace_back(questions.ask_matrices(context, settings, g, view_.outputs));
    pending_ |= one.pending;
    if (error_.empty()) error_ = one.error;
    if (one.head != nullptr) parts_ = std::ssize(one.head->parts);
  }
  pictures_.resize(static_cast<std::size_t>(heads * parts_));
  Key key(run.key(), heads, parts_);
  for (Index g = 0; g < heads; ++g) take(run, answers[static_cast<std::size_t>(g)], g);
  for (const Picture& picture : pictures_) key = {key, picture.key};
  if (key == key_) return;
  key_ = std::move(key);
  tiles_.clear();
}

void ChannelSheet::arrange(const DumpShape& shape, ImVec2 size) {
  const Index gap = std::max(kLeastGap, shape.d / kGapShare);
  const SheetLayout layout = sheet_layout(std::ssize(pictures_), 1, {shape.d, shape.d}, gap,
                                          static_cast<double>(size.x), static_cast<double>(size.y));
  if (layout == layout_) return;
  layout_ = layout;
  tiles_.clear();
}

float ChannelSheet::value(Index row, Index column) const {
  const auto place = layout_.at(row, column);
  if (!place) return std::numeric_limits<float>::quiet_NaN();
  const Picture& picture = pictures_[static_cast<std::size_t>(place->number)];
  if (picture.values.size() == 0) return std::numeric_limits<float>::quiet_NaN();
  return static_cast<float>(
      picture.values(picture.places.channel(place->row), picture.places.channel(place->column)));
}

bool ChannelSheet::is_selected(Index number, const Selection& selection) const {
  return selection.kv_head == kv_head(number) &&
         (parts_ == 1 || selection.query_head.value_or(0) == part(number));
}

void ChannelSheet::draw_frames(const AppState& state) const {
  for (Index n = 0; n < layout_.count; ++n) {
    if (!picture_in_view(map_, layout_, n)) continue;
    const bool hovered = state.hover.layer == state.selection().layer && state.hover.kv_head == kv_head(n);
    const std::string name =
        parts_ == 1 ? fmt::format("H{}", kv_head(n)) : fmt::format("H{} q{}", kv_head(n), part(n));
    frame_picture(map_, layout_, n, is_selected(n, state.selection()), hovered, std::span(&name, 1));
  }
}

void ChannelSheet::take_mouse(AppState& state, const HeatmapHit& hit) {
  const auto place = hit.hovered ? layout_.at(hit.row, hit.column) : std::nullopt;
  if (!place) return;
  const Picture& picture = pictures_[static_cast<std::size_t>(place->number)];
  state.next_hover.layer = state.selection().layer;
  state.next_hover.kv_head = kv_head(place->number);
  if (hit.clicked) {
    Selection next = state.selection();
    next.kv_head = kv_head(place->number);
    if (parts_ > 1) next.query_head = part(place->number);
    state.select(std::move(next));
  }
  ImGui::BeginTooltip();
  ImGui::TextUnformatted(
      parts_ == 1
          ? fmt::format("KV head {}", kv_head(place->number)).c_str()
          : fmt::format("KV head {}, query head {}", kv_head(place->number), part(place->number)).c_str());
  if (picture.values.size() == 0) {
    dim_text("not computed yet");
  } else {
    const Index c = picture.places.channel(place->row), e = picture.places.channel(place->column);
    figure("channels", fmt::format("{}, {}", c, e));
    figure(view_.normalised ? "normalised" : fmt::format("{}_ce", view_.symbol()).c_str(),
           number_text(picture.values(c, e)));
  }
  ImGui::EndTooltip();
}

void ChannelSheet::draw(PanelContext& context, ChannelQuestions& questions, const ChannelSettings& settings,
                        const ChannelView& view, ImVec2 size) {
  view_ = view;
  ask(context, questions, settings);
  const DumpShape& shape = context.run()->shape();
  arrange(shape, size);
  HeatmapContent content;
  content.key = key_;
  content.size = layout_.size();
  double largest = 0;
  bool known = false;
  for (const Picture& picture : pictures_) {
    largest = std::max(largest, picture.largest);
    known |= picture.values.size() > 0;
  }
  if (!known && !pending_) {
    content.size = {0, 0};
    content.hint = "The run's results have no such matrix of these heads.";
  }
  view_.describe(content, largest);
  content.numbered = false;
  content.tile = [this](const TileKey& key) {
    std::shared_ptr<const Tile>& tile = tiles_[key];
    if (tile == nullptr)
      tile = std::make_shared<const Tile>(tile_of_values(
          layout_.size(), key, [this](Index row, Index column) { return value(row, column); }));
    return Answer<Tile>{tile, pending_, false, {}};
  };
  const HeatmapHit hit = map_.draw("sheet", size, content, context.state.links);
  if (content.size.rows == 0) return;
  draw_frames(context.state);
  take_mouse(context.state, hit);
}

std::string ChannelSheet::csv() const {
  if (pending_ || pictures_.empty()) return {};
  CsvTable table("kv_head,query_head,channel,other_channel," + view_.column());
  for (Index n = 0; n < std::ssize(pictures_); ++n) {
    const Matrix<double>& values = pictures_[static_cast<std::size_t>(n)].values;
    const std::string query_head = parts_ == 1 ? std::string() : std::to_string(part(n));
    for (Index c = 0; c < values.rows(); ++c)
      for (Index e = 0; e < values.cols(); ++e) table.row(kv_head(n), query_head, c, e, values(c, e));
  }
  return table.text();
}

}  // namespace kvreplay::viewer
