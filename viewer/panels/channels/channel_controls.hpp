#pragma once

#include "viewer/work/channel_view.hpp"

#include <string>

namespace kvreplay::viewer {

/// Whose setting, the recent keys that stay whole, and the channels that are never pruned: with the names and
/// defaults of `kvreplay channels`.
class ChannelControls {
 public:
  /// `l`: the prompt's length. Beside the last control where there is room.
  void draw(ChannelSettings& settings, Index l);

 private:
  void edit_protection(std::optional<Protection>& protect);

  std::string protect_text_;  // as it is typed
  std::string protect_error_;
};

}  // namespace kvreplay::viewer
