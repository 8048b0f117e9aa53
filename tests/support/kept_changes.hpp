#pragma once

#include "sim/cache/cache_outputs.hpp"

#include <span>
#include <vector>

// Changes of the outputs by caches that only evict, from their kept sets.

namespace kvreplay {

template <class T>
OutputChanges<T> kept_changes(const HeadGroup<T>& group, RowRange rows, std::span<const KeptSet> sets,
                              bool with_vectors, Workers& workers) {
  return output_changes(group, rows, caches_of<T>({sets.begin(), sets.end()}), with_vectors, workers);
}

inline OutputChangeReference output_change_reference(const HeadGroup<double>& group, RowRange rows,
                                                     const KeptSet& kept) {
  return output_change_reference(group, rows, Cache<double>{kept});
}

}  // namespace kvreplay
