#include "sim/channels/output_interaction.hpp"

#include <algorithm>
#include <limits>

// The order of these is Highway's.
// clang-format off
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "sim/channels/output_interaction_simd.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>
#include "sim/simd/pack-inl.hpp"
// clang-format on

HWY_BEFORE_NAMESPACE();
namespace kvreplay::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

inline constexpr Index kColumnsPerSum =
    256;  // what a plain sum in T runs over before it is added to the rest

/// z := cap tanh(z / cap), and dz/dz_raw = 1 / cosh^2(z_raw / cap), which near the cap z no longer tells.
template <class T>
HWY_NOINLINE void CapPanel(T cap, Index n, T* HWY_RESTRICT z, T* HWY_RESTRICT slope) {
  using D = hn::ScalableTag<T>;
  using P = Pack<D>;
  const PackOps<D> on{D()};
  const P c = on.Set(cap), one = on.Set(1), hidden = on.Set(-std::numeric_limits<T>::infinity());
  for (Index at = 0; at < n * kPanelWidth<T>; at += 2 * on.N) {
    const P raw = on.Load(z + at), x = raw / c;
    const P e = on.SoftmaxExp(on.Set(-2) * on.Abs(x)), sum = one + e;
    on.Store(on.Set(4) * e / (sum * sum), slope + at);
    on.Store(on.IfThenElse(raw > hidden, c * on.Tanh(x), raw), z + at);
  }
}

/// Two vectors of rows.
template <class T>
HWY_INLINE void WeighRows(const T* z, Index n, T softcap, T sink, const std::uint8_t* prunable, Index row,
                          PanelWeights<T>& out) {
  using D = hn::ScalableTag<T>;
  using P = Pack<D>;
  const PackOps<D> on{D()};
  constexpr Index W = kPanelWidth<T>;
  const P zero = on.Set(0), one = on.Set(1), none = on.Set(-1);
  P top = on.Set(sink), at = none;
  for (Index t = 0; t < n; ++t) {
    const P x = on.Load(z + t * W + row);
    at = on.IfThenElse(x > top, on.Set(static_cast<T>(t)), at);
    top = on.Max(top, x);
  }
  const auto live = top > on.Set(-std::numeric_limits<T>::infinity());
  const auto in_column = at > none;
  top = on.IfThenElseZero(live, top);
  const P sink_exp = on.IfThenElseZero(in_column, on.SoftmaxExp(on.Set(sink) - top));
  P others = sink_exp;
  for (Index first = 0; first < n; first += kColumnsPerSum) {
    P sum = zero;
    for (Index t = first; t < std::min(first + kColumnsPerSum, n); ++t) {
      const P e = on.SoftmaxExp(on.Load(z + t * W + row) - top);
      const P from_top = on.Abs(at - on.Set(static_cast<T>(t)));
      sum += on.IfThenElseZero(from_top > zero, e);
    }
    others += sum;
  }
  const P per_sum = on.IfThenElseZero(live, one / (one + others));

  const P per_cap = on.Set(softcap > 0 ? T{1} / softcap : T{0});
  P changed_sum = zero, rest_sum = sink_exp * per_sum;
  P top_changed = zero, top_rest = on.IfThenElse(in_column, zero, per_sum);
  on.Store(rest_sum, out.sink + row);
  for (Index first = 0; first < n; first += kColumnsPerSum) {
    P changed_part = zero, rest_part = zero;
    for (Index t = first; t < std::min(first + kColumnsPerSum, n); ++t) {
      const Index entry = t * W + row;
      const P x = on.Load(z + entry), a = on.SoftmaxExp(x - top) * per_sum;
      P changed = zero, rest = a;
      if (prunable[t] != 0) {
        const P of_cap = x * per_cap;
        changed = softcap > 0 ? a * on.Load(out.changed + entry) : a;
        // 1 - dz/dz_raw = (z / cap)^2; hidden columns have z = -inf and a = 0
        rest = softcap > 0 ? on.IfThenElseZero(a > zero, a * (of_cap * of_cap)) : zero;
      }
      const auto other = on.Abs(at - on.Set(static_cast<T>(t))) > zero;
      top_changed = on.IfThenElse(other, top_changed, changed);
      top_rest = on.IfThenElse(other, top_rest, rest);
      changed = on.IfThenElseZero(other, changed);
      rest = on.IfThenElseZero(other, rest);
      on.Store(changed, out.changed + entry);
      on.Store(rest, out.rest + entry);
      changed_part += changed;
      rest_part += rest;
    }
    changed_sum += changed_part;
    rest_sum += rest_part;
  }
  on.Store(at, out.top_at + row);
  on.Store(top_changed, out.top_changed + row);
  on.Store(top_rest, out.top_rest + row);
  on.Store(changed_sum, out.changed_sum + row);
  on.Store(rest_sum, out.rest_sum + row);
}

template <class T>
HWY_NOINLINE void WeighPanel(T* z, Index n, T softcap, T sink, const std::uint8_t* prunable,
                             PanelWeights<T>& out) {
  if (softcap > 0) CapPanel(softcap, n, z, out.changed);
  const Index rows = 2 * static_cast<Index>(hn::Lanes(hn::ScalableTag<T>()));
  for (Index row = 0; row < kPanelWidth<T>; row += rows) WeighRows(z, n, softcap, sink, prunable, row, out);
}

template <class T>
HWY_NOINLINE void WeightedDeviations(const T* HWY_RESTRICT v, Index d_v, const Index* HWY_RESTRICT rows,
                                     const T* HWY_RESTRICT weights, Index n, const T* HWY_RESTRICT origin,
                                     const T* HWY_RESTRICT mean, T* HWY_RESTRICT out) {
  const hn::ScalableTag<T> d;
  const Index N = static_cast<Index>(hn::Lanes(d));
  for (Index t = 0; t < n; ++t) {
    const T* HWY_RESTRICT from = v + rows[t] * d_v;
    T* HWY_RESTRICT to = out + t * d_v;
    const auto weight = hn::Set(d, weights[t]);
    Index c = 0;
    for (; c + N <= d_v; c += N) {
      const auto u = hn::Sub(hn::LoadU(d, from + c), hn::LoadU(d, origin + c));
      hn::StoreU(hn::Mul(weight, hn::Sub(u, hn::LoadU(d, mean + c))), d, to + c);
    }
    for (; c < d_v; ++c) to[c] = weights[t] * ((from[c] - origin[c]) - mean[c]);
  }
}

OutputInteractionSimd<float> OutputInteractionSimdF32() { return {WeighPanel, WeightedDeviations}; }
OutputInteractionSimd<double> OutputInteractionSimdF64() { return {WeighPanel, WeightedDeviations}; }

}  // namespace kvreplay::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace kvreplay {

HWY_EXPORT(OutputInteractionSimdF32);
HWY_EXPORT(OutputInteractionSimdF64);
template <>
OutputInteractionSimd<float> output_interaction_simd() {
  return HWY_DYNAMIC_DISPATCH(OutputInteractionSimdF32)();
}
template <>
OutputInteractionSimd<double> output_interaction_simd() {
  return HWY_DYNAMIC_DISPATCH(OutputInteractionSimdF64)();
}

}  // namespace kvreplay
#endif
