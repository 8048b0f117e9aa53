#pragma once

#include "tests/bench/cuda_rates.hpp"

// What the calling thread's device can do at best, measured beside what is timed: no run can be faster than
// its flops at the best matrix rate known, nor than its bytes at the memory's rate. Rates are the best of
// several runs.

namespace kvreplay::bench {

/// How good a product must be: as float32's own, or as one of float16 factors with float32 sums.
enum class Quality { float32, half };

/// flop/s; 0 where the device has none.
struct ProductRates {
  double half = 0, tf32 = 0, fma = 0;
};

struct DeviceFloor {
  ProductRates tiles;       ///< tiles of 128 x 256 x 128 from shared memory, on all multiprocessors at once
  ProductRates registers;   ///< the same instructions without any memory: an upper bound
  double read_bytes = 0;    ///< byte/s read from device memory
  double upload_bytes = 0;  ///< byte/s from pinned host memory to the device

  /// The best rate known on tiles. Three products of TF32, or of scaled float16, make one as good as
  /// float32's.
  double flops(Quality quality) const;
  /// Seconds below which work of this size cannot go.
  double seconds(Quality quality, double work_flops, double work_bytes) const;
};

struct FloorEffort {
  std::size_t read_bytes = std::size_t{2} << 30;  ///< cut to a quarter of what is free
  std::size_t upload_bytes = std::size_t{256} << 20;
  double run_seconds = 0.02;  ///< of one run of products
  int runs = 10;
};

/// Throws std::runtime_error where a tile's product is wrong.
DeviceFloor measure_floor(const FloorEffort& effort, int multiprocessors);

}  // namespace kvreplay::bench
