#include "sim/gram_sums.hpp"

#include <algorithm>

// The order of these is Highway's.
// clang-format off
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "sim/gram_simd.cpp"
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

/// block [MR][W] := A^T B, A being MR columns of a panel [rows][W] and B a whole one.
template <int MR, class T>
HWY_INLINE void BlockRows(const T* HWY_RESTRICT a, const T* HWY_RESTRICT b, Index rows,
                          T* HWY_RESTRICT block) {
  const hn::ScalableTag<T> d;
  const Index N = static_cast<Index>(hn::Lanes(d));
  constexpr Index W = kPanelWidth<T>;
  for (Index n = 0; n < W; n += 2 * N) {
    hn::Vec<decltype(d)> sum[MR][2];
#pragma GCC unroll 16
    for (int r = 0; r < MR; ++r) sum[r][0] = sum[r][1] = hn::Zero(d);
    for (Index k = 0; k < rows; ++k) {
      const auto b0 = hn::LoadU(d, b + k * W + n), b1 = hn::LoadU(d, b + k * W + n + N);
#pragma GCC unroll 16
      for (int r = 0; r < MR; ++r) {
        const auto x = hn::Set(d, a[k * W + r]);
        sum[r][0] = hn::MulAdd(x, b0, sum[r][0]);
        sum[r][1] = hn::MulAdd(x, b1, sum[r][1]);
      }
    }
#pragma GCC unroll 16
    for (int r = 0; r < MR; ++r) {
      hn::StoreU(sum[r][0], d, block + r * W + n);
      hn::StoreU(sum[r][1], d, block + r * W + n + N);
    }
  }
}

// Rows of a diagonal block worked on at once, against one vector: they divide W.
#if HWY_TARGET <= HWY_AVX3
inline constexpr int kRowsOnDiagonal = 16;
#else
inline constexpr int kRowsOnDiagonal = 8;
#endif

/// block [W][W]: X^T X of one panel, on and above the diagonal; what lies a vector or more below it is left
/// as it is.
template <class T>
HWY_INLINE void DiagonalBlock(const T* HWY_RESTRICT x, Index rows, T* HWY_RESTRICT block) {
  const hn::ScalableTag<T> d;
  const Index N = static_cast<Index>(hn::Lanes(d));
  constexpr Index W = kPanelWidth<T>;
  for (Index n = 0; n < W; n += N)
    for (Index m = 0; m < n + N; m += kRowsOnDiagonal) {
      hn::Vec<decltype(d)> sum[kRowsOnDiagonal];
#pragma GCC unroll 16
      for (int r = 0; r < kRowsOnDiagonal; ++r) sum[r] = hn::Zero(d);
      for (Index k = 0; k < rows; ++k) {
        const auto b = hn::LoadU(d, x + k * W + n);
#pragma GCC unroll 16
        for (int r = 0; r < kRowsOnDiagonal; ++r)
          sum[r] = hn::MulAdd(hn::Set(d, x[k * W + m + r]), b, sum[r]);
      }
#pragma GCC unroll 16
      for (int r = 0; r < kRowsOnDiagonal; ++r) hn::StoreU(sum[r], d, block + (m + r) * W + n);
    }
}

/// Blocks (0, j) to (j, j).
template <class T>
HWY_NOINLINE void AddGramColumn(const T* panels, Index rows, Index j, double* blocks) {
  constexpr Index W = kPanelWidth<T>;
  HWY_ALIGN T block[W * W], diagonal[W * W] = {};
  constexpr Index kRows = kRowsAtOnce, kLast = W % kRows;
  const T* b = panels + j * rows * W;
  for (Index i = 0; i < j; ++i) {
    const T* a = panels + i * rows * W;
    for (Index m = 0; m + kRows <= W; m += kRows) BlockRows<kRows>(a + m, b, rows, block + m * W);
    if constexpr (kLast > 0) BlockRows<kLast>(a + W - kLast, b, rows, block + (W - kLast) * W);
    AddTo(block, W * W, blocks + i * W * W);
  }
  DiagonalBlock(b, rows, diagonal);
  AddTo(diagonal, W * W, blocks + j * W * W);
}

template <class T>
void AddGram(const T* panels, Index rows, Index d, double* blocks) {
  for (Index j = 0; j < panels_of<T>(d); ++j) AddGramColumn(panels, rows, j, blocks + gram_block<T>(0, j));
}

void AddGramF32(const float* panels, Index rows, Index d, double* blocks) {
  AddGram(panels, rows, d, blocks);
}
void AddGramF64(const double* panels, Index rows, Index d, double* blocks) {
  AddGram(panels, rows, d, blocks);
}
void AddGramColumnF64(const double* panels, Index rows, Index j, double* blocks) {
  AddGramColumn(panels, rows, j, blocks);
}

}  // namespace kvreplay::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace kvreplay {

HWY_EXPORT(AddGramF32);
HWY_EXPORT(AddGramF64);
HWY_EXPORT(AddGramColumnF64);
void add_gram(const float* panels, Index rows, Index d, double* blocks) {
  HWY_DYNAMIC_DISPATCH(AddGramF32)(panels, rows, d, blocks);
}
void add_gram(const double* panels, Index rows, Index d, double* blocks) {
  HWY_DYNAMIC_DISPATCH(AddGramF64)(panels, rows, d, blocks);
}
void add_gram_column(const double* panels, Index rows, Index j, double* blocks) {
  HWY_DYNAMIC_DISPATCH(AddGramColumnF64)(panels, rows, j, blocks);
}

}  // namespace kvreplay
#endif
