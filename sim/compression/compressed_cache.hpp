#pragma once

#include "sim/channels/subset.hpp"
#include "sim/compression/quantize.hpp"
#include "sim/head_group.hpp"
#include "sim/kept_set.hpp"

#include <optional>

namespace kvreplay {

/// What a cache holds of a head group's prompt once tokens were evicted, key channels pruned and the rest
/// quantized, in this order, or once what is kept makes up for what is not (sim/compensation/compensate.hpp).
/// Decoded tokens follow as they are.
template <class T>
struct CompressedCache {
  KeptSet kept;       ///< [l]
  ChannelSet pruned;  ///< [d], or empty for none: channels that the keys of `prunable` lose
  KeptSet prunable;   ///< [l], a subset of kept; not looked at where `pruned` is empty
  Matrix<T> k;  ///< [T, d] what stands in place of the group's keys, pruned channels 0; rows that are not
                ///< kept are undefined
  Matrix<T> v;  ///< [T, d_v]
  Vector<T> bias{};  ///< [l], added to the logits of kept tokens behind the soft cap; or empty for none
};

/// The cache that these make of a group. `pruned` and, with it, `prunable` may be empty. Quantization sees
/// the kept tokens one behind the other, in order of position, and only what pruning left. O(T (d + d_v)).
template <class T>
CompressedCache<T> compressed_cache(const HeadGroup<T>& group, const KeptSet& kept, const ChannelSet& pruned,
                                    const KeptSet& prunable, const std::optional<Quantization>& quantization);

struct CacheElements {
  Index key = 2, value = 2;  ///< bytes of a stored number that is not quantized, and of a step or minimum
};

/// Bytes of the kept prompt tokens' keys, less the channels that the prunable ones lost, and values. A
/// quantized number takes bits / 8 of a byte, and each group that holds one a step and a minimum; every other
/// number takes the bytes of its element. Which channels are pruned is not counted (d / 8 bytes a head).
double cache_bytes(const KeptSet& kept, const ChannelSet& pruned, const KeptSet& prunable, Index d, Index d_v,
                   const std::optional<Quantization>& quantization, const CacheElements& elements);

}  // namespace kvreplay
