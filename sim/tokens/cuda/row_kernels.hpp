#pragma once

#include "sim/cuda/runtime.hpp"
#include "sim/tokens/cuda/column_kernels.hpp"

// Device kernels of the token metrics for keys, values and queries outside of attention. All pointers are to
// device memory. Sums run in a fixed order: two runs give the same bits.

namespace kvreplay::cuda {

/// Some rows of a matrix as they lie, the first `n` of them.
struct RowsOf {
  StoredRows stored;
  int n, width;
};

/// norms [n]: ||x_p||, in float64.
void norms_pass(const RowsOf& x, double* norms, const Stream& stream);

/// Partition of sums over n rows, a function of n alone.
struct SumPlan {
  int parts, per_part;
};
SumPlan sum_plan(int n);

/// m sums over the rows.
struct RowSums {
  RowsOf x;
  const float* centre;     ///< [width], which x is taken less of; null: 0
  const double* weights;   ///< [m][n]; null: 1
  const double* divisors;  ///< [m][n] that weights are divided by; a row whose divisor is 0 counts 0; null: 1
  int m;
  SumPlan plan;
  double* parts;  ///< [parts][m][width], scratch
  double* sums;   ///< [m][width]
  float* means;   ///< [m][width] sums / n; null: nobody asks
};
/// In float64.
void sums_pass(const RowSums& sums, const Stream& stream);

/// cosines [n] := x_p . w / (||x_p|| ||w||), 0 where either is 0, nan where ||w|| is; norms [n] as
/// norms_pass() leaves them, w [width]. In float64.
void cosines_pass(const RowsOf& x, const double* norms, const double* w, double* cosines,
                  const Stream& stream);

/// squares [m][n]: ||points_i - (x_p - centre)||^2 of points [m][width], in float64.
void distances_pass(const RowsOf& x, const float* centre, const double* points, int m, double* squares,
                    const Stream& stream);

/// A rotary embedding, as in Rope.
struct DeviceRope {
  bool halves;  ///< pairs are (c, c + pairs), else (2c, 2c + 1)
  int pairs;
  const double* inv_freq;  ///< [pairs]
  double attention_factor;
};
/// x [heads][n][d], at positions from `first` on, as they were before their rotation.
void unrotate_pass(const StoredRows& x, int heads, int n, int d, int first, const DeviceRope& rope,
                   float* out, const Stream& stream);

/// Number that forms_pass() computes from y = x_p M.
enum class RowForm {
  quadratic,  ///< (y + b) . x_p
  squares,    ///< ||y||^2
};
/// forms [m][n] of matrices M [m][width][width] and b [m][width]: products in float32, and sums over 64
/// channels, beyond in float64.
void forms_pass(const RowsOf& x, RowForm form, const float* matrices, const float* b, int m, double* forms,
                const Stream& stream);

}  // namespace kvreplay::cuda
