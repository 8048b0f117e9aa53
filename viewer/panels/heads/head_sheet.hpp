#pragma once

#include "viewer/model/layout.hpp"
#include "viewer/panels/panel.hpp"
#include "viewer/questions/entry_tiles.hpp"
#include "viewer/questions/figure_map.hpp"

#include <map>
#include <memory>
#include <string>
#include <vector>

namespace kvreplay::viewer {

/// A small token map of every head on one scale: from a sample of its rows, and of heads in view alone.
class HeadSheet {
 public:
  /// What it shows and in which order.
  void draw_controls();
  /// Draws within `size` pixels. `ranking`: the heads, the worst first by what is called `figure`.
  void draw(PanelContext& context, ImVec2 size, const std::vector<HeadPlace>& ranking,
            const std::string& figure);
  HeatmapView& heatmap() { return view_; }
  /// "exact_remove (squared output) of every head"
  std::string title() const;

  void keep(SessionFields& fields);

 private:
  struct Head {
    Index layer = 0, kv_head = 0;
    bool operator==(const Head&) const = default;
  };
  /// A part of the sheet, and of how many heads it was made.
  struct Part {
    std::shared_ptr<const Tile> tile;
    std::size_t known = 0;
  };
  void arrange(const Run& run, ImVec2 size, const std::vector<HeadPlace>& ranking);
  Answer<Tile> ask_head(PanelContext& context, const Head& head) const;
  Tile composed(const TileKey& key) const;
  Answer<Tile> part(PanelContext& context, const TileKey& key);
  void draw_names(const AppState& state, const std::vector<HeadPlace>& ranking) const;
  void take_mouse(PanelContext& context, const HeatmapHit& hit, const std::vector<HeadPlace>& ranking,
                  const std::string& figure_name);
  bool in_order_of(const std::vector<HeadPlace>& ranking) const {
    return worst_first_ && ranking.size() == heads_.size();
  }

  EntryTerm shown_ = EntryTerm::exact_remove;
  bool worst_first_ = false;
  HeatmapView view_;
  Key key_;                  // what heads_ and parts_ are of
  std::vector<Head> heads_;  // as they stand in the sheet
  SheetLayout layout_;
  int level_ = 0;  // of the heads' tiles
  std::map<TileKey, Part> parts_;
  std::map<std::pair<Index, Index>, std::shared_ptr<const Tile>> known_;  // by layer and KV head
  std::string error_;
  Index missing_ = 0;  // heads in view without a tile
};

}  // namespace kvreplay::viewer
