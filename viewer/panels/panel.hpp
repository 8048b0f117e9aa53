#pragma once

#include "viewer/model/panel_kind.hpp"
#include "viewer/panels/session_fields.hpp"
#include "viewer/questions/job_queue.hpp"
#include "viewer/questions/state.hpp"
#include "viewer/widgets/heatmap_view.hpp"

#include <nlohmann/json.hpp>

#include <memory>
#include <string>
#include <vector>

namespace kvreplay::viewer {

/// One panel of the dashboard. Drawing thread only; what takes time is asked of the queue.
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
  /// True if the panel shows all heads together, not the selected one.
  virtual bool shows_all_heads() const { return false; }
  /// Title of a figure, without run and head: "attn against exact_remove". Empty: the panel's title on its
  /// tab.
  virtual std::string figure_title(PanelContext&) const { return {}; }
  /// Settings of the panel's policy, one line each, for the foot of a figure.
  virtual std::vector<std::string> figure_settings(PanelContext&) const { return {}; }
  /// The plot in view as SVG, by the report's painter; empty where the panel has none.
  virtual std::string svg(PanelContext&) const { return {}; }
  /// Displayed data as a table with a header; empty if there is nothing to export.
  virtual std::string csv(PanelContext&) const { return {}; }

  /// Its settings, for sessions. load() takes what it understands.
  nlohmann::json save() {
    SessionFields fields;
    keep(fields);
    return fields.written;
  }
  void load(const nlohmann::json& json) {
    if (!json.is_object()) return;
    SessionFields fields(json);
    keep(fields);
  }

 protected:
  /// Names the fields of its settings.
  virtual void keep(SessionFields&) {}
};

/// One specialisation a panel, in its source. There is no definition for all: a panel without one is missed
/// by the linker.
template <PanelKind kind>
std::unique_ptr<Panel> make_panel();

}  // namespace kvreplay::viewer
