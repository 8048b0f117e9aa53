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

/// Explanation of a head's cached keys or values, in comparison with the model's at the same positions.
struct HeldAs {
  std::string text;  ///< "as the model made them", "turned on by 12 positions", "in 2"
  bool as_meant = false;
  double distance = 0;  ///< squared norm of (cached - the model's) over the squared norm of the model's
};

/// One head's cache.
struct HeldHead {
  std::vector<Index> positions;  ///< of every row; if not given, those of the nearest keys and values
  bool in_order = true;          ///< ascending
  HeldAs keys, values;
};

/// Loader of any head of the model, one at a time: cached rows may come from another head.
using AnyHead = std::function<const HeadGroup<double>&(Index layer, Index kv_head)>;

/// The format in which rows of an earlier head were stored, tried first on the next.
struct FoundFormat {
  std::string text;
  Quantization as;
};
struct FoundFormats {
  std::optional<FoundFormat> keys, values;
};

/// `kept`: the prompt's positions of the rows, in any order; without it rows may be of any position, decoded
/// ones included. If several positions have equal keys and values, as equal tokens in a first layer do, those
/// in `wanted` are matched first. `meant`: the expected format of the cache; empty: exact numbers. `numbers`:
/// the dtype of the cached numbers.
HeldHead held_head(const Matrix<double>& k, const Matrix<double>& v, const HeadGroup<double>& group,
                   const std::optional<KeptSet>& kept, const KeptSet& wanted,
                   const std::optional<Quantization>& meant, Dtype numbers, const AnyHead& others,
                   const std::vector<Index>& layers, Index n_kv, FoundFormats& formats);

/// The cache for output_changes(): positions without a row are evicted, all others have the rows of the
/// cache.
Cache<double> cache_of(const HeldHead& head, const Matrix<double>& k, const Matrix<double>& v,
                       const HeadGroup<double>& group);

}  // namespace kvreplay::conform
