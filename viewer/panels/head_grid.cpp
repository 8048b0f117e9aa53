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
    if (tile == nullptr) {
      TileBuilder builder(content.size, key);
      std::vector<float> cells;
      for (Index layer = builder.first_row(); layer < builder.end_row(); ++layer) {
        cells.clear();
        for (Index g = builder.first_column(); g < builder.end_column(); ++g)
          cells.push_back(static_cast<float>(grid.value(layer * shape.n_kv + g)));
        builder.add_row(layer, cells.data());
      }
      tile = std::make_shared<const Tile>(builder.finish());
    }
    Answer<Tile> answer;
    answer.value = tile;
    return answer;
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
