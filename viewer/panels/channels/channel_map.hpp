#pragma once

#include "viewer/panels/channels/channel_matrix.hpp"
#include "viewer/widgets/heatmap_view.hpp"
#include "viewer/work/state.hpp"

#include <cstddef>
#include <imgui.h>
#include <string>

namespace kvreplay::viewer {

/// The pinned run's answers with a head, and its name; null: none.
struct PinnedChannels {
  const ChannelAnswers* answers = nullptr;
  std::string name = {};
};

/// What the map shows in this frame.
struct ChannelMapContent {
  const ChannelAnswers& now;
  PinnedChannels pinned;     ///< subtracted, where there is one
  std::size_t part = 0;      ///< of the answers' head
  bool outputs = false;      ///< M, the matrix of the output space, else H
  bool normalised = false;   ///< by the diagonal
  bool dim = false;          ///< what is pruned is veiled
  const ChannelSet* pruned;  ///< by `method`; null: not known
  const std::string& method;
};

/// The interaction of channels as a heatmap; a click selects a pair.
class ChannelMap {
 public:
  void draw(AppState& state, ImVec2 size, const ChannelMapContent& content);
  HeatmapView& heatmap() { return map_; }
  const HeatmapView& heatmap() const { return map_; }
  const ChannelMatrix& matrix() const { return matrix_; }
  /// Whether the last map has the pinned run's subtracted.
  bool subtracts() const { return subtracts_; }

 private:
  HeatmapContent heatmap_content(const ChannelMapContent& content, const Matrix<double>* matrix,
                                 const Matrix<double>* minus);

  ChannelMatrix matrix_;
  bool subtracts_ = false;
  HeatmapView map_;
};

}  // namespace kvreplay::viewer
