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

/// Gradients of some number of the model's with respect to the outputs of adjacent rows, one set a sample
/// (data/DUMP-FORMAT.md). They are linear in that number: what a change of the outputs does to it, to first
/// order, is the sum of gradient . change.
template <class T>
struct RowGradients {
  RowRange rows{};           ///< positions; empty: there are none
  Index samples = 0;         ///< S
  std::vector<Matrix<T>> g;  ///< [G] of [S |rows|, d_v], sample by sample

  /// The place in g of a sample's row at a position.
  Index at(Index sample, Index position) const { return sample * rows.count() + position - rows.begin; }
};

/// The unit of every analysis: one layer, one KV head and the G query heads that read it.
/// Row r of q is position T - T_q + r; rows of k and v are positions 0..T-1. A cache from which tokens were
/// evicted is a head group too (cache_group()): its rows are then numbered as they stand in
/// it.
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
  /// G of [rows, d_v], of the last positions: the decoding steps with a query. What their outputs are
  /// multiplied by before wo; empty where the dump has none.
  std::vector<HeadMatrix<T>> gate;
  std::optional<Rope> rope;  ///< to undo the rotation of q; empty where unknown
  /// Gradients of log-probabilities of labels that the model drew: on the last rows of the prompt, and of
  /// all.
  RowGradients<T> g_window, g_future;
  RowGradients<T> g_nll;  ///< of the negative log-likelihood of the tokens that followed, one sample
  /// G of [R_ref, d], after RoPE: queries of a second reading of the prompt, row r at position l + r, that
  /// are asked of the prompt's tokens alone; empty where the dump has none of this prompt.
  std::vector<HeadMatrix<T>> q_ref;
  /// G of [R_ref, 1]: the norms of the hidden states that these queries' attention was called with; empty
  /// where the dump has none.
  std::vector<HeadMatrix<T>> h_ref_norm;
  /// Where the rows of k and v stand in the model's sequence: [T], ascending, the rows with a query adjacent.
  /// Empty: row p is position p. Only a sliding window asks for it.
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

/// All of a head group that what is asked of it looks at; the rest is not read, nor looked at for NaN and
/// infinity.
struct HeadParts {
  Index first_row = 0;  ///< the queries at this position and later, at least one
  bool values = true;   ///< without: v is [0, d_v]
  bool others = true;   ///< wo, the gate, gradients and the second reading
  /// Whether keys that lie in memory as they are used are looked at: what is asked finds no finite number
  /// where it looks at one that is not, and says so.
  bool checked_keys = true;

  /// What these and others need together.
  HeadParts& operator|=(const HeadParts& more) {
    return *this = {std::min(first_row, more.first_row), values || more.values, others || more.others,
                    checked_keys || more.checked_keys};
  }
};

/// Reads one head group from a dump and converts it to T. Where q, k and v of a dump in memory are of T, row
/// by row, the group looks at them there.
template <class T>
HeadGroup<T> load_head_group(const Dump& dump, Index layer, Index kv_head, const HeadParts& parts = {});

/// A cache with all that read it: one KV head of the layer whose cache `layer` reads, and the query heads of
/// every layer that reads it, layer by layer. What is chosen for the cache as a whole is chosen by it.
/// load_head_group() where one layer reads the cache.
template <class T>
HeadGroup<T> load_readers(const Dump& dump, Index layer, Index kv_head, const HeadParts& parts = {});

/// Why head groups of a dump have no q_ref, as one clause; nothing where they have.
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

/// A cache as a head group of its own, so that everything that ranks a prompt ranks a cache: the keys and
/// values at `tokens` (positions, ascending), all of them candidates, and the queries at the last `queries`
/// of them, which must be adjacent positions. wo, gate, rope, gradients and q_ref are left out.
template <class T>
HeadGroup<T> cache_group(const HeadGroup<T>& group, const std::vector<Index>& tokens, Index queries);

/// One query head of a group with the group's keys and values: what a cache that is repeated for every query
/// head holds for it.
template <class T>
HeadGroup<T> query_head_group(const HeadGroup<T>& group, Index g);

/// The numbers of a head group's q, k and v in 16 bits, row by row, as the dump holds them.
struct StoredGroup {
  Dtype dtype = Dtype::f16;
  Index first_query = 0;                        ///< the position of the first of the queries
  std::vector<std::unique_ptr<std::byte[]>> q;  ///< G of [T - first_query, d]
  std::unique_ptr<std::byte[]> k;               ///< [T, d]
  std::unique_ptr<std::byte[]> v;               ///< [T, d_v], or null
};

/// Queries and values as far as `parts` has them. Empty where the dump has no such numbers: q, k and v of
/// another or of several dtypes, or in the file otherwise than row by row. They are those of
/// load_head_group(), which checks them.
std::optional<StoredGroup> load_stored_group(const Dump& dump, Index layer, Index kv_head,
                                             const HeadParts& parts = {});

/// Bytes of a loaded head group with elements of `element_size` bytes.
std::size_t head_group_bytes(const Dump& dump, std::size_t element_size);
/// The same but for a gate.
std::size_t head_group_bytes(const DumpShape& shape, bool with_wo, std::size_t element_size);
/// The bytes of this one.
template <class T>
std::size_t bytes_of(const HeadGroup<T>& group);

/// Head groups of more bytes are not worked on side by side, whatever the number of threads.
inline constexpr std::size_t kLargeHeadGroup = std::size_t{256} << 20;

}  // namespace kvreplay
