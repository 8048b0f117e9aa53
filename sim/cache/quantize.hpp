#pragma once

#include "sim/cache/number_format.hpp"
#include "sim/head_group.hpp"
#include "sim/kept_set.hpp"

#include <memory>
#include <optional>
#include <string>
#include <vector>

// Quantization, replayed: the values that reading back gives replace the stored ones. Uniform formats (2 to 8
// bits) are KIVI's (arXiv 2402.02750). They store a group of numbers with minimum m and maximum M as integers
// 0..2^bits - 1 with step s = (M - m) / (2^bits - 1). x becomes m + s floor((x - m) / s + 1/2), off by half a
// step at most, to rounding. m and M themselves come back exactly, and so do numbers that were quantized
// before. Steps and minima are not rounded to 16 bits. The other formats are those of engines
// (sim/cache/FORMATS.md).

namespace kvreplay {

/// Vectors that are subtracted from keys, one for every head of a model, as a file has them.
struct GivenCenters {
  std::string file;                                      ///< empty: none are given
  Index n_kv = 0, d = 0;                                 ///< of `vectors`
  std::shared_ptr<const std::vector<double>> vectors{};  ///< [layers, n_kv, d]; null until they are read
  bool operator==(const GivenCenters& other) const { return file == other.file; }
};

/// Storage of the keys or of the values.
struct StoredAs {
  NumberFormat format = NumberFormat::exact;
  bool per_channel = false;  ///< groups lie along tokens, not along channels; of uniform formats
  Index turned = 0;          ///< a Hadamard matrix of this size turns them before they are stored; 0: none
  /// Keys only: the mean of the prompt's keys from this position on is subtracted before storing, and added
  /// on reading. Every logit of a row changes by one constant, so the softmax does not change.
  std::optional<Index> centered = {};
  GivenCenters centers = {};  ///< of keys that are centered: in place of their mean
  double scale = 1;           ///< of all numbers, in formats with a tensor_scale
  bool operator==(const StoredAs&) const = default;
};

struct Quantization {
  StoredAs k, v;
  Index group = 32;      ///< numbers that share a step and a minimum in uniform formats, at least 1
  Index residual = 128;  ///< the most recent tokens stay as they are

  /// Keys per channel, values per token, both in `bits` bits: 2, 3, 4, 5, 6 or 8.
  static Quantization kivi(Index bits, Index group = 32, Index residual = 128);
  bool stores_exactly() const { return k.format == NumberFormat::exact && v.format == NumberFormat::exact; }
  bool operator==(const Quantization&) const = default;
};

/// Number of a cache's n tokens that are quantized, the oldest ones. Keys in groups of tokens are quantized
/// in whole groups, so up to group - 1 tokens more than the residual stay unchanged.
Index quantized_keys(Index n, const Quantization& quantization);
Index quantized_values(Index n, const Quantization& quantization);

/// `tokens` are the cache's tokens, rows of k, oldest first. The channels `pruned` ([d], or empty for none)
/// of the tokens `prunable` are not stored: they do not change, and their group's minimum and maximum ignore
/// them. `prunable` has a mark for each row that a token may name; it is ignored where `pruned` is empty.
/// Pruning is only for uniform formats without a turn. Groups along channels are neighbours, the last one
/// shorter where d is no multiple. O(|tokens| d), finite k.
template <class T>
void quantize_keys(Matrix<T>& k, const std::vector<Index>& tokens, const ChannelSet& pruned,
                   const KeptSet& prunable, const Quantization& quantization);

template <class T>
void quantize_values(Matrix<T>& v, const std::vector<Index>& tokens, const Quantization& quantization);

}  // namespace kvreplay
