#pragma once

#include "data/dtype.hpp"
#include "sim/eviction/policy.hpp"
#include "sim/head_group.hpp"
#include "sim/schedule.hpp"

// How far scores that were formed in coarse numbers may lie from the exact ones, token by token.

namespace kvreplay::conform {

/// Half a unit in the last place, relative; of float32 with what the layers before have made of it.
double rounding_of(Dtype numbers);

/// [l]: the standard deviation of a token's sum of a^power over the window's rows and the query heads, a the
/// attention weights, relative to that sum and in roundings (rounding_of()). Queries, keys and weights are
/// rounded once, logits twice; a key's rounding is the same in every row, all others average out. In float32;
/// costs three products of queries and keys.
Vector<double> attention_deviation(const HeadGroup<double>& group, Index window, int power, Workers& workers);

/// Whether a score sums powers of attention weights over the window's rows: then its deviation is that of
/// attention_deviation(), with the power returned; 0 for any other score.
int attention_power(const EvictionRule& rule);

/// [l]: the largest distance of every token's score from the exact one. `deviation`: of a rule with an
/// attention_power(). `largest_logit`: of any other rule that looks at rows.
Vector<double> score_tolerance(const HeadGroup<double>& group, const EvictionRule& rule,
                               const Vector<double>& scores, const Vector<double>& deviation,
                               double largest_logit, Dtype numbers);

}  // namespace kvreplay::conform
