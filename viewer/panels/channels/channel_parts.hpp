#pragma once

#include "viewer/model/layout.hpp"
#include "viewer/model/selection.hpp"
#include "viewer/panels/panel.hpp"
#include "viewer/questions/channels.hpp"
#include "viewer/widgets/heatmap_view.hpp"
#include "viewer/widgets/plot.hpp"

#include <imgui.h>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

// A matrix over pairs of channels as a heatmap shows it, and what stands around its cells. Channels have
// their own numbers wherever they stand.

namespace kvreplay::viewer {

/// X_ce / sqrt(X_cc X_ee), nan where a channel has no weight of its own.
Matrix<double> normalised(const Matrix<double>& matrix);
/// Largest magnitude off the diagonal.
double largest_off_diagonal(const Matrix<double>& matrix);

/// View of a head's channels: which matrix, normalised or not, in which order.
struct ChannelView {
  bool outputs = false, normalised = false;
  ChannelArrangement arrangement = ChannelArrangement::stored;

  const char* symbol() const { return outputs ? "M" : "H"; }
  /// "interaction_normalised", for tables.
  std::string column() const;
  /// Quantity, unit, axes and scale of a heatmap of it, whose largest off-diagonal magnitude is `largest`:
  /// the diagonal is larger than all else and is cut off.
  void describe(HeatmapContent& content, double largest) const;
};
/// The matrix that is shown of a part of a head; null where it is not there.
const Matrix<double>* matrix_of(const ChannelAnswers& answers, bool outputs, std::size_t part);

class ChannelMatrix {
 public:
  /// Takes another matrix where `key` is another one. Of each element that of `minus` is subtracted,
  /// normalised likewise; null: nothing.
  void show(const Key& key, const Matrix<double>& matrix, const Matrix<double>* minus, bool normalised,
            const ChannelPlaces& places);
  Index d() const { return values_.rows(); }
  /// By the channels' own numbers.
  double at(Index channel, Index other) const { return values_(channel, other); }
  double largest() const { return largest_; }
  std::shared_ptr<const Tile> tile(const TileKey& key);

 private:
  Key key_;
  Matrix<double> values_;
  ChannelPlaces places_;
  double largest_ = 0;
  std::map<TileKey, std::shared_ptr<const Tile>> tiles_;
};

/// The strips at a map's edges: at the upper and right one the two channels of a rotation pair have one
/// colour, from the first to the last pair, and thin lines part the halves that rotate together where they
/// stand as stored; at the lower and left one HeatmapContent's marks say what a method prunes. `partner` [d],
/// -1 where a channel is not rotated; may be empty.
void draw_rotation_pairs(const HeatmapView& map, const std::vector<Index>& partner,
                         const ChannelPlaces& places);
/// Covers the rows and columns of channels that are 1 in `pruned` [d] by a veil.
void dim_channels(const HeatmapView& map, const ChannelSet& pruned, const ChannelPlaces& places);

/// Legend of the strips: a swatch and a name each, in lines of `width` pixels, with an explanation on hover.
/// Only strips that are drawn are listed; that of pruned channels if `method` is not empty.
struct EdgeLegend {
  std::string method;
  bool rotation = false;
  float height(float width) const;  ///< in pixels
  void draw(float width) const;     ///< at the cursor
};
/// The strip under the mouse, in words, where a map with both was drawn last.
void draw_strip_tip(const HeatmapView& map, const std::vector<Index>& partner, const ChannelSet* pruned,
                    const std::string& method, const ChannelPlaces& places);

/// A tooltip about a pair of channels of one part: norms, rotation partners, H and M at their place. `pruned`
/// [d] is `method`'s set; null where it is not known. `answers.head` is.
void draw_channel_tip(const Run& run, const ChannelAnswers& answers, std::size_t part, ChannelPair at,
                      const ChannelSet* pruned, const std::string& method);

/// Controls for the policy variant, the number of recent keys that stay whole, and the channels that are
/// never pruned. Names and defaults are those of `kvreplay channels`.
class ChannelControls {
 public:
  /// `l`: the prompt's length. Draws next to the last control if there is room.
  void draw(ChannelSettings& settings, Index l);

 private:
  void edit_protection(std::optional<Protection>& protect);

  std::string protect_text_;  // as it is typed
  std::string protect_error_;
};

/// Controls for the displayed matrix and the order of the channels. Orders that the run cannot provide are
/// greyed out, with the reason. Draws next to the last control if there is room.
void edit_channel_view(const Run& run, const ChannelAnswers& answers, ChannelView& view);

/// Cost of pruning by each method; the least of each column is in bold. A click chooses the method. Errors
/// are on both sets of rows if there is room for them, else on those of `future`, with a switch and `beside`
/// next to it. If `fixed`, the set's name replaces the switch.
void draw_channel_table(const ChannelAnswers& answers, std::string& method, bool& future,
                        const std::string& beside, bool fixed);
/// Width of the table with errors on one set of rows, in pixels.
float least_table_width();

inline constexpr double kMostChannelRatio = 0.95;
/// A slider for the pruning ratio, or a choice among those that there are.
void edit_ratio(const ChannelAnswers& answers, Semantics semantics, double& ratio);

/// The eigenvalues by rank, on a log axis.
void draw_spectrum(const Vector<double>& spectrum, ImVec2 size, PlotView& view);
/// Mean and spread of every channel of one of the head's queries, on the window and on the decoding steps.
void draw_queries(const ChannelHead& head, Index query_head, ImVec2 size, PlotView& view);

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
  /// KV head of the picture with this number.
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
