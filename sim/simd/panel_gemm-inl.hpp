// Included once per target by Highway's foreach_target; see https://google.github.io/highway.
#if defined(KVREPLAY_SIMD_PANEL_GEMM_INL_HPP) == defined(HWY_TARGET_TOGGLE)
#ifdef KVREPLAY_SIMD_PANEL_GEMM_INL_HPP
#undef KVREPLAY_SIMD_PANEL_GEMM_INL_HPP
#else
#define KVREPLAY_SIMD_PANEL_GEMM_INL_HPP
#endif

#include "sim/simd/panel.hpp"

#include <hwy/cache_control.h>
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace kvreplay::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// Rows of A worked on at once, against two vectors of a panel: 2 * kRowsAtOnce sums have to fit the registers
// beside two vectors of B and one of A, and there must be enough of them to hide the latency of a
// multiply-add.
#if HWY_TARGET <= HWY_AVX3 || HWY_TARGET == HWY_NEON
inline constexpr int kRowsAtOnce = 12;
#else
inline constexpr int kRowsAtOnce = 6;
#endif

/// One block of MR rows and two vectors: C = C * alpha + A B, or A B where alpha is null.
/// A(m, k) = a[m * a_row + k * a_col]; B(k, n) = b[k * W + n]; C(m, n) = c[m * W + n]; alpha [W], per column.
template <int MR, class T>
HWY_INLINE void PanelGemmBlock(const T* HWY_RESTRICT a, Index a_row, Index a_col, Index depth,
                               const T* HWY_RESTRICT b, const T* HWY_RESTRICT alpha, T* HWY_RESTRICT c) {
  const hn::ScalableTag<T> d;
  using V = hn::Vec<decltype(d)>;
  constexpr Index W = kPanelWidth<T>;
  const Index N = static_cast<Index>(hn::Lanes(d));
  V sum[MR][2];
#pragma GCC unroll 16
  for (int m = 0; m < MR; ++m) sum[m][0] = sum[m][1] = hn::Zero(d);
  constexpr Index kLine = 64 / static_cast<Index>(sizeof(T));
  for (Index k = 0; k < depth;) {
    const Index end = k + kLine < depth ? k + kLine : depth;
    // Rows of A are streams that the processor does not see coming: the next block's are asked for.
    if (a_col == 1) {
#pragma GCC unroll 16
      for (int m = 0; m < MR; ++m) hwy::Prefetch(a + (m + MR) * a_row + k);
    }
    for (; k < end; ++k) {
      const V b0 = hn::LoadU(d, b + k * W), b1 = hn::LoadU(d, b + k * W + N);
#pragma GCC unroll 16
      for (int m = 0; m < MR; ++m) {
        const V x = hn::Set(d, a[m * a_row + k * a_col]);
        sum[m][0] = hn::MulAdd(x, b0, sum[m][0]);
        sum[m][1] = hn::MulAdd(x, b1, sum[m][1]);
      }
    }
  }
#pragma GCC unroll 16
  for (int m = 0; m < MR; ++m) {
    if (alpha != nullptr) {
      sum[m][0] = hn::MulAdd(hn::LoadU(d, c + m * W), hn::LoadU(d, alpha), sum[m][0]);
      sum[m][1] = hn::MulAdd(hn::LoadU(d, c + m * W + N), hn::LoadU(d, alpha + N), sum[m][1]);
    }
    hn::StoreU(sum[m][0], d, c + m * W);
    hn::StoreU(sum[m][1], d, c + m * W + N);
  }
}

template <int MR, class T>
HWY_INLINE void PanelGemmTail(int rows, const T* HWY_RESTRICT a, Index a_row, Index a_col, Index depth,
                              const T* HWY_RESTRICT b, const T* HWY_RESTRICT alpha, T* HWY_RESTRICT c) {
  if constexpr (MR > 0) {
    if (rows == MR)
      PanelGemmBlock<MR>(a, a_row, a_col, depth, b, alpha, c);
    else
      PanelGemmTail<MR - 1>(rows, a, a_row, a_col, depth, b, alpha, c);
  }
}

/// The product for any number of rows and the whole panel.
template <class T>
HWY_NOINLINE void PanelGemm(Index rows, const T* HWY_RESTRICT a, Index a_row, Index a_col, Index depth,
                            const T* HWY_RESTRICT b, const T* HWY_RESTRICT alpha, T* HWY_RESTRICT c) {
  const Index N = static_cast<Index>(hn::Lanes(hn::ScalableTag<T>()));
  constexpr Index W = kPanelWidth<T>;
  for (Index m = 0; m < rows; m += kRowsAtOnce) {
    const Index left = rows - m;
    for (Index n = 0; n < W; n += 2 * N) {
      const T* a_m = a + m * a_row;
      const T* alpha_n = alpha == nullptr ? nullptr : alpha + n;
      T* c_mn = c + m * W + n;
      if (left >= kRowsAtOnce)
        PanelGemmBlock<kRowsAtOnce>(a_m, a_row, a_col, depth, b + n, alpha_n, c_mn);
      else
        PanelGemmTail<kRowsAtOnce - 1>(static_cast<int>(left), a_m, a_row, a_col, depth, b + n, alpha_n,
                                       c_mn);
    }
  }
}

}  // namespace kvreplay::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif
