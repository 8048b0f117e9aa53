#include "viewer/panels/head_grid.hpp"

#include <vector>

namespace kvreplay::viewer {

std::optional<Index> HeadGrid::draw(ImVec2 size, const HeadGridContent& grid, AppState& state) {
  const DumpShape& shape = state.run()->shape();
  HeatmapContent content;
  content.key = grid.key;
  if (key_ != grid.key) {
    key_ = grid.key;
    tiles_.clear();
  }
  if (!grid.empty) content.size = {shape.layers, shape.n_kv};
  content.tile = [&](const TileKey& key) {
    std::shared_ptr<const Tile>& tile = tiles_[key];
    if (tile == nullptr)
      tile = std::make_shared<const Tile>(tile_of_values(
          content.size, key, [&](Index layer, Index g) { return grid.value(layer * shape.n_kv + g); }));
    return Answer<Tile>{tile, false, false, {}};
  };
  content.quantity = grid.quantity;
  content.unit = grid.unit;
  content.is_signed = grid.is_signed;
  content.row_name = "layer";
  content.column_name = "KV head";
  content.row = state.selection().layer;
  content.column = state.selection().kv_head;
  content.hover_row = state.hover.layer;
  content.hover_column = state.hover.kv_head;
  content.hint = grid.hint;
  const HeatmapHit hit = heatmap_.draw("grid", size, content, state.links);
  if (!hit.hovered) return std::nullopt;
  state.next_hover.layer = hit.row;
  state.next_hover.kv_head = hit.column;
  if (hit.clicked) state.select_head(hit.row, hit.column);
  return hit.row * shape.n_kv + hit.column;
}

}  // namespace kvreplay::viewer
