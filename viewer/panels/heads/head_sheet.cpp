#include "viewer/model/numbers.hpp"
#include "viewer/panels/heads/head_parts.hpp"
#include "viewer/panels/metric_controls.hpp"
#include "viewer/panels/picture_frame.hpp"
#include "viewer/widgets/controls.hpp"
#include "viewer/widgets/theme.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

namespace kvreplay::viewer {
namespace {

/// Time of one core that a head may take, besides reading it: some hundred rows of thousands of tokens.
constexpr double kSeconds = 0.012;
/// Texels between heads.
constexpr Index kHeadGap = 6;

}  // namespace

void HeadSheet::draw_controls() {
  constexpr float kEntryWidth = 132;
  flow(theme().px(kEntryWidth));
  choose("##entry", kEntries, shown_, kEntryWidth);
  tip(kEntries[shown_].meaning);
  flow(check_width("Worst first"));
  ImGui::Checkbox("Worst first", &worst_first_);
  tip("Heads by the figure above, not as the model has them");
}

std::string HeadSheet::title() const {
  return fmt::format("{} ({}) of every head, sampled queries", kEntries[shown_].name, kEntries[shown_].unit);
}

void HeadSheet::arrange(const Run& run, ImVec2 size, const std::vector<HeadPlace>& ranking) {
  const DumpShape& shape = run.shape();
  const MatrixSize map{shape.T_q, shape.T};
  std::vector<Head> heads;
  if (worst_first_ && std::ssize(ranking) == shape.layers * shape.n_kv) {
    for (const HeadPlace& place : ranking) heads.push_back({place.layer, place.kv_head});
  } else {
    for (Index layer = 0; layer < shape.layers; ++layer)
      for (Index head = 0; head < shape.n_kv; ++head) heads.push_back({layer, head});
  }
  level_ = top_level(map);
  const MatrixSize picture = tile_extent(map, {level_, 0, 0});
  const SheetLayout layout = sheet_layout(std::ssize(heads), worst_first_ ? 1 : shape.n_kv, picture, kHeadGap,
                                          static_cast<double>(size.x), static_cast<double>(size.y));
  const Key key(run.key(), "sheet", shown_);
  if (key == key_ && heads == heads_ && layout == layout_) return;
  if (key != key_) known_.clear();
  key_ = key;
  heads_ = std::move(heads);
  layout_ = layout;
  parts_.clear();
}

Answer<Tile> HeadSheet::ask_head(PanelContext& context, const Head& head) const {
  const std::shared_ptr<const Run>& run = context.state.run();
  const EntryView view{.layer = head.layer, .kv_head = head.kv_head, .shown = shown_};
  const JobRequest request{
      .key = {key_, head.layer, head.kv_head},
      .title = fmt::format("{} of {}, small", name_of(shown_), run->head_text(head.layer, head.kv_head)),
      .fills = true};
  return context.queue.ask<Tile>(request, [run, view, level = level_](JobControl& job) {
    const EntryMap<float> map(run->head(view.layer, view.kv_head), job.workers());
    return entry_preview(map, view, {level, 0, 0}, job, nullptr, kSeconds);
  });
}

/// Row by row from the heads that are known by now.
Tile HeadSheet::composed(const TileKey& key) const {
  TileBuilder builder(layout_.size(), key);
  const Index first = builder.first_column(), end = builder.end_column();
  std::vector<float> cells;
  for (Index row = builder.first_row(); row < builder.end_row(); ++row) {
    cells.assign(static_cast<std::size_t>(end - first), std::numeric_limits<float>::quiet_NaN());
    for (Index column = first; column < end;) {
      const auto place = layout_.at(row, column);
      if (!place) {
        ++column;
        continue;
      }
      const Head& head = heads_[static_cast<std::size_t>(place->number)];
      const Index n = std::min(layout_.picture.columns - place->column, end - column);
      const auto tile = known_.find({head.layer, head.kv_head});
      if (tile != known_.end() && tile->second)
        std::copy_n(tile->second->values.data() + place->row * tile->second->columns + place->column, n,
                    cells.data() + (column - first));
      column += n;
    }
    builder.add_row(row, cells.data());
  }
  return builder.finish();
}

/// Asks for the heads in view that are not known.
Answer<Tile> HeadSheet::part(PanelContext& context, const TileKey& key) {
  const Index side = kTileSize << key.level, pitch_row = layout_.picture.rows + layout_.gap,
              pitch_column = layout_.picture.columns + layout_.gap;
  std::size_t known = 0;
  Answer<Tile> answer;
  for (Index r = key.row * side / pitch_row; r < layout_.rows() && r * pitch_row < (key.row + 1) * side; ++r)
    for (Index c = key.column * side / pitch_column;
         c < layout_.columns && c * pitch_column < (key.column + 1) * side; ++c) {
      const Index number = r * layout_.columns + c;
      if (number >= layout_.count) break;
      const Head& head = heads_[static_cast<std::size_t>(number)];
      std::shared_ptr<const Tile>& tile = known_[{head.layer, head.kv_head}];
      if (!tile && picture_in_view(view_, layout_, number)) {
        const Answer<Tile> asked = ask_head(context, head);
        tile = asked.value;
        if (!asked.error.empty()) error_ = asked.error;
        if (asked.pending) ++missing_;
        answer.pending |= asked.pending;
      }
      known += tile ? 1 : 0;
    }
  Part& made = parts_[key];
  if (!made.tile || made.known != known) {
    made.known = known;
    made.tile = std::make_shared<const Tile>(composed(key));
  }
  answer.value = made.tile;
  return answer;
}

void HeadSheet::draw(PanelContext& context, ImVec2 size, const std::vector<HeadPlace>& ranking,
                     const std::string& figure) {
  AppState& state = context.state;
  const Run& run = *state.run();
  if (run.dump() == nullptr)
    return hint_no_dump(state, "Maps of heads need the dump, which is not at hand: " + run.why_no_dump());
  if (run.shape().T_q < 1) return hint("The dump holds no queries.");
  if (!error_.empty()) error_line(error_);
  error_.clear();
  arrange(run, size, ranking);
  missing_ = 0;
  HeatmapContent content;
  content.key = {key_, worst_first_, layout_.columns, heads_.empty() ? Index{0} : heads_.front().layer,
                 heads_.empty() ? Index{0} : heads_.front().kv_head};
  content.size = layout_.size();
  content.tile = [&](const TileKey& key) { return part(context, key); };
  content.quantity = name_of(shown_);
  content.unit = kEntries[shown_].unit;
  content.is_signed = shown_ == EntryTerm::logit;
  content.scale = content.is_signed ? ScaleKind::linear : ScaleKind::log;
  content.range.kind = RangeKind::percentiles;
  content.range.low_percent = content.is_signed ? 0.5 : 20;
  content.range.high_percent = content.is_signed ? 99.5 : 100;
  content.square = true;
  content.row_name = "query";
  content.column_name = "token";
  content.numbered = false;
  const HeatmapHit hit = view_.draw("sheet", size, content, state.links);
  draw_names(state, ranking);
  take_mouse(context, hit, ranking, figure);
}

/// The selected head's frame, that of the head that is hovered elsewhere, and where there is room names and
/// what the heads are in order of.
void HeadSheet::draw_names(const AppState& state, const std::vector<HeadPlace>& ranking) const {
  const bool ordered = in_order_of(ranking);
  for (Index n = 0; n < layout_.count; ++n) {
    if (!picture_in_view(view_, layout_, n)) continue;
    const Head& head = heads_[static_cast<std::size_t>(n)];
    std::vector<std::string> lines{
        fmt::format("L{} H{}", state.run()->layer_number(head.layer), head.kv_head)};
    if (ordered) lines.push_back(number_text(ranking[static_cast<std::size_t>(n)].value));
    frame_picture(view_, layout_, n,
                  state.selection().layer == head.layer && state.selection().kv_head == head.kv_head,
                  state.hover.layer == head.layer && state.hover.kv_head == head.kv_head, lines);
  }
}

void HeadSheet::take_mouse(PanelContext& context, const HeatmapHit& hit,
                           const std::vector<HeadPlace>& ranking, const std::string& figure_name) {
  const auto place = hit.hovered ? layout_.at(hit.row, hit.column) : std::nullopt;
  if (!place) return;
  AppState& state = context.state;
  const DumpShape& shape = state.run()->shape();
  const Head& head = heads_[static_cast<std::size_t>(place->number)];
  state.next_hover.layer = head.layer;
  state.next_hover.kv_head = head.kv_head;
  if (hit.clicked) state.select_head(head.layer, head.kv_head);
  const auto cells = [&](Index texel, Index first, Index end) {
    const Index from = first + (texel << level_), to = std::min(from + (Index{1} << level_), end) - 1;
    return from < to ? fmt::format("{} to {}", from, to) : std::to_string(from);
  };
  ImGui::BeginTooltip();
  ImGui::TextUnformatted(
      fmt::format("layer {}, KV head {}", state.run()->layer_number(head.layer), head.kv_head).c_str());
  const auto ranked = std::find_if(ranking.begin(), ranking.end(), [&](const HeadPlace& one) {
    return one.layer == head.layer && one.kv_head == head.kv_head;
  });
  if (ranked != ranking.end() && !std::isnan(ranked->value))
    figure(figure_name.c_str(), number_text(ranked->value));
  figure("queries", cells(place->row, shape.first_query(), shape.T));
  figure("tokens", cells(place->column, 0, shape.T));
  if (!known_[{head.layer, head.kv_head}])
    dim_text("not computed yet");
  else if (hit.value && !std::isnan(*hit.value))
    figure(fmt::format("{}, largest of the queries sampled", name_of(shown_)).c_str(),
           number_text(static_cast<double>(*hit.value)));
  else
    dim_text("hidden from these queries");
  ImGui::EndTooltip();
}

void HeadSheet::keep(SessionFields& fields) {
  fields.name("shown", shown_, in_table(kEntries));
  fields.field("worst_first", worst_first_);
  fields.part("map", view_);
}

}  // namespace kvreplay::viewer
