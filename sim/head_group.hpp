#pragma once

#include "data/dump.hpp"
#include "sim/head_matrix.hpp"
#include "sim/row_range.hpp"

#include <algorithm>
#include <cstddef>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace kvreplay {

/// Gradients of a scalar of the model (a log-probability, say) with respect to the attention outputs of
/// adjacent rows, one set for each sample (data/DUMP-FORMAT.md). To first order, a change of the outputs
/// changes the scalar by the sum of gradient . change.
template <class T>
struct RowGradients {
  RowRange rows{};           ///< positions; empty: no gradients
  Index samples = 0;         ///< S, the number of sets
  std::vector<Matrix<T>> g;  ///< [G] of [S |rows|, d_v], sample by sample

  /// Index into g's rows of a sample's row at a position.
  Index at(Index sample, Index position) const { return sample * rows.count() + position - rows.begin; }
};

/// The unit of every analysis: one layer, one KV head and the G query heads that read it. Row r of q is
/// position T - T_q + r; rows of k and v are positions 0..T-1. A cache from which tokens were evicted is a
/// head group too (cache_group()): its rows are renumbered from 0.
template <class T>
struct HeadGroup {
  Index layer = 0;
  Index kv_head = 0;
  Index l = 0;                   ///< prompt length
  AttentionRule rule;            ///< sink_logit holds this group's heads only: [G] or empty
  std::vector<HeadMatrix<T>> q;  ///< G of [T_q, d], after RoPE
  HeadMatrix<T> k;               ///< [T, d]
  HeadMatrix<T> v;               ///< [T, d_v]
  std::vector<Matrix<T>> wo;     ///< G of [d_v, d_model]; empty where the dump has none
  /// Factors of the outputs before wo, G of [rows, d_v], for the decoding steps with a query (the last
  /// positions); empty where the dump has no gate.
  std::vector<HeadMatrix<T>> gate;
  std::optional<Rope> rope;  ///< to undo the rotation of q; empty where unknown
  /// Gradients of the log-probabilities of tokens drawn from the model's own predictions, S samples.
  /// g_window: of the last prompt rows. g_future: of the rows of the decoding steps.
  RowGradients<T> g_window, g_future;
  RowGradients<T> g_nll;  ///< negative log-likelihood of the tokens that followed, one sample
  /// Queries of a second reading of the prompt, G of [R_ref, d], after RoPE. Row r is at position l + r and
  /// sees only the prompt's tokens. Empty where the dump has none for this prompt.
  std::vector<HeadMatrix<T>> q_ref;
  /// Norms of the hidden states that the attention of q_ref was called with, G of [R_ref, 1]; empty where the
  /// dump has none.
  std::vector<HeadMatrix<T>> h_ref_norm;
  /// Positions of the rows of k and v in the model's sequence: [T], ascending, the rows with a query
  /// adjacent. Empty: row p is position p. Only a sliding window needs it.
  std::vector<Index> position;

  Index G() const { return std::ssize(q); }
  Index T_all() const { return k.rows(); }
  Index T_q() const { return q.empty() ? 0 : q.front().rows(); }
  Index R_ref() const { return q_ref.empty() ? 0 : q_ref.front().rows(); }
  Index d() const { return k.cols(); }
  Index d_v() const { return v.cols(); }
  Index first_query() const { return T_all() - T_q(); }
  /// The first prompt position that the cache holds for later rows (AttentionRule::first_held): candidates
  /// for eviction are first_held()..l-1. Only rows of the prompt see earlier positions.
  Index first_held() const { return first_seen_from(l); }
  /// The first position that rows at `end` and later see.
  Index first_seen_from(Index end) const {
    if (position.empty() || end == 0) return rule.first_held(end);
    return std::lower_bound(position.begin(), position.begin() + end,
                            rule.first_held(position[end - 1] + 1)) -
           position.begin();
  }
  /// The number of candidates for eviction.
  Index held() const { return l - first_held(); }
  /// The gate of query head g's output at position i.
  auto gate_row(Index g, Index i) const { return gate[g].row(i - (T_all() - gate[g].rows())); }
  /// The logit of query head g's sink column, -inf where it has none.
  double sink(Index g) const {
    return rule.sink_logit.empty() ? -std::numeric_limits<double>::infinity() : rule.sink_logit[g];
  }
  /// The first and one past the last key position that the query at position i sees.
  Index first_visible(Index i) const {
    if (!rule.sliding_window) return 0;
    const Index at = position.empty() ? i : position[i];
    const Index first = std::max<Index>(at + 1 - *rule.sliding_window, 0);
    if (position.empty()) return first;
    return std::lower_bound(position.begin(), position.end(), first) - position.begin();
  }
  Index end_visible(Index i) const {
    if (rule.causal) return i + 1;
    if (!rule.two_sided || !rule.sliding_window) return T_all();
    const Index end = (position.empty() ? i : position[i]) + *rule.sliding_window;
    if (position.empty()) return std::min(end, T_all());
    return std::lower_bound(position.begin(), position.end(), end) - position.begin();
  }
  /// The prompt positions that row r of q_ref sees: those of its sliding window, if any are left.
  RowRange repeat_visible(Index r) const {
    if (!rule.sliding_window) return {0, l};
    const Index at = (position.empty() ? l : position[l - 1] + 1) + r;
    const Index first = std::max<Index>(at + 1 - *rule.sliding_window, 0);
    if (position.empty()) return {std::min(first, l), l};
    return {std::lower_bound(position.begin(), position.begin() + l, first) - position.begin(), l};
  }
};

template <class To, class From>
RowGradients<To> converted(const RowGradients<From>& gradients) {
  RowGradients<To> result{gradients.rows, gradients.samples, {}};
  for (const Matrix<From>& g : gradients.g) result.g.push_back(g.template cast<To>());
  return result;
}

/// Parts of a head group that a caller needs. The other parts are neither read nor checked for NaN and
/// infinity.
struct HeadParts {
  Index first_row = 0;  ///< position of the first query that is needed; at least one query is read
  bool values = true;   ///< false: v is [0, d_v]
  bool others = true;   ///< wo, the gate, gradients and the second reading
  /// True: keys in memory that need no copy are checked for NaN and infinity on load. False: the caller
  /// detects them itself and throws.
  bool checked_keys = true;

  /// Union with the parts that another caller needs.
  HeadParts& operator|=(const HeadParts& more) {
    return *this = {std::min(first_row, more.first_row), values || more.values, others || more.others,
                    checked_keys || more.checked_keys};
  }
};

/// Reads one head group from a dump and converts it to T. Where q, k or v of a dump in memory already has
/// type T, row by row, the group points to it without a copy.
template <class T>
HeadGroup<T> load_head_group(const Dump& dump, Index layer, Index kv_head, const HeadParts& parts = {});

/// A cache with all its readers: one KV head of the layer whose cache `layer` reads, and the query heads of
/// every layer that reads it, layer by layer. Policies choose for the cache as a whole by this group. Equals
/// load_head_group() where one layer reads the cache.
template <class T>
HeadGroup<T> load_readers(const Dump& dump, Index layer, Index kv_head, const HeadParts& parts = {});

/// Reason why head groups of a dump have no q_ref, as one clause; nothing where they have one.
std::optional<std::string> why_no_second_reading(const Dump& dump);

/// A head group in another precision.
template <class To, class From>
HeadGroup<To> converted(const HeadGroup<From>& group) {
  HeadGroup<To> result;
  result.layer = group.layer;
  result.kv_head = group.kv_head;
  result.l = group.l;
  result.rule = group.rule;
  for (const HeadMatrix<From>& q : group.q) result.q.push_back(q.template cast<To>());
  result.k = group.k.template cast<To>();
  result.v = group.v.template cast<To>();
  for (const Matrix<From>& wo : group.wo) result.wo.push_back(wo.template cast<To>());
  for (const HeadMatrix<From>& gate : group.gate) result.gate.push_back(gate.template cast<To>());
  result.rope = group.rope;
  result.g_window = converted<To>(group.g_window);
  result.g_future = converted<To>(group.g_future);
  result.g_nll = converted<To>(group.g_nll);
  for (const HeadMatrix<From>& q : group.q_ref) result.q_ref.push_back(q.template cast<To>());
  for (const HeadMatrix<From>& h : group.h_ref_norm) result.h_ref_norm.push_back(h.template cast<To>());
  result.position = group.position;
  return result;
}

/// A cache as a head group: code that ranks a prompt then ranks a cache too. Its keys and values are those at
/// `tokens` (positions, ascending), all of them candidates. Its queries are those at the last `queries` of
/// these positions, which must be adjacent. wo, gate, rope, gradients and q_ref are left out.
template <class T>
HeadGroup<T> cache_group(const HeadGroup<T>& group, const std::vector<Index>& tokens, Index queries);

/// One query head of a group with the group's keys and values: the cache of one query head if the cache is
/// repeated for every query head.
template <class T>
HeadGroup<T> query_head_group(const HeadGroup<T>& group, Index g);

/// A head group's q, k and v in 16 bits, row by row, as the dump stores them.
struct StoredGroup {
  Dtype dtype = Dtype::f16;
  Index first_query = 0;                        ///< position of the first query
  std::vector<std::unique_ptr<std::byte[]>> q;  ///< G of [T - first_query, d]
  std::unique_ptr<std::byte[]> k;               ///< [T, d]
  std::unique_ptr<std::byte[]> v;               ///< [T, d_v], or null
};

/// Queries and values as far as `parts` has them. Empty where the dump has no 16-bit numbers, stores q, k and
/// v in several dtypes, or stores them otherwise than row by row. The numbers equal those of
/// load_head_group(), which checks them.
std::optional<StoredGroup> load_stored_group(const Dump& dump, Index layer, Index kv_head,
                                             const HeadParts& parts = {});

/// Bytes of a loaded head group with elements of `element_size` bytes.
std::size_t head_group_bytes(const Dump& dump, std::size_t element_size);
/// Bytes of a head group without a gate.
std::size_t head_group_bytes(const DumpShape& shape, bool with_wo, std::size_t element_size);
/// Bytes of this head group.
template <class T>
std::size_t bytes_of(const HeadGroup<T>& group);

/// Size in bytes above which head groups are processed one after the other, whatever the number of threads.
inline constexpr std::size_t kLargeHeadGroup = std::size_t{256} << 20;

}  // namespace kvreplay
