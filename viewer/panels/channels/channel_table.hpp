#pragma once

#include "viewer/model/selection.hpp"
#include "viewer/questions/channels.hpp"
#include "viewer/widgets/heatmap_view.hpp"
#include "viewer/widgets/plot.hpp"

#include <imgui.h>
#include <map>
#include <memory>
#include <string>
#include <vector>

namespace kvreplay::viewer {

/// A matrix over pairs of channels as a heatmap shows it.
class ChannelMatrix {
 public:
  /// Takes another matrix where `key` is another one. Normalised: X_cd / sqrt(X_cc X_dd), nan where a channel
  /// has no weight of its own. Of each element that of `minus` is subtracted, normalised likewise; null:
  /// nothing.
  void show(const Key& key, const Matrix<double>& matrix, const Matrix<double>* minus, bool normalised);
  Index d() const { return values_.rows(); }
  double at(Index row, Index column) const { return values_(row, column); }
  /// Largest magnitude off the diagonal.
  double largest_off_diagonal() const { return largest_; }
  std::shared_ptr<const Tile> tile(const TileKey& key);

 private:
  Key key_;
  Matrix<double> values_;
  double largest_ = 0;
  std::map<TileKey, std::shared_ptr<const Tile>> tiles_;
};

/// Draws over a heatmap of channels what its axes say about rotation pairs: the two channels of a pair have
/// one colour at the upper and the right edge, from fast to slow; thin lines part the halves that rotate
/// together. `partner` [d], -1 where a channel is not rotated; may be empty.
void draw_rotation_pairs(const HeatmapView& map, const std::vector<Index>& partner);
/// Covers the rows and columns of channels that are 1 in `pruned` [d] by a veil.
void dim_channels(const HeatmapView& map, const ChannelSet& pruned);

/// A tooltip about a pair of channels of one part: norms, rotation partners, H and M at their place. `pruned`
/// [d] is `method`'s set; null where it is not known. `answers.head` is.
void draw_channel_tip(const Run& run, const ChannelAnswers& answers, std::size_t part, ChannelPair at,
                      const ChannelSet* pruned, const std::string& method);

/// What each method's pruning costs, the least of each column in bold; a click chooses the method. Errors on
/// both sets of rows where there is room for them, else on those of `future`, with a switch and `beside` it;
/// `fixed`: with their name in place of the switch.
void draw_channel_table(const ChannelAnswers& answers, std::string& method, bool& future,
                        const std::string& beside, bool fixed);
/// What it takes with errors on one set of rows, in pixels.
float least_table_width();

inline constexpr double kMostChannelRatio = 0.95;
/// A slider for the pruning ratio, or a choice among those that there are.
void edit_ratio(const ChannelAnswers& answers, Semantics semantics, double& ratio);

/// The eigenvalues by rank, on a log axis.
void draw_spectrum(const Vector<double>& spectrum, ImVec2 size, PlotView& view);
/// Mean and spread of every channel of one of the head's queries, on the window and on the decoding steps.
void draw_queries(const ChannelHead& head, Index query_head, ImVec2 size, PlotView& view);

}  // namespace kvreplay::viewer
