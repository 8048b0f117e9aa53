#pragma once

#include "sim/simd/panel.hpp"
#include "sim/tokens/row_scores.hpp"

// Products of one decoding step with a cache: a few vectors against every cached token. Lanes run along the
// tokens, or along the channels of the values: a single query row would leave a tile of rows empty.
// Token-major tiles are [tiles][width][W] with W = kPanelWidth<T> tokens each: token p, channel c is at (p /
// W * width + c) * W + p % W. For float and double.

namespace kvreplay {

/// Kernels for one instruction set.
template <class T>
struct DecodeRowsSimd {
  /// out[p / W][r][p % W] = vectors[r] . x_p for m vectors [m][width] and the tokens x of `tiles` tiles.
  void (*token_dots)(const T* x, Index tiles, Index width, const T* vectors, Index m, T* out);

  /// sums[panel][r][c] = sum over p < tokens of weights[r][p] x_p for values in channel panels,
  /// [panels][stride][W] with the token p in row p; weights are [m] rows, `stride` apart.
  void (*weighted_tokens)(const T* x, Index stride, Index tokens, Index panels, const T* weights, Index m,
                          T* sums);

  /// With b_r one of m vectors [m][width]: square[r][p] = ||x_p - b_r||^2, and of `which` product[r][p] =
  /// x_p . (x_p - b_r) or b_r . (x_p - b_r). Differences are formed before they are squared. Outputs are [m]
  /// rows, `stride` apart.
  void (*token_differences)(const T* x, Index tiles, Index width, const T* base, Index m, Index stride,
                            T* square, DifferenceProduct which, T* product);
};
/// Kernels for the best instruction set of this machine.
template <class T>
DecodeRowsSimd<T> decode_rows_simd();

/// e[p] := exp(e[p] - shift), exactly 0 for -inf, and their sum. n is a multiple of kPanelWidth<double>.
double exp_and_sum(double* e, Index n, double shift);

/// Raw logits become capped ones, z = cap tanh(raw / cap); slope[p] = dz/draw = 1 - tanh^2. n as above.
void cap_logits(double* z, Index n, double cap, double* slope);

}  // namespace kvreplay
