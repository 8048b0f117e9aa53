#pragma once

#include "sim/attention.hpp"
#include "sim/schedule.hpp"
#include "sim/tokens/token_metrics.hpp"

#include <vector>

namespace kvreplay {

/// A closed form, what it claims to be the effect of, and on which rows.
struct ClosedForm {
  TokenMetric metric;
  TokenChange change;
  RowRange rows;
};
/// Closed forms of the metrics that are `available`.
std::vector<ClosedForm> closed_forms(const DumpShape& shape, const MetricSet& available, Index window);

/// `count` of the positions 0..l-1, ascending: first and last, `wanted`, and an even spread. All of them for
/// 0.
std::vector<Index> sampled_tokens(Index l, Index count, const std::vector<Index>& wanted);

/// The tokens at which each of the forms is judged: all for a count of 0; else of sampled_tokens() the first,
/// the last, the form's own of `wanted` [forms], and those that fall to it as the others are dealt out, from
/// form number `turn` on: each of them is some form's, and with turns 0, 1, 2, ... every form's.
std::vector<std::vector<Index>> dealt_tokens(Index l, Index count, const std::vector<Index>& wanted,
                                             Index turn);

/// The effect of each form's change on each of its tokens, from recomputed attention, summed over the form's
/// rows and the query heads.
std::vector<std::vector<double>> brute_force_sums(const HeadGroup<double>& group,
                                                  const std::vector<ClosedForm>& forms,
                                                  const std::vector<std::vector<Index>>& tokens,
                                                  Workers& workers);

}  // namespace kvreplay
