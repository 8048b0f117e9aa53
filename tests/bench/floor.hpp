#pragma once

#include "sim/schedule.hpp"

// What the machine can do at best, measured beside what is timed: no run can be faster than its flops at the
// best matrix rate known, nor than its bytes at the memory's rate.

namespace kvreplay::bench {

struct Floor {
  double own_flops =
      0;  ///< flop/s of this project's panel product, all threads at once, tiles of 128 x 256 x 128
  double eigen_flops = 0;  ///< flop/s of Eigen's product, built for this very processor, likewise
  double bytes = 0;        ///< byte/s read from memory by all threads at once

  double flops() const { return own_flops > eigen_flops ? own_flops : eigen_flops; }
  /// Seconds below which work of this size cannot go.
  double seconds(double work_flops, double work_bytes) const;
};

/// Takes about 0.1 s; the best of several short runs each.
Floor measure_floor(Workers& workers);

}  // namespace kvreplay::bench
