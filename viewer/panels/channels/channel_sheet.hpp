#pragma once

#include "viewer/model/layout.hpp"
#include "viewer/panels/channels/channel_matrix.hpp"
#include "viewer/panels/panel.hpp"

#include <map>
#include <memory>
#include <string>
#include <vector>

namespace kvreplay::viewer {

/// The matrices of all heads of the selected layer on one scale; where query heads have selections of their
/// own, of each query head.
class ChannelSheet {
 public:
  /// Draws within `size` pixels. Every head in `view`'s order by its own H.
  void draw(PanelContext& context, ChannelQuestions& questions, const ChannelSettings& settings,
            const ChannelView& view, ImVec2 size);
  HeatmapView& heatmap() { return map_; }
  /// The matrices by the channels' own numbers: empty until all are known.
  std::string csv() const;
  bool pending() const { return pending_; }
  const std::string& error() const { return error_; }

  void keep(SessionFields& fields) { fields.part("map", map_); }

 private:
  struct Picture {
    Key key;                // says what it is of
    Matrix<double> values;  // as shown, by channel; empty: not known
    ChannelPlaces places;
    double largest = 0;
  };
  void ask(PanelContext& context, ChannelQuestions& questions, const ChannelSettings& settings);
  void take(const Run& run, const ChannelAnswers& answers, Index kv_head);
  void arrange(const DumpShape& shape, ImVec2 size);
  float value(Index row, Index column) const;
  /// Of a picture's number.
  Index kv_head(Index number) const { return number / parts_; }
  Index part(Index number) const { return number % parts_; }
  bool is_selected(Index number, const Selection& selection) const;
  void draw_frames(const AppState& state) const;
  void take_mouse(AppState& state, const HeatmapHit& hit);

  ChannelView view_;
  std::vector<Picture> pictures_;  // [n_kv][parts]
  Index parts_ = 1;                // of every head
  Key key_;                        // says what pictures_ and tiles_ are of
  SheetLayout layout_;
  HeatmapView map_;
  std::map<TileKey, std::shared_ptr<const Tile>> tiles_;
  bool pending_ = false;
  std::string error_;
};

}  // namespace kvreplay::viewer
