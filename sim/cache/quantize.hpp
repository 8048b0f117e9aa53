#pragma once

#include "sim/head_group.hpp"
#include "sim/kept_set.hpp"

#include <vector>

// Quantization in the manner of KIVI (arXiv 2402.02750), replayed: what is read back replaces what was
// stored. A group of numbers with minimum m and maximum M is stored as integers 0..2^bits - 1 with step s =
// (M - m) / (2^bits - 1): x becomes m + s floor((x - m) / s + 1/2), off by half a step at most, to rounding.
// m and M themselves come back exactly, and so does what was quantized before. Steps and minima are not
// rounded to the element type that a cache would hold them in.

namespace kvreplay {

struct Quantization {
  Index bits = 4;        ///< 2, 4 or 8
  Index group = 32;      ///< numbers that share a step and a minimum, at least 1
  Index residual = 128;  ///< the most recent tokens stay as they are
  bool operator==(const Quantization&) const = default;
};

/// How many of a cache's n tokens, the oldest ones, are quantized. Keys are quantized in whole groups of
/// tokens, so up to group - 1 more than the residual stay as they are; values token by token.
Index quantized_keys(Index n, const Quantization& quantization);
Index quantized_values(Index n, const Quantization& quantization);

/// Keys, per channel: groups of `group` consecutive tokens of the cache. `tokens` are the cache's tokens,
/// rows of k, oldest first. The channels `pruned` ([d], or empty for none) of the tokens `prunable` (a mark
/// for each row that a token may name; not looked at where `pruned` is empty) are not stored: they neither
/// count for their group's minimum and maximum nor change. O(|tokens| d), finite k.
template <class T>
void quantize_keys(Matrix<T>& k, const std::vector<Index>& tokens, const ChannelSet& pruned,
                   const KeptSet& prunable, const Quantization& quantization);

/// Values, per token: groups of `group` neighbouring channels, the last one shorter where d_v is no multiple.
/// O(|tokens| d_v), finite v.
template <class T>
void quantize_values(Matrix<T>& v, const std::vector<Index>& tokens, const Quantization& quantization);

}  // namespace kvreplay
