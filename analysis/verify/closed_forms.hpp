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
/// Those of the metrics that are `available`.
std::vector<ClosedForm> closed_forms(const DumpShape& shape, const MetricSet& available, Index window);

/// `count` of the positions 0..l-1, ascending: first and last, `wanted`, and an even spread. All of them for
/// 0.
std::vector<Index> sampled_tokens(Index l, Index count, const std::vector<Index>& wanted);

/// The tokens at which each of `forms` is judged: all for a count of 0; else the first, the last and the
/// `wanted` of sampled_tokens(), and every forms-th of the others, so that each of them is some form's.
/// `turn` deals these from another form on: with turns 0, 1, 2, ... every form comes to every one.
std::vector<std::vector<Index>> dealt_tokens(Index l, Index count, const std::vector<Index>& wanted,
                                             std::size_t forms, Index turn);

/// The effect of each form's change on each of its tokens, from recomputed attention, summed over the form's
/// rows and the query heads.
std::vector<std::vector<double>> brute_force_sums(const HeadGroup<double>& group,
                                                  const std::vector<ClosedForm>& forms,
                                                  const std::vector<std::vector<Index>>& tokens,
                                                  Workers& workers);

}  // namespace kvreplay
