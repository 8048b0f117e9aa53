#include "viewer/panels/head_grid.hpp"

#include "viewer/widgets/controls.hpp"
#include "viewer/widgets/theme.hpp"

#include <algorithm>

namespace kvreplay::viewer {

std::optional<Index> HeadGrid::draw(ImVec2 size, const HeadGridContent& grid, AppState& state) {
  const DumpShape& shape = state.run()->shape();
  const bool across = grid.transposed;
  HeatmapContent content;
  content.key = {grid.key, across};
  if (key_ != content.key) {
    key_ = content.key;
    tiles_.clear();
  }
  const bool all = grid.layers.empty();
  const Index layers = all ? shape.layers : std::ssize(grid.layers);
  if (!grid.empty) content.size = across ? MatrixSize{shape.n_kv, layers} : MatrixSize{layers, shape.n_kv};
  // head_at: number of the head in a cell of the map. place_of: index of a layer among the map's rows, or
  // columns.
  const auto head_at = [&](Index row, Index column) {
    return across ? column * shape.n_kv + row : row * shape.n_kv + column;
  };
  const auto place_of = [&](std::optional<Index> layer) {
    if (all || !layer) return layer;
    const auto at = std::find(grid.layers.begin(), grid.layers.end(), *layer);
    return at == grid.layers.end() ? std::optional<Index>() : at - grid.layers.begin();
  };
  content.tile = [&](const TileKey& key) {
    std::shared_ptr<const Tile>& tile = tiles_[key];
    if (tile == nullptr)
      tile = std::make_shared<const Tile>(tile_of_values(
          content.size, key, [&](Index row, Index column) { return grid.value(head_at(row, column)); }));
    return Answer<Tile>{tile, false, false, {}};
  };
  content.quantity = grid.quantity;
  content.unit = grid.unit;
  content.is_signed = grid.is_signed;
  content.bad = grid.bad;
  content.low_word = grid.low_word;
  content.high_word = grid.high_word;
  content.row_name = across ? "KV head" : "layer";
  content.column_name = across ? "layer" : "KV head";
  (across ? content.column_number : content.row_number) = [&](Index place) {
    const Index layer = all ? place : grid.layers[static_cast<std::size_t>(place)];
    return std::to_string(state.run()->layer_number(layer).number);
  };
  content.scale = grid.scale;
  content.log_depth = grid.log_depth;
  content.square = grid.square;
  content.outline_cell = grid.outline;
  const Selection& selection = state.selection();
  (across ? content.column : content.row) = place_of(selection.layer);
  (across ? content.row : content.column) = selection.kv_head;
  const std::optional<Index> hovered = place_of(state.hover.layer);
  (across ? content.hover_column : content.hover_row) = hovered;
  if (all || hovered) (across ? content.hover_row : content.hover_column) = state.hover.kv_head;
  content.hint = grid.hint;
  const HeatmapHit hit = heatmap_.draw("grid", size, content, state.links);
  if (grid.stale) {
    ImDrawList* const list = ImGui::GetWindowDrawList();
    list->PushClipRect(heatmap_.map_low(), heatmap_.map_high(), true);
    for (Index row = 0; row < content.size.rows; ++row)
      for (Index column = 0; column < content.size.columns; ++column)
        if (grid.stale(head_at(row, column)))
          list->AddRectFilled(
              heatmap_.pixel_of(static_cast<double>(row), static_cast<double>(column)),
              heatmap_.pixel_of(static_cast<double>(row) + 1, static_cast<double>(column) + 1),
              faded(theme().panel, 1 - StaleOverlay::kShows));
    list->PopClipRect();
  }
  if (!hit.hovered) return std::nullopt;
  const Index head = head_at(hit.row, hit.column), place = head / shape.n_kv;
  const Index layer = all ? place : grid.layers[static_cast<std::size_t>(place)];
  state.next_hover.layer = layer;
  state.next_hover.kv_head = head % shape.n_kv;
  if (hit.clicked) state.select_head(layer, head % shape.n_kv);
  return head;
}

}  // namespace kvreplay::viewer
