#pragma once

#include "viewer/model/selection.hpp"
#include "viewer/panels/channels/channel_question.hpp"

#include <string>

namespace kvreplay::viewer {

/// A tooltip about a pair of channels of one part: norms, rotation partners, H and M at their place. `pruned`
/// [d] is `method`'s set; null where it is not known. `answers.head` is.
void draw_channel_tip(const Run& run, const ChannelAnswers& answers, std::size_t part, ChannelPair at,
                      const ChannelSet* pruned, const std::string& method);

}  // namespace kvreplay::viewer
