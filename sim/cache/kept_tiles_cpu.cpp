#include "sim/cache/kept_tiles.hpp"

// The order of these is Highway's.
// clang-format off
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "sim/cache/kept_tiles_cpu.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>
#include "sim/tokens/softmax_tiles-inl.hpp"
// clang-format on

HWY_BEFORE_NAMESPACE();
namespace kvreplay::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

template <class T>
HWY_INLINE bool AllFinite(const T* tile, Index tokens) {
  const hn::ScalableTag<T> d;
  const auto zero = hn::Zero(d);
  auto sum = zero;  // infinity and NaN times 0 are NaN
  for (Index at = 0; at < tokens * kPanelWidth<T>; at += static_cast<Index>(hn::Lanes(d)))
    sum = hn::MulAdd(hn::LoadU(d, tile + at), zero, sum);
  return hn::AllTrue(d, hn::Eq(sum, zero));
}

template <class T>
HWY_NOINLINE bool LogitPanel(const TileInput<T>& in, Index panel, Index begin, Index end, T* z) {
  constexpr Index W = kPanelWidth<T>;
  bool finite = true;
  for (Index first = begin; first < end; first += kTokensPassOne) {
    const Index tokens = std::min(kTokensPassOne, end - first);
    T* tile = z + (first - begin) * W;
    PanelGemm<T>(tokens, in.k + first * in.d, in.d, 1, in.d, in.q_panels + panel * in.d * W, nullptr, tile);
    if (in.softcap > 0) CapLogits(in.softcap, tokens, tile);
    finite = AllFinite(tile, tokens) && finite;
    HideInvisible(in, panel, first, tokens, tile);
  }
  return finite;
}

template <class T>
HWY_NOINLINE bool GatheredLogits(const TileInput<T>& in, Index panel, const Index* positions, Index n,
                                 const T* keys, const T* q, Index depth, T* z) {
  constexpr Index W = kPanelWidth<T>;
  const Index all_from = in.first_visible(in.panel_last(panel));
  const Index all_to = in.end_visible(in.panel_first(panel));
  bool finite = true;
  for (Index first = 0; first < n; first += kTokensPassOne) {
    const Index tokens = std::min(kTokensPassOne, n - first);
    T* tile = z + first * W;
    PanelGemm<T>(tokens, keys + first * depth, depth, 1, depth, q, nullptr, tile);
    if (in.softcap > 0) CapLogits(in.softcap, tokens, tile);
    finite = AllFinite(tile, tokens) && finite;
    for (Index t = 0; t < tokens; ++t) {
      const Index p = positions[first + t];
      if (p < all_from || p >= all_to) HideInvisible(in, panel, p, 1, tile + t * W);
    }
  }
  return finite;
}

/// Takes the columns' logits into the largest ones; finite: those, 0 where a row has none yet, and scale:
/// what sums before shrink by. exp(-inf - 0) is 0.
template <class T>
HWY_INLINE void FindLargest(const T* z, const Index* columns, Index n, AttendedPanel<T>& panel, T* finite,
                            T* scale) {
  using D = hn::ScalableTag<T>;
  using P = Pack<D>;
  const PackOps<D> on{D()};
  for (Index r = 0; r < kPanelWidth<T>; r += 2 * on.N) {
    const P before = on.Load(panel.largest.data() + r);
    P largest = before;
    for (Index t = 0; t < n; ++t) largest = on.Max(largest, on.Load(z + columns[t] * kPanelWidth<T> + r));
    const P m = on.IfThenElseZero(largest > on.Set(kHidden<T>), largest);
    on.Store(largest, panel.largest.data() + r);
    on.Store(m, finite + r);
    on.Store(on.SoftmaxExp(before - m), scale + r);
  }
}

/// tile [n][W] := exp(z - finite) of the columns; sums := sums * scale + its column sums.
template <class T>
HWY_INLINE void ExponentiateColumns(const T* z, const Index* columns, Index n, const T* finite,
                                    const T* scale, T* tile, T* sums) {
  using D = hn::ScalableTag<T>;
  using P = Pack<D>;
  const PackOps<D> on{D()};
  constexpr Index W = kPanelWidth<T>;
  for (Index r = 0; r < W; r += 2 * on.N) {
    const P m = on.Load(finite + r);
    P sum = on.Set(0);
    for (Index t = 0; t < n; ++t) {
      const P p = on.SoftmaxExp(on.Load(z + columns[t] * W + r) - m);
      sum += p;
      on.Store(p, tile + t * W + r);
    }
    on.Store(on.MulAdd(on.Load(sums + r), on.Load(scale + r), sum), sums + r);
  }
}

template <class T>
HWY_NOINLINE void AttendTile(const T* z, const Index* columns, Index n, const T* values, Index d_v,
                             AttendedPanel<T>& panel) {
  constexpr Index W = kPanelWidth<T>;
  HWY_ALIGN T tile[kTokensPassOne * W];
  HWY_ALIGN T finite[W], scale[W];
  FindLargest(z, columns, n, panel, finite, scale);
  ExponentiateColumns(z, columns, n, finite, scale, tile, panel.sums.data());
  PanelGemm<T>(d_v, values, 1, d_v, n, tile, scale, panel.output->vectors.data());
}

template <class T>
HWY_NOINLINE double OutputChange(const AttendedOutput<T>& output, const AttendedOutput<T>* before,
                                 const T* HWY_RESTRICT centre, Index rows, T* HWY_RESTRICT change) {
  constexpr Index W = kPanelWidth<T>;
  const hn::ScalableTag<double> wide;
  const hn::Rebind<T, decltype(wide)> d;
  const Index N = static_cast<Index>(hn::Lanes(d)), d_v = static_cast<Index>(output.vectors.size()) / W;
  auto sum = hn::Zero(wide);
  for (Index r = 0; r < W; r += N) {
    const auto there = hn::FirstN(d, static_cast<std::size_t>(std::max<Index>(rows - r, 0)));
    auto share = hn::LoadU(d, output.share.data() + r);
    if (before != nullptr) share = hn::Sub(share, hn::LoadU(d, before->share.data() + r));
    for (Index c = 0; c < d_v; ++c) {
      auto x = hn::LoadU(d, output.vectors.data() + c * W + r);
      if (before != nullptr) x = hn::Sub(x, hn::LoadU(d, before->vectors.data() + c * W + r));
      x = hn::IfThenElseZero(there, hn::MulAdd(share, hn::Set(d, centre[c]), x));
      if (change != nullptr) hn::StoreU(x, d, change + c * W + r);
      if constexpr (sizeof(T) == 4) {
        const auto y = hn::PromoteTo(wide, x);
        sum = hn::MulAdd(y, y, sum);
      } else {
        sum = hn::MulAdd(x, x, sum);
      }
    }
  }
  return hn::GetLane(hn::SumOfLanes(wide, sum));
}

template <class T>
HWY_NOINLINE void ProjectPanel(const T* wo, Index d_v, Index d_model, const T* x, T* out) {
  HWY_ALIGN T ones[kPanelWidth<T>];
  std::fill_n(ones, kPanelWidth<T>, T{1});
  PanelGemm<T>(d_model, wo, 1, d_model, d_v, x, ones, out);
}

KeptTilesSimd<float> KeptTilesSimdF32() {
  return {LogitPanel, GatheredLogits, AttendTile, OutputChange, ProjectPanel};
}
KeptTilesSimd<double> KeptTilesSimdF64() {
  return {LogitPanel, GatheredLogits, AttendTile, OutputChange, ProjectPanel};
}

}  // namespace kvreplay::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace kvreplay {

HWY_EXPORT(KeptTilesSimdF32);
HWY_EXPORT(KeptTilesSimdF64);
template <>
KeptTilesSimd<float> kept_tiles_simd() {
  return HWY_DYNAMIC_DISPATCH(KeptTilesSimdF32)();
}
template <>
KeptTilesSimd<double> kept_tiles_simd() {
  return HWY_DYNAMIC_DISPATCH(KeptTilesSimdF64)();
}

}  // namespace kvreplay
#endif
