#pragma once

#include "viewer/panels/questions.hpp"

#include <array>
#include <string>

namespace kvreplay::viewer {

/// What the pinned run loses under the settings of What if, where the selected one is held against it.
class PinnedWhatIf {
 public:
  void ask(PanelContext& context, const std::array<WhatIfSettings, 2>& settings);
  /// A line with the pinned run's errors under A and B, and how much larger `own` ones are; or why there is
  /// none. Nothing where no run is pinned.
  void draw(const std::array<Answer<WhatIf>, 2>& own) const;

 private:
  std::array<Answer<WhatIf>, 2> now_;  // of this frame
  std::string name_, problem_;         // no name: no run is pinned
};

}  // namespace kvreplay::viewer
