#pragma once

#include "viewer/model/choice.hpp"
#include "viewer/model/layout.hpp"
#include "viewer/model/numbers.hpp"
#include "viewer/panels/panel.hpp"
#include "viewer/panels/session_fields.hpp"
#include "viewer/questions/entry_tiles.hpp"
#include "viewer/questions/figure_map.hpp"
#include "viewer/questions/scatter.hpp"
#include "viewer/questions/state.hpp"
#include "viewer/widgets/lasso.hpp"
#include "viewer/widgets/plot.hpp"

#include <cstdint>
#include <imgui.h>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace kvreplay::viewer {

/// Metric that the head map shows, and its controls: the cost of a setting of What if, the agreement of the
/// compared score with the reference (AppState::comparison), or any other. Default: the cost of setting A
/// (main_cost()); for results without their dump, the agreement.
class HeadMapControls {
 public:
  /// Draws the controls; null where the run has no figure to show.
  const FigureInfo* draw(PanelContext& context, const HeadMapSource& source);
  /// Result that draw() would return, without drawing.
  const FigureInfo* shown(const AppState& state, const HeadMapSource& source) const;
  /// Second metric of the plot: agreement, if the map shows the cost of a setting; else the cost of setting
  /// A. Null if the run has no such metric.
  const FigureInfo* counterpart(const AppState& state, const HeadMapSource& source,
                                const FigureInfo& shown) const;

  void keep(SessionFields& fields);

 private:
  enum class Kind { cost, agreement, fixed };
  struct Node {
    std::string name;
    std::vector<Node> children;
    const FigureInfo* figure = nullptr;
    Node& child(const std::string& name);
  };
  void list(const HeadMapSource& source);
  void choose_figure(AppState& state, const FigureInfo& figure);
  void draw_menu(AppState& state, const Node& node, const FigureInfo* shown);
  void draw_pair(AppState& state);
  void draw_views(const AppState& state, const FigureInfo& shown);
  const FigureInfo* cost(const AppState& state, const HeadMapSource& source, SettingView view) const;
  const FigureInfo* agreement(const AppState& state, const HeadMapSource& source) const;

  Kind kind_ = Kind::cost;
  SettingView view_ = SettingView::a;
  std::string cost_;                                     // of what_if_figures(); empty: main_cost()
  AgreementFigure measure_ = AgreementFigure::spearman;  // of agreement
  std::string fixed_;                                    // a figure that stays, whatever is compared
  std::uint64_t listed_ = 0;                             // HeadMapSource::list() that the rest was made of
  Node menu_;
  std::vector<Choice> choices_;   // the same as a list, one of each of HeadMapSource::figures()
  std::vector<TokenPair> pairs_;  // that the run has an agreement of
};

/// The heads of a map in a table, the worst first unless sorted otherwise. A click selects.
class HeadTable {
 public:
  /// Takes up another map; the same `key`: the same map.
  void show(std::shared_ptr<const FigureMap> map, const Key& key);
  /// Draws within `size` pixels. `heatmap` lends its colours to the values' bars.
  void draw(PanelContext& context, ImVec2 size, const HeatmapView& heatmap);
  /// Worst first, whatever the table is sorted by.
  const std::vector<HeadPlace>& ranking() const { return ranking_; }
  /// Restricts the table to these heads, [row * n_kv + kv_head] of the map, ascending; empty: all heads.
  void choose(const std::vector<Index>& heads);
  /// True if a head passes the typed filter and is among those chosen.
  bool takes(const HeadPlace& place) const;
  /// Rank of a head in ranking(), from 1 on; 0 if it has no value.
  Index rank(Index row, Index kv_head) const;
  float least_width() const;

 private:
  void sort();
  void edit_filter(float width, float right);
  void draw_table(PanelContext& context, ImVec2 size, const HeatmapView& heatmap);
  void draw_row(PanelContext& context, const HeadPlace& place, const HeatmapView& heatmap);
  void draw_bar(const HeadPlace& place, const HeatmapView& heatmap, ImVec2 low, float room);
  void keep_in_view(const AppState& state, float row_height);

  std::shared_ptr<const FigureMap> map_;
  Key key_;
  std::vector<HeadPlace> ranking_;
  std::vector<Index> ranks_;        // [rows * n_kv], 0 without a value
  std::vector<std::size_t> order_;  // of the table: into ranking_
  NumberColumn numbers_;            // of the values
  HeadBars bars_;
  std::vector<double>
      held_;           // share of all costs that a place of ranking_ and those before it hold; or empty
  std::string typed_;  // "< 0.8": values that are shown
  std::optional<ValueFilter> filter_;
  std::vector<Index> chosen_;
  int column_ = 0;  // sorted by
  bool descending_ = false;
  std::optional<std::pair<Index, Index>> seen_;  // the head that was last brought into view
  float room_ = 0;                               // and the height of the list then
};

/// A point a head: one figure of all heads against another. A click selects the head, a lasso chooses
/// several.
class HeadScatter {
 public:
  /// Heads that have both figures; both maps are of the same heads. `colors` lends the map's colours to the
  /// points, which are those of `shown`. Draws within `size` pixels.
  void draw(AppState& state, ImVec2 size, const std::shared_ptr<const FigureMap>& across,
            const std::shared_ptr<const FigureMap>& up, const FigureMap& shown, const HeatmapView& colors);
  /// Heads that a lasso chose, row by row of the map, ascending; empty: all count.
  const std::vector<Index>& chosen() const { return chosen_; }
  /// Clears the choice. Returns true if any heads were chosen.
  bool choose_none();

 private:
  void take_hand(AppState& state, const FigureMap& map, const Plot& plot);

  std::shared_ptr<const FigureMap> across_, up_;  // what the points are of
  Scatter points_;
  PlotView view_;
  Lasso lasso_;
  std::vector<Index> chosen_;
};

/// A small token map of every head on one scale: from a sample of its rows, and of heads in view alone.
class HeadSheet {
 public:
  /// Controls for the content and the order of the token maps.
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
