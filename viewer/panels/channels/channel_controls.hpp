#pragma once

#include "viewer/panels/channels/channel_matrix.hpp"

#include <optional>
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

/// What is shown of channels and in which order; orders that the run does not know are greyed with the
/// reason. Beside the last control where there is room.
void edit_channel_view(const Run& run, const ChannelAnswers& answers, ChannelView& view);

}  // namespace kvreplay::viewer
