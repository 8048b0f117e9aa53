#pragma once

#include "viewer/model/panel_kind.hpp"
#include "viewer/widgets/heatmap_view.hpp"
#include "viewer/work/desk.hpp"
#include "viewer/work/state.hpp"

#include <nlohmann/json.hpp>

#include <imgui.h>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace kvreplay::viewer {

/// What a panel is given to draw with.
struct PanelContext {
  AppState& state;
  Desk& desk;
  bool figure = false;                    ///< drawn into a file, without its controls
  std::shared_ptr<const Run> other = {};  ///< that is asked about in place of the selected run; null: none

  /// The run that questions are about.
  const std::shared_ptr<const Run>& run() const { return other ? other : state.run(); }
  PanelContext of(std::shared_ptr<const Run> run) const { return {state, desk, figure, std::move(run)}; }
};

/// One panel of the dashboard. Drawing thread only; what takes time is asked of the desk.
class Panel {
 public:
  Panel() = default;
  Panel(const Panel&) = delete;
  Panel& operator=(const Panel&) = delete;
  virtual ~Panel() = default;

  /// Draws into the current ImGui window, which is the panel's own, from the cursor to
  /// GetContentRegionAvail().
  virtual void draw(PanelContext& context) = 0;
  /// The heatmap that fit, 1:1, zoom and undo act on; null where there is none.
  virtual HeatmapView* heatmap() { return nullptr; }
  /// Opens its search, where it has one.
  virtual void find() {}
  /// Closes what Escape closes in it before it clears the selection; false where nothing was open.
  virtual bool take_escape() { return false; }
  /// What is shown, over a figure, without the run and the head: "attn against exact_remove"; empty: what its
  /// tab says.
  virtual std::string figure_title(PanelContext&) const { return {}; }
  /// Its policy's settings, a line each; for the foot of a figure.
  virtual std::vector<std::string> figure_settings(PanelContext&) const { return {}; }
  /// What is shown, as a table with a header; empty where there is nothing to export.
  virtual std::string csv(PanelContext&) const { return {}; }
  /// Its settings, for sessions. load() takes what it understands.
  virtual nlohmann::json save() const { return nlohmann::json::object(); }
  virtual void load(const nlohmann::json&) {}
};

/// One specialisation a panel, in its source. There is no definition for all: a panel without one is missed
/// by the linker.
template <PanelKind kind>
std::unique_ptr<Panel> make_panel();

}  // namespace kvreplay::viewer
