#pragma once

#include "sim/eviction/policy.hpp"
#include "sim/head_group.hpp"
#include "sim/pages_read.hpp"
#include "sim/row_range.hpp"
#include "sim/schedule.hpp"

#include <span>
#include <vector>

// Policies that keep the whole prompt while each row reads only a part. Definitions:
// sim/eviction/POLICIES.md, "Retrieval". Decoded tokens are always read.

namespace kvreplay {

/// Scores of the prompt's pages for each row, [rows, pages of rule.page] (pages of one token where the rule
/// has none): pages with larger scores are read first. The score of a page that a row does not see is
/// undefined. `rule` must have `reads`. Throws InputError where a number overflows T. Cost: 2 G |rows| T d
/// flops; of page bounds 4 G |rows| d l / page.
template <class T>
Matrix<T> row_scores(const HeadGroup<T>& group, const EvictionRule& rule, RowRange rows, Workers& workers);

/// A rule, and the number of tokens that a row may read under it.
struct ReadRequest {
  const EvictionRule* rule;
  Index budget;
};

/// Pages that `rows` read for each of `asked`, requests for one policy at several budgets. A row reads the
/// pages with pinned tokens, sinks first, then the pages of largest score (ties: the lower position), as many
/// of the pages that it sees as fit whole into the budget. Where a row reads by a share of its weight, it
/// reads the fewest tokens that reach the share. The share is the largest for which the rows of `judged`, a
/// subset of `rows`, read no more than the budget on average. Rows read everything where the budget is the
/// whole prompt, and in the rule's dense layers.
template <class T>
std::vector<PagesRead> rows_read(const HeadGroup<T>& group, std::span<const ReadRequest> asked, RowRange rows,
                                 RowRange judged, Workers& workers);

/// Mean number of the visible prompt tokens that `rows` read.
template <class T>
double mean_tokens_read(const HeadGroup<T>& group, const PagesRead& pages, RowRange rows);

/// Numbers that a policy holds for l keys of d channels besides keys and values; and numbers that each row
/// reads, of these and of the keys, to choose its tokens.
struct ReadIndex {
  Index held = 0, read = 0;
};
/// Number of key channels that the choice uses: r, or a quarter of d.
Index channels_read(const EvictionRule& rule, Index d);
ReadIndex read_index(const EvictionRule& rule, Index l, Index d);

/// The channels of keys that are read by, chosen once on the prompt's queries and keys: the r largest sums
/// over query heads and prompt rows of |q_ic k_ic| (Double Sparsity, sec. 3.1), [d].
template <class T>
ChannelSet heavy_channels(const HeadGroup<T>& group, Index r);

}  // namespace kvreplay
