#pragma once

#include "analysis/channels/channel_plan.hpp"
#include "analysis/channels/channel_tables.hpp"

#include <string>

namespace kvreplay {

/// What `channels` says at its end: every method's errors at every ratio, with what it gains over
/// think.
std::string channel_report(const ChannelPlan& plan, const ChannelTable& table);

}  // namespace kvreplay
