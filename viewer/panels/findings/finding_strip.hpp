#pragma once

#include "viewer/questions/live_findings.hpp"

#include <nlohmann/json.hpp>

#include <cstddef>
#include <imgui.h>
#include <optional>

namespace kvreplay::viewer {

/// The findings above the panels, in up to two lines each, where the window is lower a line each; where it is
/// low, or on request, one line with those that follow behind arrows. A click leads to where a finding is
/// seen.
class FindingStrip {
 public:
  /// Takes what is known by now; once a frame, before height().
  void look(PanelContext& context);
  /// What it takes in height of the `room` for it and the panels, with the gap below it; 0 where there is
  /// nothing to say.
  float height(ImVec2 room) const;
  /// Draws at the cursor, as wide as the room, in height(room). The panel that a click leads to.
  std::optional<PanelKind> draw(PanelContext& context, ImVec2 room);

  const FindingSource& source() const { return source_; }
  bool folded(ImVec2 room) const;
  nlohmann::json save() const;
  void load(const nlohmann::json& json);

 private:
  bool shows_list() const { return !source_.list().empty(); }
  static float line();       ///< the height of a finding in one line
  static float more_line();  ///< of each further line
  /// Beside the label, in a strip so wide.
  float text_width(float width) const;
  float label_width() const;
  float finding_height(std::size_t which, float width, std::size_t most_lines) const;
  /// Of all findings, those to come among them: panels do not move once they are there.
  float list_height(float width, std::size_t most_lines) const;
  /// The lines that a finding may take.
  std::size_t lines_each(ImVec2 room) const;
  void draw_label(bool is_folded);
  std::optional<PanelKind> draw_list(PanelContext& context, ImVec2 room, float height);
  std::optional<PanelKind> draw_finding(PanelContext& context, std::size_t which, float width,
                                        std::size_t most_lines);
  void draw_state(float width);

  FindingSource source_;
  bool of_dump_ = false;        ///< of which more may come; results say all at once
  std::optional<bool> folded_;  ///< as chosen; empty: by the room there is
  std::size_t shown_ = 0;       ///< of the folded ones
};

}  // namespace kvreplay::viewer
