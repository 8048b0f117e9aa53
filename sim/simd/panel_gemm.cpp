#include "sim/simd/panel_gemm.hpp"

// The order of these is Highway's.
// clang-format off
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "sim/simd/panel_gemm.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>
#include "sim/simd/panel_gemm-inl.hpp"
// clang-format on

HWY_BEFORE_NAMESPACE();
namespace kvreplay::HWY_NAMESPACE {

void PanelGemmF32(Index rows, Index depth, const float* a, Index a_row, const float* b, float* c) {
  PanelGemm<float>(rows, a, a_row, 1, depth, b, nullptr, c);
}
void PanelGemmF64(Index rows, Index depth, const double* a, Index a_row, const double* b, double* c) {
  PanelGemm<double>(rows, a, a_row, 1, depth, b, nullptr, c);
}
void PanelGemmTransposedF64(Index rows, Index depth, const double* a, Index a_row, const double* b,
                            double* c) {
  PanelGemm<double>(rows, a, 1, a_row, depth, b, nullptr, c);
}

}  // namespace kvreplay::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace kvreplay {

HWY_EXPORT(PanelGemmF32);
HWY_EXPORT(PanelGemmF64);
HWY_EXPORT(PanelGemmTransposedF64);

void panel_gemm(Index rows, Index depth, const float* a, Index a_row, const float* b, float* c) {
  HWY_DYNAMIC_DISPATCH(PanelGemmF32)(rows, depth, a, a_row, b, c);
}
void panel_gemm(Index rows, Index depth, const double* a, Index a_row, const double* b, double* c) {
  HWY_DYNAMIC_DISPATCH(PanelGemmF64)(rows, depth, a, a_row, b, c);
}

void panel_gemm_transposed(Index rows, Index depth, const double* a, Index a_row, const double* b,
                           double* c) {
  HWY_DYNAMIC_DISPATCH(PanelGemmTransposedF64)(rows, depth, a, a_row, b, c);
}

}  // namespace kvreplay
#endif
