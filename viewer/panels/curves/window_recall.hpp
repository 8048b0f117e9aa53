#pragma once

#include "viewer/model/key.hpp"
#include "viewer/panels/compared_head.hpp"
#include "viewer/panels/session_fields.hpp"
#include "viewer/questions/score_curves.hpp"
#include "viewer/widgets/plot.hpp"

#include <memory>
#include <optional>
#include <string>

namespace kvreplay::viewer {

/// recall@k over the window: a line a score, and a dashed one with the reserved tokens.
class WindowPlot {
 public:
  /// `size` in pixels; a line stands at the `window` that other panels look at. Returns the score whose curve
  /// is under the mouse.
  std::optional<TokenMetric> draw(ImVec2 size, const WindowCurves& shown, const MetricSet& hidden,
                                  const Key& run, Index window, std::optional<TokenMetric> pointed,
                                  float fade);

 private:
  PlotView view_;
  Key axes_;  // what view_ belongs to
};

// The recall at one budget on every window, in place of the recall at every budget on one.

class WindowRecall {
 public:
  struct Question {
    const ComparedHead& head;
    TokenMetric reference;
    Index k;
  };

  bool shown = false;

  /// Whether it is shown, and with how many reserved tokens; what it comes with is taken out of `hidden`.
  void draw_controls(const AppState& state, MetricSet& hidden);
  /// The plot, or a hint that says why there is none. Returns the score whose curve is under the mouse.
  std::optional<TokenMetric> draw(PanelContext& context, ImVec2 size, const Question& question,
                                  const MetricSet& hidden, std::optional<TokenMetric> pointed, float fade);

  std::string title(TokenMetric reference) const;
  /// A table of what was drawn last; empty where nothing was.
  std::string csv(const ComparedHead& head) const;
  void keep(SessionFields& fields);

 private:
  std::shared_ptr<const WindowCurves> look(PanelContext& context, const Question& question) const;

  Index reserve_ = 0;  // last tokens inside the k
  WindowPlot plot_;
  std::shared_ptr<const WindowCurves> curves_;  // that were drawn last
};

}  // namespace kvreplay::viewer
