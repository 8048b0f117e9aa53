#pragma once

#include "sim/eviction/policy.hpp"
#include "sim/head_group.hpp"
#include "sim/pages_read.hpp"
#include "sim/row_range.hpp"
#include "sim/schedule.hpp"

#include <span>
#include <vector>

// Policies that keep the whole prompt and read less of it: what each row reads. Definitions:
// sim/eviction/POLICIES.md, "Retrieval". Decoded tokens are always read.

namespace kvreplay {

/// What rows read the prompt's pages by (of one token each where the rule has no pages), [rows, pages of
/// rule.page]: larger is read first. Of pages that a row does not see it is undefined. `rule` is one that
/// reads. Throws InputError where a number overflows T. Cost: 2 G |rows| T d flops; of page bounds 4 G |rows|
/// d l / page.
template <class T>
Matrix<T> row_scores(const HeadGroup<T>& group, const EvictionRule& rule, RowRange rows, Workers& workers);

/// A rule of some policy, and how many tokens a row may read by it.
struct ReadRequest {
  const EvictionRule* rule;
  Index budget;
};

/// What `rows` read for each of `asked`, which are one policy's at several budgets: what is pinned, sinks
/// first, then the pages of largest score, ties to the lower position, as many as the budget holds whole, of
/// those that the row sees. Where a row reads by a share of its weight, it is the fewest tokens that reach
/// it, and the share the largest for which the rows of `judged`, which are among `rows`, read no more than
/// the budget on average. Everything where the budget is the prompt, and in the rule's dense layers.
template <class T>
std::vector<PagesRead> rows_read(const HeadGroup<T>& group, std::span<const ReadRequest> asked, RowRange rows,
                                 RowRange judged, Workers& workers);

/// How many of the prompt tokens that they see `rows` read on average.
template <class T>
double mean_tokens_read(const HeadGroup<T>& group, const PagesRead& pages, RowRange rows);

/// Numbers beside keys and values that a policy holds of l keys of d channels, and that each row reads of
/// these and of the keys to choose by.
struct ReadIndex {
  Index held = 0, read = 0;
};
/// How many channels of keys are looked at to choose by them: r, or a quarter.
Index channels_read(const EvictionRule& rule, Index d);
ReadIndex read_index(const EvictionRule& rule, Index l, Index d);

/// The channels of keys that are read by, chosen once on the prompt's queries and keys: the r largest sums
/// over query heads and prompt rows of |q_ic k_ic| (Double Sparsity, sec. 3.1), [d].
template <class T>
ChannelSet heavy_channels(const HeadGroup<T>& group, Index r);

}  // namespace kvreplay
