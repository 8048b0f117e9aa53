#pragma once

#include "viewer/panels/tokens/entry_question.hpp"
#include "viewer/widgets/heatmap_view.hpp"

#include <memory>
#include <string>

// What stands above and beside the token map, and what its tooltips have in common.

namespace kvreplay::viewer {

/// The run whose cells are subtracted; null where that is none, or has no dump.
std::shared_ptr<const Run> subtracted_entries(PanelContext& context);

/// What the strips of a view are asked of; `pending` and `error` are set where something is still to come, or
/// failed. All of it outlives the frame's map.
struct EntryStrips {
  PanelContext& context;
  EntryQuestions& entries;
  EntryView view;
  bool& pending;
  std::string& error;
};
/// Above the tokens what the rows of the window add up to, beside the rows one number of each.
void add_strips(const EntryStrips& asked, HeatmapContent& content);

struct StripTip {
  const Run& run;
  const HeatmapContent& content;
  std::string metric;  ///< what the strip above the tokens sums
  bool pending = false;
};
void draw_strip_tip(const StripTip& tip, const StripHit& hit);
/// Position and text of a query or token, in a tooltip.
void place_line(const Run& run, const char* name, Index position);

}  // namespace kvreplay::viewer
