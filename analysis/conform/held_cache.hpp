#pragma once

#include "analysis/eviction/cache_format.hpp"
#include "data/dump.hpp"
#include "sim/cache/cache.hpp"
#include "sim/compute.hpp"
#include "sim/head_group.hpp"

#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <vector>

// The keys and values that an implementation holds of a prompt, against those that the model made.

namespace kvreplay::conform {

/// A folder of caches: layer_XX/k.npy [kv_heads, n, d] and layer_XX/v.npy [kv_heads, n, d_v], of every layer
/// with a cache of its own; with or without a batch of 1, as long in every head of a layer.
class HeldCaches {
 public:
  /// Throws InputError where a file is missing, or of other heads or channels than the dump's.
  HeldCaches(std::filesystem::path folder, const Dump& dump);

  struct Layer {
    std::vector<Matrix<double>> k, v;  ///< of every KV head: [n, d], [n, d_v]
  };
  /// Throws InputError at a number that is not finite.
  Layer layer(Index layer) const;

 private:
  std::filesystem::path file_of(Index layer, const char* name) const;

  std::filesystem::path folder_;
  const Dump& dump_;
};

/// What keys or values of a cache are, beside those of their positions.
struct HeldAs {
  std::string text;  ///< "as the model made them", "turned on by 12 positions", "in 2"
  bool as_meant = false;
  double distance = 0;  ///< squared, of what is held from what the model made, over the squared norm of that
};

/// One head's cache.
struct HeldHead {
  std::vector<Index> positions;  ///< of every row; where nobody said, those of the nearest keys and values
  bool in_order = true;          ///< ascending
  HeldAs keys, values;
};

/// Every head of the model, one of them at a time: what held rows may be taken from.
using AnyHead = std::function<const HeadGroup<double>&(Index layer, Index kv_head)>;

/// A format that rows were found to be in, to be tried first on the next.
struct FoundFormat {
  std::string text;
  Quantization as;
};
struct FoundFormats {
  std::optional<FoundFormat> keys, values;
};

/// `kept`: the prompt's positions that rows stand for, in any order; without them rows may be of any, and of
/// decoded ones. Of positions whose numbers are the same, as those of equal tokens in a first layer are,
/// those that are `wanted` are taken first. `meant`: how the cache is to be stored; nothing: as it is.
/// `numbers`: what it is held in.
HeldHead held_head(const Matrix<double>& k, const Matrix<double>& v, const HeadGroup<double>& group,
                   const std::optional<KeptSet>& kept, const KeptSet& wanted,
                   const std::optional<Quantization>& meant, Dtype numbers, const AnyHead& others,
                   const std::vector<Index>& layers, Index n_kv, FoundFormats& formats);

/// As output_changes() takes it: evicted what no row stands for, the rest as held.
Cache<double> cache_of(const HeldHead& head, const Matrix<double>& k, const Matrix<double>& v,
                       const HeadGroup<double>& group);

}  // namespace kvreplay::conform
