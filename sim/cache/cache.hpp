#pragma once

#include "sim/cache/quantize.hpp"
#include "sim/head_group.hpp"
#include "sim/kept_set.hpp"
#include "sim/pages_read.hpp"

#include <optional>
#include <vector>

namespace kvreplay {

/// Cache of a head group's prompt as rows attend to it: the kept tokens on the pages that a row reads, with
/// the keys, values and biases that the cache holds for them. Decoded tokens follow, unchanged.
template <class T>
struct Cache {
  KeptSet kept;         ///< [l]
  ChannelSet pruned{};  ///< [d], or empty for none: channels that the keys of `prunable` lose
  KeptSet prunable{};   ///< [l], a subset of kept; not looked at where `pruned` is empty
  Matrix<T> k{};     ///< [T, d] in place of the group's keys, or empty; rows of evicted tokens are undefined
  Matrix<T> v{};     ///< [T, d_v] in place of its values, or empty
  Vector<T> bias{};  ///< [l], added to the logits of kept tokens behind the soft cap; or empty for none
  PagesRead pages{};

  bool loses_channels(Index p) const { return !pruned.empty() && prunable[p] != 0; }
  /// True if keys and values are the group's own and complete, without biases, and rows read all kept tokens.
  bool only_evicts() const {
    return pruned.empty() && k.size() == 0 && v.size() == 0 && bias.size() == 0 && pages.size == 0;
  }
};
/// Caches that only evict.
template <class T>
std::vector<Cache<T>> caches_of(const std::vector<KeptSet>& sets) {
  std::vector<Cache<T>> caches;
  for (const KeptSet& kept : sets) caches.push_back({kept});
  return caches;
}
template <class To, class From>
Cache<To> converted(const Cache<From>& cache) {
  return {cache.kept,
          cache.pruned,
          cache.prunable,
          cache.k.template cast<To>(),
          cache.v.template cast<To>(),
          cache.bias.template cast<To>(),
          cache.pages};
}

/// Request for a cache of a group: eviction, pruning and quantization, in this order.
struct CacheCase {
  KeptSet kept;         ///< [l]
  ChannelSet pruned{};  ///< [d], or empty: every key keeps all channels
  KeptSet prunable{};   ///< [l], the keys that lose them; may be empty where `pruned` is
  std::optional<Quantization> quantization{};
  PagesRead pages{};  ///< pages of the kept tokens that rows read

  /// True if keys and values of kept tokens are stored unchanged.
  bool only_evicts() const { return pruned.empty() && (!quantization || quantization->stores_exactly()); }
  bool operator==(const CacheCase&) const = default;
};

/// The mean of the prompt's keys from position `from` on, [d], in double; 0 where there are none.
template <class T>
Vector<T> key_center(const HeadGroup<T>& group, Index from);

/// The cache that a case makes of a group. Quantization sees the kept tokens one behind the other, in order
/// of position, without pruned channels. Positions before HeadGroup::first_held(), which only rows of the
/// prompt see, stay unchanged and cost no bytes. O(T (d + d_v)) where it quantizes.
template <class T>
Cache<T> compressed_cache(const HeadGroup<T>& group, const CacheCase& which);

/// The group's keys as a cache holds them, [T, d]: pruned channels are 0, evicted tokens' keys as they were.
template <class T>
Matrix<T> keys_held(const HeadGroup<T>& group, const Cache<T>& cache);

/// Cost of storing the keys as a case does, in the logits of `rows`, by channel [d]: scale^2 times the sum of
/// q_c^2 over rows and query heads, times the sum over the kept tokens of the squared change of k_c. The sum
/// over the channels is the squared change of the logits if the channels' changes are independent, every row
/// sees every token and there is no soft cap. O((|rows| G + |kept|) d), plus the cost of storing.
template <class T>
Vector<double> channel_costs(const HeadGroup<T>& group, const CacheCase& which, RowRange rows);

/// Bytes of an unquantized number, regardless of the dump's dtype: engines store 16 bits.
inline constexpr Index kElementBytes = 2;

/// Bytes of the kept prompt tokens' keys and values; channels that prunable keys lost do not count. A
/// quantized number takes the bits of its format. Each group or block that holds one takes the bytes of its
/// scale (for uniform formats a step and a minimum in 16 bits each). Every other number takes kElementBytes.
/// A vector that is subtracted from a head's keys counts once. The list of pruned channels does not count (d
/// / 8 bytes a head).
double cache_bytes(const CacheCase& which, Index d, Index d_v);
/// The bytes of any `tokens` tokens of one head, all channels. O(1).
double cache_bytes(Index tokens, const Quantization& quantization, Index d, Index d_v);

}  // namespace kvreplay
