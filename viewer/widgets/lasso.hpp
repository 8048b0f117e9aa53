#pragma once

#include "viewer/widgets/plot.hpp"

#include <imgui.h>
#include <vector>

namespace kvreplay::viewer {

/// A hand that draws around what a plot shows: in plots that keep the left button for it.
class Lasso {
 public:
  struct Taken {
    bool clicked = false;         ///< the button came up where it went down
    std::vector<ImVec2> polygon;  ///< pixels; at least 3 corners once the button came up, else none
  };
  /// Takes the mouse and draws the line so far.
  Taken take(const Plot& plot);
  bool drawing() const { return corners_.size() > 1; }

 private:
  std::vector<ImVec2> corners_;  // while the button is down
  bool pressed_ = false;
};

}  // namespace kvreplay::viewer
