#include "sim/eviction/kept_tiles.hpp"

// The order of these is Highway's.
// clang-format off
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "sim/eviction/kept_tiles_cpu.cpp"
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

/// The largest logit of every row among the columns and the sink, 0 where there is none: exp(-inf - 0) is 0.
template <class T>
HWY_INLINE void FiniteMaxima(const T* z, const Index* columns, Index n, T sink, T* maxima) {
  const hn::ScalableTag<T> d;
  constexpr Index W = kPanelWidth<T>;
  const Index N = static_cast<Index>(hn::Lanes(d));
  const auto hidden = hn::Set(d, kHidden<T>);
  for (Index r = 0; r < W; r += N) {
    auto m = hn::Set(d, sink);
    for (Index t = 0; t < n; ++t) m = hn::Max(m, hn::LoadU(d, z + columns[t] * W + r));
    hn::StoreU(hn::IfThenElseZero(hn::Gt(m, hidden), m), d, maxima + r);
  }
}

/// tile [tokens][W] := exp(z - maxima) of the columns; sums += its column sums.
template <class T>
HWY_INLINE void ExponentiateColumns(const T* z, const Index* columns, Index tokens, const T* maxima, T* tile,
                                    T* sums) {
  using D = hn::ScalableTag<T>;
  using P = Pack<D>;
  const PackOps<D> on{D()};
  constexpr Index W = kPanelWidth<T>;
  for (Index r = 0; r < W; r += 2 * on.N) {
    const P m = on.Load(maxima + r);
    P sum = on.Set(0);
    for (Index t = 0; t < tokens; ++t) {
      const P p = on.SoftmaxExp(on.Load(z + columns[t] * W + r) - m);
      sum += p;
      on.Store(p, tile + t * W + r);
    }
    on.Store(on.Load(sums + r) + sum, sums + r);
  }
}

template <class T>
HWY_NOINLINE void AttendColumns(const AttendedPanel<T>* panels, Index count, const Index* columns, Index n,
                                const T* v_centred, Index d_v, T* values) {
  const hn::ScalableTag<T> d;
  constexpr Index W = kPanelWidth<T>;
  const Index N = static_cast<Index>(hn::Lanes(d));
  HWY_ALIGN T tile[kTokensPassOne * W];
  HWY_ALIGN T maxima[kPanelsTogether][W], sums[kPanelsTogether][W], ones[W], scale[W];
  std::fill_n(ones, W, T{1});
  for (Index p = 0; p < count; ++p) {
    FiniteMaxima(panels[p].z, columns, n, panels[p].sink, maxima[p]);
    std::fill_n(sums[p], W, T{0});
    std::fill_n(panels[p].output->vectors.data(), d_v * W, T{0});
  }
  for (Index first = 0; first < n; first += kTokensPassOne) {
    const Index tokens = std::min(kTokensPassOne, n - first);
    for (Index t = 0; t < tokens; ++t)
      std::copy_n(v_centred + columns[first + t] * d_v, d_v, values + t * d_v);
    for (Index p = 0; p < count; ++p) {
      ExponentiateColumns(panels[p].z, columns + first, tokens, maxima[p], tile, sums[p]);
      PanelGemm<T>(d_v, values, 1, d_v, tokens, tile, ones, panels[p].output->vectors.data());
    }
  }
  for (Index p = 0; p < count; ++p) {
    const T sink = panels[p].sink;
    T* out = panels[p].output->vectors.data();
    auto& share = panels[p].output->share;
    for (Index r = 0; r < W; ++r) {
      const T in_sink = sink > kHidden<T> ? std::exp(sink - maxima[p][r]) : T{0};
      const T total = sums[p][r] + in_sink;
      scale[r] = total > 0 ? T{1} / total : T{0};
      share[r] = in_sink > 0 ? sums[p][r] * scale[r] : (sums[p][r] > 0 ? T{1} : T{0});
    }
    for (Index c = 0; c < d_v; ++c)
      for (Index r = 0; r < W; r += N) {
        const auto o = hn::Mul(hn::LoadU(d, out + c * W + r), hn::LoadU(d, scale + r));
        hn::StoreU(o, d, out + c * W + r);
      }
  }
}

template <class T>
HWY_NOINLINE void ProjectPanel(const T* wo, Index d_v, Index d_model, const T* x, T* out) {
  HWY_ALIGN T ones[kPanelWidth<T>];
  std::fill_n(ones, kPanelWidth<T>, T{1});
  PanelGemm<T>(d_model, wo, 1, d_model, d_v, x, ones, out);
}

KeptTilesSimd<float> KeptTilesSimdF32() { return {LogitPanel, GatheredLogits, AttendColumns, ProjectPanel}; }
KeptTilesSimd<double> KeptTilesSimdF64() { return {LogitPanel, GatheredLogits, AttendColumns, ProjectPanel}; }

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
