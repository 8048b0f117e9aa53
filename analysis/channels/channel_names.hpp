#pragma once

#include "sim/channels/selection.hpp"

#include <optional>
#include <string>

// The words that stand for channel methods and their settings on the command line. Each throws InputError
// that says what was expected; `option` names the option in the message.

namespace kvreplay {

/// METHOD or exchange+METHOD, with the nearest names where it is unknown.
ChannelRule parse_channel_rule(const std::string& option, const std::string& text);
/// A pruning ratio in [0, 1).
void check_ratio(const std::string& option, double ratio);
/// METHOD:RATIO.
struct RuleAndRatio {
  ChannelRule rule;
  double ratio = 0;
};
RuleAndRatio parse_rule_and_ratio(const std::string& option, const std::string& text);
/// "A:B" in percent, or "off".
std::optional<Protection> parse_protection(const std::string& text);

}  // namespace kvreplay
