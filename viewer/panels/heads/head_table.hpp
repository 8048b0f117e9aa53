#pragma once

#include "viewer/model/numbers.hpp"
#include "viewer/panels/panel.hpp"
#include "viewer/questions/figure_map.hpp"

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace kvreplay::viewer {

class HeatmapView;

/// The heads of a map in a table, the worst first unless sorted otherwise. A click selects.
class HeadTable {
 public:
  /// Takes up another map; the same `key`: the same map.
  void show(std::shared_ptr<const FigureMap> map, const Key& key);
  /// Draws within `size` pixels. `heatmap` lends its colours to the values' bars.
  void draw(PanelContext& context, ImVec2 size, const HeatmapView& heatmap);
  /// Worst first, whatever the table is sorted by.
  const std::vector<HeadPlace>& ranking() const { return ranking_; }
  /// Shows these alone, [row * n_kv + kv_head] of the map, ascending; none: all.
  void choose(const std::vector<Index>& heads);
  /// Whether the filter that is typed takes a head, and it is among those chosen.
  bool takes(const HeadPlace& place) const;
  /// A head's place in it, from 1 on; 0 where it has no value.
  Index rank(Index row, Index kv_head) const;
  float least_width() const;

 private:
  void sort();
  void edit_filter(float width, float right);
  void draw_table(PanelContext& context, ImVec2 size, const HeatmapView& heatmap);
  void draw_row(PanelContext& context, const HeadPlace& place, const HeatmapView& heatmap);
  void keep_in_view(const AppState& state, float row_height);

  std::shared_ptr<const FigureMap> map_;
  Key key_;
  std::vector<HeadPlace> ranking_;
  std::vector<Index> ranks_;        // [rows * n_kv], 0 without a value
  std::vector<std::size_t> order_;  // of the table: into ranking_
  NumberColumn numbers_;            // of the values
  std::string typed_;               // "< 0.8": values that are shown
  std::optional<ValueFilter> filter_;
  std::vector<Index> chosen_;
  int column_ = 0;  // sorted by
  bool descending_ = false;
  std::optional<std::pair<Index, Index>> seen_;  // the head that was last brought into view
  float room_ = 0;                               // and the height of the list then
};

}  // namespace kvreplay::viewer
