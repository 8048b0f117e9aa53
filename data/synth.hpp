#pragma once

#include <cstdint>
#include <filesystem>
#include <vector>

#include "data/dtype.hpp"
#include "data/dump.hpp"

namespace kvreplay {

/// A seeded synthetic dump with the structures that eviction methods live or die by, planted at known places.
struct SynthOptions {
  Index layers = 2;
  Index q_heads = 4;
  Index kv_heads = 2;
  Index head_dim = 64;
  Index prompt = 256;
  Index decode = 32;
  Dtype dtype = Dtype::f32;
  std::uint64_t seed = 1;
};

/// Where things were planted; also written into the dump's manifest under "planted".
struct Planted {
  std::vector<Index> sinks;           ///< positions that hold more than 0.99 of every later row's weight in sink heads
  std::vector<Index> sink_kv_heads;   ///< per layer: the KV head that has the sink
  std::vector<Index> heavy_hitters;   ///< positions that many rows look at
  std::vector<Index> outlier_channels;///< key channels of large norm
  Index needle = -1;                  ///< a position that prompt rows ignore and the decoding steps need
};

/// Writes the dump to `folder` (made if missing, an existing manifest.json there is an InputError). The same options give the
/// same bytes on every machine. Memory stays that of one head.
Planted write_synthetic_dump(const std::filesystem::path& folder, const SynthOptions& options);

}  // namespace kvreplay
