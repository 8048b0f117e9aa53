#pragma once

#include "sim/simd/panel.hpp"

namespace kvreplay {

/// Matrix product c = a b for one panel: a [rows][depth] with rows `a_row` apart, b [depth][W], c [rows][W],
/// W = kPanelWidth<T>. Both passes are made of it. Each number of c is summed in order of the depth, so it
/// does not depend on the other numbers of the call.
void panel_gemm(Index rows, Index depth, const float* a, Index a_row, const float* b, float* c);
void panel_gemm(Index rows, Index depth, const double* a, Index a_row, const double* b, double* c);
/// panel_gemm() of a transposed: a [depth][rows], its rows `a_row` apart.
void panel_gemm_transposed(Index rows, Index depth, const double* a, Index a_row, const double* b, double* c);

}  // namespace kvreplay
