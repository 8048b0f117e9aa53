#pragma once

#include "viewer/model/selection.hpp"
#include "viewer/questions/channels.hpp"
#include "viewer/widgets/heatmap_view.hpp"

#include <map>
#include <memory>
#include <string>
#include <vector>

// A matrix over pairs of channels as a heatmap shows it, and what stands around its cells. Channels have
// their own numbers wherever they stand.

namespace kvreplay::viewer {

/// X_ce / sqrt(X_cc X_ee), nan where a channel has no weight of its own.
Matrix<double> normalised(const Matrix<double>& matrix);
/// Largest magnitude off the diagonal.
double largest_off_diagonal(const Matrix<double>& matrix);

/// What is shown of a head's channels.
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

/// What the strips are called, a swatch and a name each, in lines of `width` pixels; on hover in more words.
/// Those that there are: of pruned channels where `method` is not empty.
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

}  // namespace kvreplay::viewer
