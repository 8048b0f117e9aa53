#pragma once

#include "data/dtype.hpp"
#include "sim/eviction/policy.hpp"
#include "sim/head_group.hpp"
#include "sim/schedule.hpp"

// Rounding errors, token by token, of scores that were computed in coarse numbers.

namespace kvreplay::conform {

/// Half a unit in the last place, relative. For float32 the error of a forward pass in float32 is included.
double rounding_of(Dtype numbers);

/// [l]: the standard deviation of a token's sum of a^power over the window's rows and the query heads, with
/// attention weights a. Unit: roundings (rounding_of()), relative to that sum. Queries, keys and weights are
/// rounded once, logits twice; a key's rounding is common to all rows, all others average out. Computed in
/// float32, at the cost of three products of queries and keys.
Vector<double> attention_deviation(const HeadGroup<double>& group, Index window, int power, Workers& workers);

/// The power p if a score sums a^p over the window's rows, for attention weights a: then
/// attention_deviation() applies. 0 for any other score.
int attention_power(const EvictionRule& rule);

/// [l]: bound on the rounding error of each token's score. `deviation`: attention_deviation(), for rules with
/// an attention_power(). `largest_logit`: for all other rules that use rows.
Vector<double> score_tolerance(const HeadGroup<double>& group, const EvictionRule& rule,
                               const Vector<double>& scores, const Vector<double>& deviation,
                               double largest_logit, Dtype numbers);

}  // namespace kvreplay::conform
