#pragma once

#include "viewer/questions/live_findings.hpp"

#include <nlohmann/json.hpp>

#include <cstddef>
#include <optional>

namespace kvreplay::viewer {

/// The findings above the panels, a line each; where the window is low, or on request, one line with those
/// that follow behind arrows. A click leads to where a finding is seen.
class FindingStrip {
 public:
  /// Takes what is known by now; once a frame, before height().
  void look(PanelContext& context);
  /// What it takes of `room` pixels above the panels, with the gap below it; 0 where there is nothing to say.
  float height(float room) const;
  /// Draws at the cursor, `width` pixels wide, in height(room). The panel that a click leads to.
  std::optional<PanelKind> draw(PanelContext& context, float width, float room);

  const FindingSource& source() const { return source_; }
  bool folded(float room) const;
  nlohmann::json save() const;
  void load(const nlohmann::json& json);

 private:
  bool shows_list() const { return !source_.list().empty(); }
  float line() const;  ///< its height
  /// That are shown, or kept free for those to come: panels do not move once they are there.
  std::size_t lines() const;
  void draw_label(float room);
  std::optional<PanelKind> draw_finding(PanelContext& context, std::size_t which, float width);
  void draw_state(float width);

  FindingSource source_;
  std::optional<bool> folded_;  ///< as chosen; empty: by the room there is
  std::size_t shown_ = 0;       ///< of the folded ones
};

}  // namespace kvreplay::viewer
