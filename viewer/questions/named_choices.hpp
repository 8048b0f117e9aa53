#pragma once

#include "sim/eviction/policy_facts.hpp"
#include "sim/tokens/token_facts.hpp"
#include "viewer/model/choice.hpp"

#include <string_view>
#include <vector>

// Metrics and policies as menus have them: in plain words, grouped by what can be known.

namespace kvreplay::viewer {

/// "Estimates", "Truth", "Oracles", each with what it looks at.
std::string_view group_of(MetricKind kind);
/// "Can be run", "Searches", "Oracles".
std::string_view group_of(EvictionBase base);

Choice choice_of(TokenMetric metric);
Choice choice_of(EvictionBase base);
/// All policies, group by group.
std::vector<Choice> base_choices();

}  // namespace kvreplay::viewer
