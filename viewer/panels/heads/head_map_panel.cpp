#include "viewer/panels/heads/head_map_controls.hpp"
#include "viewer/panels/heads/head_sheet.hpp"
#include "viewer/panels/heads/head_table.hpp"
#include "viewer/panels/panel.hpp"
#include "viewer/panels/pinned_run.hpp"
#include "viewer/widgets/controls.hpp"
#include "viewer/widgets/theme.hpp"
#include "viewer/work/csv_table.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <map>

namespace kvreplay::viewer {
namespace {

constexpr float kLeastMap = 120;  // points

/// Layers x KV heads as a heatmap, and the heads in a table, the worst first.
class HeadMapPanel final : public Panel {
 public:
  void draw(PanelContext& context) override;
  HeatmapView* heatmap() override { return sheet_shown_ ? &sheet_.heatmap() : &view_; }
  std::string figure_title(PanelContext& context) const override;
  std::vector<std::string> figure_settings(PanelContext&) const override {
    if (!subtracted_) return {};
    return {"less " + subtracted_->path().string()};
  }
  std::string csv(PanelContext& context) const override;
  nlohmann::json save() const override;
  void load(const nlohmann::json& json) override;

 private:
  struct Places {
    bool beside = false;
    ImVec2 map, table;
    bool square = false;
  };
  Places arrange(ImVec2 room) const;
  void rank(PanelContext& context) const;
  void choose_mode();
  void draw_progress();
  void draw_map(PanelContext& context, ImVec2 size, bool square);
  void draw_hit(PanelContext& context, const HeatmapHit& hit) const;
  std::shared_ptr<const Tile> tile(const TileKey& key);

  void take_map(PanelContext& context, const FigureInfo* figure);
  bool pending() const { return source_.pending() || (subtracted_ && pinned_.pending()); }

  HeadMapSource source_, pinned_;
  std::shared_ptr<const Run> subtracted_;        // in this frame; null: none
  std::shared_ptr<const FigureMap> map_;         // what is shown; null: not known yet
  Key map_key_;                                  // says what it depends on
  std::shared_ptr<const FigureMap> difference_;  // of difference_key_
  Key difference_key_;
  bool missing_ = false;  // there is nothing to subtract
  HeadMapControls controls_;
  HeadTable table_;
  HeadSheet sheet_;
  bool sheet_shown_ = false;
  HeatmapView view_;
  Key tiles_key_;
  std::map<TileKey, std::shared_ptr<const Tile>> tiles_;
};

/// Both signs, none of them by rounding only.
bool has_both_signs(const FigureMap& map) {
  double low = 0, high = 0;
  for (Index i = 0; i < map.values.size(); ++i) {
    const double v = map.values.data()[i];
    if (!std::isfinite(v)) continue;
    low = std::min(low, v);
    high = std::max(high, v);
  }
  return std::min(-low, high) > 0.02 * std::max(-low, high);
}

std::shared_ptr<const Tile> HeadMapPanel::tile(const TileKey& key) {
  if (tiles_key_ != map_key_) {
    tiles_key_ = map_key_;
    tiles_.clear();
  }
  std::shared_ptr<const Tile>& made = tiles_[key];
  const Matrix<double>& values = map_->values;
  if (!made) made = std::make_shared<const Tile>(tile_of_values({values.rows(), values.cols()}, key, values));
  return made;
}

/// Beside each other, or below where that leaves small cells larger.
HeadMapPanel::Places HeadMapPanel::arrange(ImVec2 room) const {
  const Theme& t = theme();
  const auto rows = static_cast<float>(map_->values.rows());
  const auto heads = static_cast<float>(map_->values.cols());
  const float gap = t.px(10), table_width = table_.least_width();
  // What HeatmapView takes for axes and the colour bar.
  const float around_x = t.px(44 + 70), around_y = 2 * ImGui::GetTextLineHeight() + t.px(14);
  const auto cell = [&](float width, float height) {
    return std::max(1.0F, std::min((width - around_x) / heads, (height - around_y) / rows));
  };
  // A map of many rows needs the height more than the table does.
  float table_height = std::clamp(room.y * 0.5F, t.px(140), t.px(190));
  if (cell(room.x, room.y - table_height - gap) < t.px(14)) table_height = t.px(140);
  room.y = std::max(room.y, t.px(kLeastMap) + gap + table_height);  // beyond what there is, it scrolls
  const float beside = cell(room.x - table_width - gap, room.y),
              below = cell(room.x, room.y - table_height - gap);
  Places places;
  // Such cells are large enough: rows for the table.
  places.beside = room.x - table_width - gap >= around_x + t.px(24) && beside >= std::min(below, t.px(18));
  const float side = std::min(places.beside ? beside : below, t.px(72));
  // Square cells, unless they would be too flat to point at: then they are wider than high.
  places.square = side >= t.px(7);
  const float most_wide = places.square ? side * heads : std::max(side, t.px(14)) * heads;
  const float most_high = places.square ? side * rows : std::max(side, t.px(14)) * rows;
  if (places.beside) {
    const float width = std::min(room.x - table_width - gap, most_wide + around_x);
    places.map = {width, places.square ? std::min(room.y, most_high + around_y) : room.y};
    places.table = {room.x - width - gap, room.y};
  } else {
    const float height = std::min(room.y - table_height - gap, most_high + around_y);
    places.map = {places.square ? std::min(room.x, most_wide + around_x) : room.x, height};
    places.table = {room.x, room.y - height - gap};
  }
  places.table.x = std::min(places.table.x, t.px(520));
  return places;
}

void HeadMapPanel::draw_progress() {
  for (const std::string& problem : source_.problems()) error_line(problem);
  if (!pending()) return;
  const Index known = map_ ? map_->heads : 0;
  dim_text(source_.heads() > 0 && !source_.from_results()
               ? fmt::format("{} of {} heads", known, source_.heads())
               : std::string("Reading the results"));
  busy_mark();
}

void HeadMapPanel::draw_hit(PanelContext& context, const HeatmapHit& hit) const {
  const FigureMap& map = *map_;
  const Index layer = map.layers[hit.row], head = hit.column;
  context.state.next_hover.layer = layer;
  context.state.next_hover.kv_head = head;
  if (hit.clicked) context.state.select_head(layer, head);
  const double value = map.values(hit.row, head);
  ImGui::BeginTooltip();
  ImGui::Text("layer %d, KV head %d", static_cast<int>(layer), static_cast<int>(head));
  figure(map.figure.path.back().c_str(), number_text(value));
  if (const Index rank = table_.rank(hit.row, head); rank > 0)
    dim_text(fmt::format("{} of {}, {} first", rank, map.values.size(),
                         map.figure.facts.better != Better::neither ? "worst" : "largest"));
  else
    dim_text(pending() ? "not computed yet" : "no value");
  ImGui::EndTooltip();
}

void HeadMapPanel::draw_map(PanelContext& context, ImVec2 size, bool square) {
  const FigureMap& map = *map_;
  const AppState& state = context.state;
  const auto row_of = [&](std::optional<Index> layer) {
    const auto at = layer ? std::find(map.layers.begin(), map.layers.end(), *layer) : map.layers.end();
    return at == map.layers.end() ? std::optional<Index>() : std::optional<Index>(at - map.layers.begin());
  };
  HeatmapContent content;
  content.key = map_key_;
  content.size = {map.values.rows(), map.values.cols()};
  content.tile = [this](const TileKey& key) { return Answer<Tile>{tile(key), false, false, {}}; };
  content.quantity =
      subtracted_ ? less_than_pinned(map.figure.path.back(), *subtracted_) : map.figure.path.back();
  content.unit = map.figure.facts.unit;
  content.is_signed = subtracted_ || has_both_signs(map);
  const ScaleKind scale = scale_kind(map.figure.facts.scale);
  content.scale = content.is_signed && scale == ScaleKind::log ? ScaleKind::symlog : scale;
  content.square = square;
  content.row_name = "layer";
  content.column_name = "KV head";
  content.row_number = [&map](Index row) { return std::to_string(map.layers[row]); };
  content.outline_cell = true;
  content.row = row_of(state.selection().layer);
  content.column = state.selection().kv_head;
  content.hover_row = row_of(state.hover.layer);
  if (content.hover_row) content.hover_column = state.hover.kv_head;
  const HeatmapHit hit = view_.draw("heads", size, content, context.state.links);
  if (hit.hovered) draw_hit(context, hit);
}

/// The figure's map, or what of it is other in the pinned run.
void HeadMapPanel::take_map(PanelContext& context, const FigureInfo* figure) {
  map_ = source_.map();
  map_key_ = source_.key();
  subtracted_ = context.state.subtracted();
  if (!subtracted_) return;
  PanelContext of_pinned = context.of(subtracted_);
  pinned_.look(of_pinned);
  const FigureInfo* same = figure != nullptr ? pinned_.find(figure->name) : nullptr;
  if (same != nullptr) pinned_.ask(of_pinned, *same);
  map_key_ = {map_key_, "minus", pinned_.key()};
  const bool known = source_.map() && same != nullptr && pinned_.map();
  if (!known) {
    map_ = nullptr;
    difference_.reset();
    missing_ = same == nullptr && figure != nullptr && !pinned_.pending();
    return;
  }
  if (!difference_ || difference_key_ != map_key_) {
    difference_key_ = map_key_;
    const auto made = difference_map(*source_.map(), *pinned_.map());
    difference_ = made ? std::make_shared<const FigureMap>(*made) : nullptr;
  }
  map_ = difference_;
  missing_ = !difference_;
}

/// For the actions that step through the heads.
void HeadMapPanel::rank(PanelContext& context) const {
  context.state.worst_first.clear();
  for (const HeadPlace& place : table_.ranking())
    if (table_.takes(place)) context.state.worst_first.emplace_back(place.layer, place.kv_head);
  context.state.all_ranked = map_ && !pending() && map_->heads == map_->values.size();
}

void HeadMapPanel::choose_mode() {
  constexpr std::array<std::string_view, 2> kModes = {"Map", "Sheet"};
  auto mode = static_cast<std::size_t>(sheet_shown_ ? 1 : 0);
  flow(theme().px(96));
  ImGui::BeginGroup();
  if (segments("mode", kModes, mode)) sheet_shown_ = mode == 1;
  ImGui::EndGroup();
  tip("A number of every head, or a small token map of every head");
  if (sheet_shown_) sheet_.draw_controls();
}

void HeadMapPanel::draw(PanelContext& context) {
  if (!context.state.run()) return hint("Open a dump or a result folder.");
  source_.look(context);
  const FigureInfo* figure = nullptr;
  {
    const OutOfSight controls(context.figure);
    figure = controls_.draw(context, source_);
  }
  if (figure != nullptr) source_.ask(context, *figure);
  {
    const OutOfSight controls(context.figure);
    choose_mode();
    choose_difference(context.state);
  }
  take_map(context, figure);
  draw_progress();
  if (sheet_shown_) {
    table_.show(map_, map_key_);
    rank(context);
    return sheet_.draw(context, ImGui::GetContentRegionAvail(), table_.ranking(),
                       map_ ? map_->figure.title : std::string());
  }
  if (figure == nullptr || !map_) {
    if (subtracted_ && missing_)
      hint(fmt::format("{} has no such figure of these heads to subtract.", subtracted_->name()));
    else if (!pending() && source_.problems().empty())
      hint("This run has no figures of heads.");
    return;
  }
  table_.show(map_, map_key_);
  rank(context);

  ImGui::Dummy({0, theme().px(2)});
  const ImVec2 at = ImGui::GetCursorScreenPos(), room = ImGui::GetContentRegionAvail();
  const Places places = arrange(room);
  draw_map(context, places.map, places.square);
  const float gap = theme().px(10);
  ImGui::SetCursorScreenPos(places.beside ? ImVec2{at.x + places.map.x + gap, at.y}
                                          : ImVec2{at.x, at.y + places.map.y + gap});
  table_.draw(context, places.table, view_);
}

std::string HeadMapPanel::figure_title(PanelContext&) const {
  if (sheet_shown_) return sheet_.title();
  if (!map_) return {};
  const FigureInfo& figure = map_->figure;
  const std::string title = subtracted_ ? less_than_pinned(figure.title, *subtracted_) : figure.title;
  return figure.facts.unit.empty() ? title : fmt::format("{} ({})", title, figure.facts.unit);
}

std::string HeadMapPanel::csv(PanelContext& context) const {
  if (!context.state.run() || !map_) return {};
  const FigureMap& map = *map_;
  CsvTable table(fmt::format("layer,kv_head,{}{}", map.figure.name, subtracted_ ? "_less_pinned" : ""));
  for (Index row = 0; row < map.values.rows(); ++row)
    for (Index head = 0; head < map.values.cols(); ++head)
      table.row(map.layers[row], head, if_any(map.values(row, head)));
  return table.text();
}

nlohmann::json HeadMapPanel::save() const {
  return {{"controls", controls_.save()},
          {"heatmap", view_.save()},
          {"sheet", sheet_.save()},
          {"sheet_shown", sheet_shown_}};
}

void HeadMapPanel::load(const nlohmann::json& json) {
  if (!json.is_object()) return;
  if (const auto found = json.find("controls"); found != json.end()) controls_.load(*found);
  if (const auto found = json.find("heatmap"); found != json.end()) view_.load(*found);
  if (const auto found = json.find("sheet"); found != json.end()) sheet_.load(*found);
  sheet_shown_ = json.value("sheet_shown", nlohmann::json(false)) == true;
}

}  // namespace

template <>
std::unique_ptr<Panel> make_panel<PanelKind::heads>() {
  return std::make_unique<HeadMapPanel>();
}

}  // namespace kvreplay::viewer
