#include "sim/eviction/decode/decode_rows.hpp"

// The order of these is Highway's.
// clang-format off
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "sim/eviction/decode/decode_rows_cpu.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>
#include <hwy/contrib/math/math-inl.h>
#include "sim/simd/panel_gemm-inl.hpp"
// clang-format on

#include <algorithm>
#include <limits>

HWY_BEFORE_NAMESPACE();
namespace kvreplay::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

template <class T>
HWY_NOINLINE void TokenDots(const T* x, Index tiles, Index width, const T* vectors, Index m, T* out) {
  constexpr Index W = kPanelWidth<T>;
  for (Index tile = 0; tile < tiles; ++tile)
    PanelGemm<T>(m, vectors, width, 1, width, x + tile * width * W, nullptr, out + tile * m * W);
}

template <class T>
HWY_NOINLINE void WeightedTokens(const T* x, Index stride, Index tokens, Index panels, const T* weights,
                                 Index m, T* sums) {
  constexpr Index W = kPanelWidth<T>;
  constexpr Index kChunk = 128;  // of a panel: 16 KiB, read again for every few rows; sums of sums round less
  HWY_ALIGN T ones[W];
  std::fill_n(ones, W, T{1});
  for (Index panel = 0; panel < panels; ++panel) {
    T* sum = sums + panel * m * W;
    std::fill_n(sum, m * W, T{0});
    for (Index p = 0; p < tokens; p += kChunk)
      PanelGemm<T>(m, weights + p, stride, 1, std::min(kChunk, tokens - p), x + (panel * stride + p) * W,
                   ones, sum);
  }
}

/// Where the results of one block of vectors go, `stride` apart.
template <class T>
struct DifferenceSums {
  T *square, *product;
  Index stride;
};

template <int MR, DifferenceProduct kProduct, class T>
HWY_INLINE void DifferenceBlock(const T* HWY_RESTRICT tile, Index width, const T* HWY_RESTRICT base,
                                const DifferenceSums<T>& out) {
  const hn::ScalableTag<T> d;
  using V = hn::Vec<decltype(d)>;
  constexpr Index W = kPanelWidth<T>;
  const Index N = static_cast<Index>(hn::Lanes(d));
  for (Index n = 0; n < W; n += 2 * N) {
    V square[MR][2], product[MR][2];
#pragma GCC unroll 4
    for (int r = 0; r < MR; ++r) square[r][0] = square[r][1] = product[r][0] = product[r][1] = hn::Zero(d);
    for (Index c = 0; c < width; ++c) {
      const V x0 = hn::LoadU(d, tile + c * W + n), x1 = hn::LoadU(d, tile + c * W + n + N);
#pragma GCC unroll 4
      for (int r = 0; r < MR; ++r) {
        const V b = hn::Set(d, base[r * width + c]);
        const V diff0 = hn::Sub(x0, b), diff1 = hn::Sub(x1, b);
        square[r][0] = hn::MulAdd(diff0, diff0, square[r][0]);
        square[r][1] = hn::MulAdd(diff1, diff1, square[r][1]);
        if constexpr (kProduct == DifferenceProduct::with_token) {
          product[r][0] = hn::MulAdd(x0, diff0, product[r][0]);
          product[r][1] = hn::MulAdd(x1, diff1, product[r][1]);
        }
        if constexpr (kProduct == DifferenceProduct::with_base) {
          product[r][0] = hn::MulAdd(b, diff0, product[r][0]);
          product[r][1] = hn::MulAdd(b, diff1, product[r][1]);
        }
      }
    }
#pragma GCC unroll 4
    for (int r = 0; r < MR; ++r) {
      hn::StoreU(square[r][0], d, out.square + r * out.stride + n);
      hn::StoreU(square[r][1], d, out.square + r * out.stride + n + N);
      if constexpr (kProduct != DifferenceProduct::none) {
        hn::StoreU(product[r][0], d, out.product + r * out.stride + n);
        hn::StoreU(product[r][1], d, out.product + r * out.stride + n + N);
      }
    }
  }
}

template <DifferenceProduct kProduct, class T>
HWY_NOINLINE void Differences(const T* x, Index tiles, Index width, const T* base, Index m,
                              const DifferenceSums<T>& out) {
  constexpr Index W = kPanelWidth<T>;
  constexpr Index kAtOnce = HWY_TARGET <= HWY_AVX3 ? 4 : 2;  // 4 sums each have to fit the registers
  for (Index tile = 0; tile < tiles; ++tile) {
    const T* at = x + tile * width * W;
    const auto into = [&](Index r) HWY_ATTR {
      const Index to = r * out.stride + tile * W;
      return DifferenceSums<T>{out.square + to,
                               kProduct == DifferenceProduct::none ? nullptr : out.product + to, out.stride};
    };
    Index r = 0;
    for (; r + kAtOnce <= m; r += kAtOnce)
      DifferenceBlock<kAtOnce, kProduct>(at, width, base + r * width, into(r));
    for (; r < m; ++r) DifferenceBlock<1, kProduct>(at, width, base + r * width, into(r));
  }
}

template <class T>
HWY_NOINLINE void TokenDifferences(const T* x, Index tiles, Index width, const T* base, Index m, Index stride,
                                   T* square, DifferenceProduct which, T* product) {
  const DifferenceSums<T> out{square, product, stride};
  if (which == DifferenceProduct::none) Differences<DifferenceProduct::none>(x, tiles, width, base, m, out);
  if (which == DifferenceProduct::with_token)
    Differences<DifferenceProduct::with_token>(x, tiles, width, base, m, out);
  if (which == DifferenceProduct::with_base)
    Differences<DifferenceProduct::with_base>(x, tiles, width, base, m, out);
}

HWY_INLINE double ExpAndSum(double* e, Index n, double shift) {
  const hn::ScalableTag<double> d;
  const Index N = static_cast<Index>(hn::Lanes(d));
  const auto hidden = hn::Set(d, -std::numeric_limits<double>::infinity()), by = hn::Set(d, shift);
  auto sum = hn::Zero(d);
  for (Index p = 0; p < n; p += N) {
    const auto z = hn::LoadU(d, e + p);
    const auto weight = hn::IfThenElseZero(hn::Gt(z, hidden), hn::Exp(d, hn::Sub(z, by)));
    sum = hn::Add(sum, weight);
    hn::StoreU(weight, d, e + p);
  }
  return hn::GetLane(hn::SumOfLanes(d, sum));
}

HWY_INLINE void CapLogits(double* z, Index n, double cap, double* slope) {
  const hn::ScalableTag<double> d;
  const Index N = static_cast<Index>(hn::Lanes(d));
  const auto c = hn::Set(d, cap);
  for (Index p = 0; p < n; p += N) {
    const auto tanh = hn::Tanh(d, hn::Div(hn::LoadU(d, z + p), c));
    hn::StoreU(hn::NegMulAdd(tanh, tanh, hn::Set(d, 1.0)), d, slope + p);
    hn::StoreU(hn::Mul(c, tanh), d, z + p);
  }
}

DecodeRowsSimd<float> DecodeRowsSimdF32() { return {TokenDots, WeightedTokens, TokenDifferences}; }
DecodeRowsSimd<double> DecodeRowsSimdF64() { return {TokenDots, WeightedTokens, TokenDifferences}; }
double ExpAndSumF64(double* e, Index n, double shift) { return ExpAndSum(e, n, shift); }
void CapLogitsF64(double* z, Index n, double cap, double* slope) { CapLogits(z, n, cap, slope); }

}  // namespace kvreplay::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace kvreplay {

HWY_EXPORT(DecodeRowsSimdF32);
HWY_EXPORT(DecodeRowsSimdF64);
template <>
DecodeRowsSimd<float> decode_rows_simd() {
  return HWY_DYNAMIC_DISPATCH(DecodeRowsSimdF32)();
}
template <>
DecodeRowsSimd<double> decode_rows_simd() {
  return HWY_DYNAMIC_DISPATCH(DecodeRowsSimdF64)();
}

HWY_EXPORT(ExpAndSumF64);
double exp_and_sum(double* e, Index n, double shift) {
  return HWY_DYNAMIC_DISPATCH(ExpAndSumF64)(e, n, shift);
}
HWY_EXPORT(CapLogitsF64);
void cap_logits(double* z, Index n, double cap, double* slope) {
  HWY_DYNAMIC_DISPATCH(CapLogitsF64)(z, n, cap, slope);
}

}  // namespace kvreplay
#endif
