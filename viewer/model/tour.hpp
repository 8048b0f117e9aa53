#pragma once

#include "viewer/model/panel_kind.hpp"

#include <array>
#include <cstddef>
#include <optional>
#include <string_view>

namespace kvreplay::viewer {

/// One step of the tour: what a card beside a panel says.
struct TourStep {
  std::string_view title, text;
  /// The panel that it speaks of; none: the findings above the panels, or the menus.
  std::optional<PanelKind> panel = {};
  bool findings = false;
};
inline constexpr std::array<TourStep, 7> kTour{{
    {"Worth knowing",
     "What this dump has to tell, in sentences. Each leads to the head and the token that it speaks of: "
     "click one.",
     {},
     true},
    {"Which heads are in trouble",
     "Every head of the model by one figure: here how well attention ranks the tokens as their exact error "
     "does. The worst stand first; n and p step through them.",
     PanelKind::heads},
    {"What each query sees",
     "Queries downwards, tokens across: what removing a token would cost each query, exactly. The wheel "
     "zooms, a click selects a cell in all panels.",
     PanelKind::tokens},
    {"Does a score see the costly tokens",
     "Each point is a token: to the right what the score says, upwards what it really costs. Points high on "
     "the left are costly tokens that the score would throw away; draw a line around some to see them "
     "everywhere.",
     PanelKind::scatter},
    {"Which channels can go",
     "How the head's key channels interact: red pairs cost more together than alone, blue ones less. The "
     "slider prunes a share of them, the table says what each method's choice costs.",
     PanelKind::channels},
    {"What would another policy cost",
     "Two settings side by side: what they keep of this head and what that costs. Move the slider; held, x "
     "shows the other one.",
     PanelKind::what_if},
    {"Find and go",
     "Ctrl+Shift+P finds everything by a few letters: actions, \"L3 H1\", \"token 379\", \"heads where "
     "rho(caote) < 0.8\". ? lists all keys, the View menu arranges panels for a question.",
     {}},
}};

/// Position in the tour.
class Tour {
 public:
  bool running() const { return step_ < kTour.size(); }
  std::size_t number() const { return step_; }
  const TourStep& step() const { return kTour[step_]; }
  void begin() { step_ = 0; }
  void end() { step_ = kTour.size(); }
  /// Behind the last step it ends.
  void next() { step_ += running() ? 1 : 0; }
  void back() { step_ -= running() && step_ > 0 ? 1 : 0; }

 private:
  std::size_t step_ = kTour.size();
};

}  // namespace kvreplay::viewer
