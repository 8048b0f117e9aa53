#pragma once

#include "viewer/questions/state.hpp"
#include "viewer/widgets/heatmap_view.hpp"

#include <functional>
#include <map>
#include <memory>
#include <string>

namespace kvreplay::viewer {

struct HeadGridContent {
  Key key;  ///< says all that the values depend on
  std::string quantity, unit;
  bool is_signed = false;
  std::vector<Index> layers = {};           ///< of the rows; empty: all
  std::function<double(Index head)> value;  ///< heads numbered row-major over [rows, n_kv]; NaN: none
  ScaleKind scale = ScaleKind::linear;
  float log_depth = 0;      ///< as in HeatmapContent
  bool square = false;      ///< cells are
  bool transposed = false;  ///< layers from left to right, KV heads from top to bottom
  BadEnd bad = BadEnd::neither;
  std::string low_word, high_word;        ///< meaning of the ends of the colour scale
  std::function<bool(Index head)> stale;  ///< drawn faint: the value is about to change; empty: none is
  bool outline = false;                   ///< marks the selected cell, not its row and column
  bool empty = false;
  std::string hint;  ///< where empty
};

/// One number a head as a map layers x KV heads. The head under the mouse is hovered everywhere, and clicked
/// it is selected.
class HeadGrid {
 public:
  /// The head under the mouse, if any; for a tooltip.
  std::optional<Index> draw(ImVec2 size, const HeadGridContent& content, AppState& state);
  HeatmapView& heatmap() { return heatmap_; }
  const HeatmapView& heatmap() const { return heatmap_; }

 private:
  HeatmapView heatmap_;
  Key key_;
  std::map<TileKey, std::shared_ptr<const Tile>> tiles_;
};

}  // namespace kvreplay::viewer
