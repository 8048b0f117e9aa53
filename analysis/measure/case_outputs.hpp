#pragma once

#include "data/dump.hpp"
#include "sim/cache/cache.hpp"
#include "sim/cache/cache_outputs.hpp"
#include "sim/compute.hpp"
#include "sim/head_group.hpp"

#include <cstddef>
#include <functional>
#include <optional>
#include <span>

namespace kvreplay {

/// What the cache of a head group holds in one case.
struct CacheCase {
  KeptSet kept;         ///< [l]
  ChannelSet pruned{};  ///< [d], or empty: every key keeps all channels
  KeptSet prunable{};   ///< [l], the keys that lose them
  std::optional<Quantization> quantization{};

  bool only_evicts() const { return pruned.empty() && !quantization; }
  bool operator==(const CacheCase&) const = default;
};

/// Calls visit(part, group) for the groups that have a cache of their own: the group itself, or each of its
/// query heads.
template <class T, class Visit>
void each_part(const HeadGroup<T>& group, bool per_query_head, const Visit& visit) {
  if (!per_query_head) return visit(Index{0}, group);
  for (Index g = 0; g < group.G(); ++g) visit(g, query_head_group(group, g));
}

/// Outputs and how every case changes them, on the rows that cases are measured on. Where there are none, the
/// sums are nan and there are no vectors.
template <class T>
struct CaseOutputs {
  OutputChanges<T> window, future;
};

/// `with_vectors` the outputs too, not just their squares. Either set of rows may be empty. Cases that are
/// equal are computed once: methods often agree on what goes.
template <class T>
CaseOutputs<T> case_outputs(const HeadGroup<T>& group, RowRange window, RowRange future,
                            std::span<const CacheCase> cases, bool with_vectors, const Compute& compute);

/// Outputs over `cases` caches, which cache(c) makes, from any thread.
template <class T>
CaseOutputs<T> cache_outputs(const HeadGroup<T>& group, RowRange window, RowRange future, std::size_t cases,
                             const std::function<Cache<T>(std::size_t)>& cache, bool with_vectors,
                             const Compute& compute);

/// The sizes of a key's and a value's numbers as the dump stores them.
CacheElements cache_elements(const Dump& dump);

}  // namespace kvreplay
