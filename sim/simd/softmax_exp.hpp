#pragma once

#include "sim/simd/panel.hpp"

namespace kvreplay {

/// Exponentials of a panel z [..][W], W = kPanelWidth<T>, n rows `which`: e [n][W] = exp(z + offset - shift),
/// offset [n] of the row, shift [W] of the column. For exponents of at most about 0; exactly 0 for -inf.
void softmax_exp(const float* z, const Index* which, Index n, const float* offset, const float* shift,
                 float* e);
void softmax_exp(const double* z, const Index* which, Index n, const double* offset, const double* shift,
                 double* e);

/// z [n] := exp(z - shift), likewise.
void softmax_exp(double* z, Index n, double shift);

}  // namespace kvreplay
