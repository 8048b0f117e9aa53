#pragma once

#include "sim/tokens/cuda/column_kernels.hpp"

// What sim/tokens/loss_totals.hpp measures, on a device: after pass one, the rows' gradients meet their
// outputs; then a block of tokens has 64 of them and some of the rows, 64 at a time: logits, weights, and for
// every sample a product of values and gradients. Sums run in a fixed order.

namespace kvreplay::cuda {

/// Pointers are to device memory.
struct LossProblem {
  ColumnProblem in;
  FinishedRows rows;         ///< after pass one, with top_diff
  const float* out_centred;  ///< [G][padded_rows][d_v]
  StoredRows queries;        ///< [G][rows][d]
  StoredRows keys;           ///< [tokens][d]
  int samples;               ///< S
  const float* gradients;    ///< [G][S][rows][d_v], whose squares fit float32

  float* of_output;     ///< [G][S][rows], g . (o - centre)
  float* of_output_sq;  ///< [G][rows], the sum over s of its squares
  double* of_top;       ///< [G][rows], sum over s of (g . (v - o'))^2 of the row's largest column

  int segments;   ///< parts that the blocks of rows are cut into
  double* parts;  ///< [segments][2][G][candidates], scratch
  /// [2][G][candidates], of all columns but the rows' largest: the sum over rows and s of (g . (o' - o))^2;
  /// the largest weight.
  double* totals;
};

/// Tokens of a block, and rows that it takes at once: a segment has one such block of rows at least.
inline constexpr int kLossTokens = 64, kLossRows = 64;
/// Leaves of_top and totals.
void loss_pass(const LossProblem& problem, const Stream& stream);

}  // namespace kvreplay::cuda
