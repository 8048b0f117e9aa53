#pragma once

namespace kvreplay::bench {

/// Multiplies tiles of 128 x 256 x 128 in float32 with Eigen, `repeats` times. In a source file of its own
/// because it is built for the machine at hand (-march=native), as Eigen wants it.
float eigen_products(int repeats);

}  // namespace kvreplay::bench
