#pragma once

#include "data/dtype.hpp"
#include "data/dump.hpp"

#include <cstdint>
#include <filesystem>
#include <vector>

namespace kvreplay {

/// A seeded synthetic dump with the structures that eviction methods live or die by, planted at known places.
struct SynthOptions {
  Index layers = 2;
  Index q_heads = 4;  ///< a multiple of kv_heads
  Index kv_heads = 2;
  Index head_dim = 64;  ///< even; d_v is the same
  Index prompt = 256;
  Index decode = 32;
  Dtype dtype = Dtype::f32;
  Index seed = 1;
  /// S of random gradients, which no model has: of the last 32 prompt rows, the decoding steps, and their
  /// NLL.
  Index gradients = 0;
};

/// Where things were planted; also written into the dump's manifest under "planted".
struct Planted {
  /// Positions that hold more than 0.99 of every later row's weight in sink heads.
  std::vector<Index> sinks;
  std::vector<Index> sink_kv_heads;  ///< per layer: the KV head that has the sink
  /// Positions that many rows look at, in all heads but sink heads. Empty with a single KV head (which has
  /// the sink) or a prompt below 8.
  std::vector<Index> heavy_hitters;
  std::vector<Index> outlier_channels;  ///< key channels of large norm; empty below head dimension 8
  /// A position that prompt rows ignore and the decoding steps need, in all heads but sink heads; -1 where
  /// there are no decoding steps or no heavy hitters.
  Index needle = -1;
};

/// Writes the dump to `folder`, made if missing; one that holds a manifest.json or layer_00 already, and
/// options that make no dump, are an InputError. Queries and keys carry the rotation that the manifest
/// states; o is computed in float64 from the rounded tensors and left out above 8192 positions, where its
/// O(T^2 d) would take minutes a head. The same options give the same bytes on every machine. Memory stays
/// that of one head.
Planted write_synthetic_dump(const std::filesystem::path& folder, const SynthOptions& options);

}  // namespace kvreplay
