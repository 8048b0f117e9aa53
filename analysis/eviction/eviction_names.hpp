#pragma once

#include "analysis/eviction/eviction_plan.hpp"

#include <string>
#include <vector>

// The words that stand for policies, phases and their settings on the command line. Each throws InputError
// that says what was expected.

namespace kvreplay {

Semantics parse_semantics(const std::string& option, const std::string& name);

/// "prefill", "blockwise:32", "decode", "append-only".
Phase parse_phase(const std::string& text);

/// BASE or BASE+SCORE, with the nearest names where one is unknown.
Policy parse_policy(const std::string& text, const std::vector<Given<double>>& scores);

/// "max:7", "avg:5" or "none".
Pooling parse_pooling(const std::string& text);

/// A compression ratio in (0, 1); `option` names it in the message.
void check_sigma(const std::string& option, double sigma);

}  // namespace kvreplay
