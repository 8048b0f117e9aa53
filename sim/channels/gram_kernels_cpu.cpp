#include "sim/channels/gram_kernels.hpp"

// The order of these is Highway's.
// clang-format off
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "sim/channels/gram_kernels_cpu.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>
#include "sim/simd/panel_gemm-inl.hpp"
// clang-format on

HWY_BEFORE_NAMESPACE();
namespace kvreplay::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

HWY_INLINE void AddTo(const float* HWY_RESTRICT x, Index n, double* HWY_RESTRICT sums) {
  const hn::ScalableTag<double> d;
  const hn::Rebind<float, decltype(d)> half;
  for (Index at = 0; at < n; at += static_cast<Index>(hn::Lanes(d)))
    hn::StoreU(hn::Add(hn::LoadU(d, sums + at), hn::PromoteTo(d, hn::LoadU(half, x + at))), d, sums + at);
}
HWY_INLINE void AddTo(const double* HWY_RESTRICT x, Index n, double* HWY_RESTRICT sums) {
  const hn::ScalableTag<double> d;
  for (Index at = 0; at < n; at += static_cast<Index>(hn::Lanes(d)))
    hn::StoreU(hn::Add(hn::LoadU(d, sums + at), hn::LoadU(d, x + at)), d, sums + at);
}

template <class T>
HWY_NOINLINE void AddGram(const T* panels, Index rows, Index d, double* blocks) {
  constexpr Index W = kPanelWidth<T>;
  HWY_ALIGN T block[W * W];
  for (Index j = 0; j < panels_of<T>(d); ++j)
    for (Index i = 0; i <= j; ++i) {
      PanelGemm<T>(W, panels + i * rows * W, 1, W, rows, panels + j * rows * W, nullptr, block);
      AddTo(block, W * W, blocks + gram_block<T>(i, j));
    }
}

void AddGramF32(const float* panels, Index rows, Index d, double* blocks) {
  AddGram(panels, rows, d, blocks);
}
void AddGramF64(const double* panels, Index rows, Index d, double* blocks) {
  AddGram(panels, rows, d, blocks);
}

}  // namespace kvreplay::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace kvreplay {

HWY_EXPORT(AddGramF32);
HWY_EXPORT(AddGramF64);

template <>
void add_gram(const float* panels, Index rows, Index d, double* blocks) {
  HWY_DYNAMIC_DISPATCH(AddGramF32)(panels, rows, d, blocks);
}
template <>
void add_gram(const double* panels, Index rows, Index d, double* blocks) {
  HWY_DYNAMIC_DISPATCH(AddGramF64)(panels, rows, d, blocks);
}

}  // namespace kvreplay
#endif
