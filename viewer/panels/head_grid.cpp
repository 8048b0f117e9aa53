#include "viewer/panels/head_grid.hpp"

#include <algorithm>

namespace kvreplay::viewer {

std::optional<Index> HeadGrid::draw(ImVec2 size, const HeadGridContent& grid, AppState& state) {
  const DumpShape& shape = state.run()->shape();
  HeatmapContent content;
  content.key = grid.key;
  if (key_ != grid.key) {
    key_ = grid.key;
    tiles_.clear();
  }
  const bool all = grid.layers.empty();
  if (!grid.empty) content.size = {all ? shape.layers : std::ssize(grid.layers), shape.n_kv};
  const auto row_of = [&](std::optional<Index> layer) {
    if (all || !layer) return layer;
    const auto at = std::find(grid.layers.begin(), grid.layers.end(), *layer);
    return at == grid.layers.end() ? std::optional<Index>() : at - grid.layers.begin();
  };
  content.tile = [&](const TileKey& key) {
    std::shared_ptr<const Tile>& tile = tiles_[key];
    if (tile == nullptr)
      tile = std::make_shared<const Tile>(tile_of_values(
          content.size, key, [&](Index row, Index g) { return grid.value(row * shape.n_kv + g); }));
    return Answer<Tile>{tile, false, false, {}};
  };
  content.quantity = grid.quantity;
  content.unit = grid.unit;
  content.is_signed = grid.is_signed;
  content.row_name = "layer";
  content.column_name = "KV head";
  if (!all) content.row_number = [&](Index row) { return std::to_string(grid.layers[row]); };
  content.scale = grid.scale;
  content.square = grid.square;
  content.outline_cell = grid.outline;
  content.row = row_of(state.selection().layer);
  content.column = state.selection().kv_head;
  content.hover_row = row_of(state.hover.layer);
  if (all || content.hover_row) content.hover_column = state.hover.kv_head;
  content.hint = grid.hint;
  const HeatmapHit hit = heatmap_.draw("grid", size, content, state.links);
  if (!hit.hovered) return std::nullopt;
  const Index layer = all ? hit.row : grid.layers[hit.row];
  state.next_hover.layer = layer;
  state.next_hover.kv_head = hit.column;
  if (hit.clicked) state.select_head(layer, hit.column);
  return hit.row * shape.n_kv + hit.column;
}

}  // namespace kvreplay::viewer
