#pragma once

#include "sim/tokens/token_metrics.hpp"
#include "viewer/model/actions.hpp"
#include "viewer/model/heatmap_image.hpp"
#include "viewer/model/history.hpp"
#include "viewer/model/panel_kind.hpp"
#include "viewer/model/selection.hpp"
#include "viewer/model/status_line.hpp"
#include "viewer/questions/decoding.hpp"
#include "viewer/questions/run.hpp"
#include "viewer/questions/what_if.hpp"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <array>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace kvreplay::viewer {

/// Position of the mouse for the other panels, from the previous frame.
struct Hover {
  std::optional<Index> layer, kv_head, row, token;
};

/// A cell of the token map.
struct Cell {
  Index layer = 0, kv_head = 0;
  std::optional<Index> query_head;  ///< 0..G-1; empty: the sum over the group, for the logit the mean
  Index row = 0, token = 0;         ///< positions
  bool operator==(const Cell&) const = default;
};

/// The approximation and what it is held against, in all panels that compare.
struct Comparison {
  TokenMetric score = TokenMetric::attn;
  TokenMetric reference = TokenMetric::exact_remove;
  Index window = kUsualWindow;  ///< w
  bool operator==(const Comparison&) const = default;
};

/// Settings shared by all panels.
struct SharedSettings {
  Comparison comparison;
  KeptBudget budget;  ///< of all panels and settings that are linked
  WhatIfSettings setting_a, setting_b = second_setting();
  bool show_b = false;      ///< the second setting is looked at
  bool show_kept = false;   ///< the token map fades what the setting evicts
  bool paint_here = false;  ///< marks by hand apply to the selected head only, else to all heads
  bool operator==(const SharedSettings&) const = default;

  /// Something to compare from the start.
  static WhatIfSettings second_setting();
};
/// For sessions. Reading takes what it understands and leaves the rest as it is.
nlohmann::json to_json(const SharedSettings& settings);
void read_settings(const nlohmann::json& json, SharedSettings& into);

/// The views of panels that have one; empty: the whole matrix.
using Cameras = std::map<PanelKind, std::optional<Camera>>;

/// State that undo restores.
struct ViewState {
  Selection selection;
  Cameras cameras;
  SharedSettings settings;
  bool operator==(const ViewState&) const = default;
};

/// State that all panels share; the settings are edited in place. Drawing thread only.
class AppState : public SharedSettings {
 public:
  std::vector<std::shared_ptr<const Run>> runs;

  /// The selected run; null where nothing is open.
  const std::shared_ptr<const Run>& run() const;
  const Selection& selection() const { return history_.now().selection; }
  /// Brought within the run's shape. Selections of one `kind` that follow each other are one step of undo.
  void select(Selection selection, const std::string& kind = {});
  void select_head(Index layer, Index kv_head);
  /// The selection in another open run: at the model's same layer, where that has it.
  Selection in_run(std::size_t run) const;
  /// Selects a head without a step of undo: where a run begins.
  void begin_with_head(Index layer, Index kv_head);
  /// True if the user chose the selected head; false if it is the head with which a run opens.
  bool head_chosen() const { return head_chosen_; }
  void select_cell(std::optional<Index> row, std::optional<Index> token);
  void select_tokens(std::vector<Index> tokens);

  History<ViewState>& history() { return history_; }
  const History<ViewState>& history() const { return history_; }
  /// At a frame's end: makes what has changed in it a step of undo. Changes of one `press` of the mouse are
  /// one step for as long as it is `held`; empty: a step of its own.
  void remember(Cameras cameras, const std::string& press, bool held);
  /// Takes the present settings and cameras as they are, without a step.
  void begin_with(Cameras cameras);
  /// After undo and redo: the settings are those of the history again.
  void take_settings_back() { static_cast<SharedSettings&>(*this) = history_.now().settings; }

  Hover hover;       ///< of the last frame
  Hover next_hover;  ///< set by the panel under the mouse
  HeatmapLinks links;
  bool flipped = false;  ///< a key is held to look at the other setting
  /// A and B as they count: where one is linked, with the queue's budget, and the queue's window where the
  /// policy takes the usual one by itself.
  std::array<WhatIfSettings, 2> settings() const { return {as_linked(setting_a), as_linked(setting_b)}; }
  /// Any settings as they count. Of several policies each says in brackets that it takes the queue's window.
  WhatIfSettings as_linked(WhatIfSettings settings) const;
  DecodeSettings as_linked(DecodeSettings settings) const;
  bool shows_b() const { return show_b != flipped; }
  /// The one of A and B that is looked at.
  WhatIfSettings setting() const { return as_linked(shows_b() ? setting_b : setting_a); }
  /// Keeps or evicts by hand, in that one, the tokens that are chosen together, else the selected one; no
  /// mark leaves them to the policy. A message says what became of it.
  void paint(std::optional<PaintMark> mark);
  std::vector<UserScore> scores;  ///< of the user's, each read against an open dump
  std::vector<Cell> pins;         ///< that the inspector keeps
  /// Heads from worst to best, as the head map ranks them and as far as its filter takes them: (layer, KV
  /// head).
  std::vector<std::pair<Index, Index>> worst_first;
  /// True if worst_first has every head of the selected run, as of the last frame.
  bool all_ranked = false;

  /// The next frame that is needed though nothing happens, set by what moves by itself; for one frame.
  std::optional<StatusLine::Clock::time_point> wakes_at;
  void wake_at(StatusLine::Clock::time_point when) { wakes_at = wakes_at ? std::min(*wakes_at, when) : when; }
  /// Run that the selected run is compared with: maps show the difference, plots show both.
  PinnedRun pinned;
  bool show_difference = true;
  /// The run that is subtracted from the selected one in this frame; null: none.
  std::shared_ptr<const Run> subtracted();

  std::optional<ActionId> wanted;  ///< an action that a panel asks for

  /// A line at the window's foot.
  void say(std::string line, bool is_error = false) { line_.say(std::move(line), is_error, clock()); }
  const std::string& message() const { return line_.text(clock()); }
  bool message_is_error() const { return line_.is_error() && !message().empty(); }
  StatusLine& status_line() { return line_; }
  const StatusLine& status_line() const { return line_; }
  /// Clock; tests replace it.
  std::function<StatusLine::Clock::time_point()> clock = StatusLine::Clock::now;

 private:
  /// The window that a policy has by the queue's, as it would have the usual one by itself.
  std::optional<Index> linked_window(const std::string& policy, const PolicySettings& settings) const;

  bool head_chosen_ = false;
  History<ViewState> history_{ViewState{}};
  StatusLine line_;
};

/// Environment in which a panel asks questions and draws.
struct PanelContext {
  AppState& state;
  JobQueue& queue;
  bool figure = false;  ///< drawn into a file, without its controls
  bool veiled = false;  ///< displayed data are outdated: new answers are pending (StaleOverlay)
  std::shared_ptr<const Run> other = {};  ///< that is asked about in place of the selected run; null: none

  /// The run that questions are about.
  const std::shared_ptr<const Run>& run() const { return other ? other : state.run(); }
  PanelContext of(std::shared_ptr<const Run> run) const {
    return {state, queue, figure, veiled, std::move(run)};
  }
};

}  // namespace kvreplay::viewer
