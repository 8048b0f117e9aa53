#pragma once

#include "sim/simd/panel.hpp"

namespace kvreplay {

/// c = a b for one panel: a [rows][depth] with rows `a_row` apart, b [depth][W], c [rows][W], W =
/// kPanelWidth<float>. The product that both passes are made of, for the benchmark that measures what the
/// machine can do.
void panel_gemm(Index rows, Index depth, const float* a, Index a_row, const float* b, float* c);

}  // namespace kvreplay
