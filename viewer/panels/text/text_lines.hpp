#pragma once

#include "viewer/model/token_text.hpp"
#include "viewer/questions/desk.hpp"
#include "viewer/questions/state.hpp"

#include <memory>
#include <vector>

namespace kvreplay::viewer {

/// The lines of a run's tokens, broken in the background.
class TextLines {
 public:
  /// In the present font, `width` pixels wide. Where a newer one is not there yet, the last one.
  Answer<TextLayout> ask(PanelContext& context, float width);

 private:
  struct Advances {
    float em = 0;
    std::vector<float> of;  // by code point
    float others = 0;
  };
  std::shared_ptr<const Advances> advances_;  // of the present font
};

}  // namespace kvreplay::viewer
