#pragma once

#include "sim/head_group.hpp"

// What the two passes cannot do without, for floors.

namespace kvreplay::bench {

struct Work {
  double flops = 0;
  double bytes = 0;  ///< of device memory
};

/// One head group: the last w of l positions are rows (causal), d = d_v.
struct PassShape {
  Index l = 0, w = 0, G = 1, d = 128;
  bool outputs = true;  ///< else weights alone: no values, two sums

  /// (row, token) pairs.
  double visible() const {
    return static_cast<double>(G * w) * (static_cast<double>(l) - static_cast<double>(w - 1) / 2);
  }
  /// K, V and the rows of Q, once.
  double input_bytes(double element) const {
    return element * static_cast<double>(d * ((outputs ? 2 : 1) * l + G * w));
  }
  /// o and the log-sum-exp of every row, float32.
  double row_bytes() const { return 4.0 * static_cast<double>(G * w * ((outputs ? d : 0) + 1)); }
  /// Seven column sums of every query head, float64.
  double sum_bytes() const { return 8.0 * (outputs ? 7 : 2) * static_cast<double>(G * l); }
  /// One of K Q^T, V^T A and V O^T.
  double product_flops() const { return 2 * visible() * static_cast<double>(d); }
  double pass_flops() const { return (outputs ? 2 : 1) * product_flops(); }

  /// K Q^T and V^T A.
  Work pass_one(double element) const { return {pass_flops(), input_bytes(element) + row_bytes()}; }
  /// K Q^T and V O^T.
  Work pass_two(double element) const {
    return {pass_flops(), input_bytes(element) + row_bytes() + sum_bytes()};
  }
  Work both(double element) const { return {2 * pass_flops(), input_bytes(element) + sum_bytes()}; }
};

}  // namespace kvreplay::bench
