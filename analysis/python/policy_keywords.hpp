#pragma once

#include "analysis/eviction/eviction_options.hpp"
#include "analysis/python/calls.hpp"
#include "analysis/python/keywords.hpp"

#include <algorithm>
#include <iterator>

// The keywords of calls that ask for one policy at one budget in one phase.

namespace kvreplay::python {

/// What decides about kept sets, and what `more` holds for besides.
template <class More>
BoundOptions policy_options(Asked<EvictionOptions>& asked, const More& more) {
  using namespace evict_option;
  asked.of.policies.clear();  // a call is asked for one
  asked.of.budgets.clear();
  const OptionFacts* const others[] = {
      &diff, &decode_window, &channels, &evict_option::protect, &bits, &group, &residual, &score, &kept};
  return joined(those_of(bound(asked.of),
                         [&](const OptionFacts* facts) {
                           return more(facts) ||
                                  std::find(std::begin(others), std::end(others), facts) == std::end(others);
                         }),
                bound(asked.call));
}

/// Throws OptionError unless there is one case, of a policy.
inline void require_one_case(const EvictionOptions& options) {
  require_one(evict_option::policy, options.policies.size());
  require_one(evict_option::keep, options.budgets.size());
  require_one(evict_option::phase, options.phases.size());
  if (!options.policies.front()) throw OptionError(evict_option::policy, "a policy", "'none'");
}

}  // namespace kvreplay::python
