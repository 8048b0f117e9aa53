#pragma once

#include "sim/tokens/token_metrics.hpp"
#include "viewer/model/history.hpp"
#include "viewer/model/panel_kind.hpp"
#include "viewer/model/selection.hpp"
#include "viewer/widgets/heatmap_view.hpp"
#include "viewer/work/run.hpp"
#include "viewer/work/what_if.hpp"

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace kvreplay::viewer {

/// What undo brings back.
struct ViewState {
  Selection selection;
  std::map<PanelKind, std::optional<Camera>> cameras;  ///< empty camera: the whole matrix
  bool operator==(const ViewState&) const = default;
};

/// Where the mouse is, for the other panels: from the frame before.
struct Hover {
  std::optional<Index> layer, kv_head, row, token;
};

/// A cell that the inspector keeps.
struct Pin {
  Index layer = 0, kv_head = 0;
  std::optional<Index> query_head;
  Index row = 0, token = 0;
  bool operator==(const Pin&) const = default;
};

/// The approximation and what it is held against, in all panels that compare.
struct Comparison {
  TokenMetric score = TokenMetric::attn;
  TokenMetric reference = TokenMetric::exact_remove;
  Index window = 32;  ///< w
  bool operator==(const Comparison&) const = default;
};

/// What all panels share. Drawing thread only.
class AppState {
 public:
  std::vector<std::shared_ptr<const Run>> runs;

  /// The selected run; null where nothing is open.
  const std::shared_ptr<const Run>& run() const;
  const Selection& selection() const { return history_.now().selection; }
  /// Brought within the run's shape. Selections of one `kind` that follow each other are one step of undo.
  void select(Selection selection, const std::string& kind = {});
  void select_head(Index layer, Index kv_head);
  void select_cell(std::optional<Index> row, std::optional<Index> token);
  void select_tokens(std::vector<Index> tokens);

  History<ViewState>& history() { return history_; }
  const History<ViewState>& history() const { return history_; }

  Hover hover;       ///< of the last frame
  Hover next_hover;  ///< set by the panel under the mouse
  HeatmapLinks links;
  Comparison comparison;
  WhatIfSettings setting_a, setting_b;
  bool show_b = false;  ///< the second setting is looked at (flip)
  const WhatIfSettings& setting() const { return show_b ? setting_b : setting_a; }
  bool show_kept = false;  ///< the token map fades what the setting evicts
  std::vector<Pin> pins;
  /// Heads from worst to best, as the head map ranks them: (layer, KV head).
  std::vector<std::pair<Index, Index>> worst_first;

  /// A line at the window's foot.
  void say(std::string line, bool is_error = false);
  const std::string& message() const { return message_; }
  bool message_is_error() const { return message_is_error_; }

 private:
  History<ViewState> history_{ViewState{}};
  std::string message_;
  bool message_is_error_ = false;
};

}  // namespace kvreplay::viewer
