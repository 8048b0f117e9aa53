// Included once per target by Highway's foreach_target; see https://google.github.io/highway.
#if defined(KVREPLAY_SOFTMAX_TILES_INL_HPP) == defined(HWY_TARGET_TOGGLE)
#ifdef KVREPLAY_SOFTMAX_TILES_INL_HPP
#undef KVREPLAY_SOFTMAX_TILES_INL_HPP
#else
#define KVREPLAY_SOFTMAX_TILES_INL_HPP
#endif

#include "sim/simd/pack-inl.hpp"
#include "sim/simd/panel_gemm-inl.hpp"
#include "sim/tokens/tiles.hpp"

#include <hwy/highway.h>

#include <algorithm>
#include <limits>

HWY_BEFORE_NAMESPACE();
namespace kvreplay::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

template <class T>
inline constexpr T kHidden = -std::numeric_limits<T>::infinity();

/// z := cap tanh(z / cap) over a tile.
template <class T>
HWY_NOINLINE void CapLogits(T cap, Index tokens, T* z) {
  const hn::ScalableTag<T> d;
  const Index N = static_cast<Index>(hn::Lanes(d));
  const auto c = hn::Set(d, cap);
  for (Index at = 0; at < tokens * kPanelWidth<T>; at += N)
    hn::StoreU(hn::Mul(c, hn::Tanh(d, hn::Div(hn::LoadU(d, z + at), c))), d, z + at);
}

/// Hides what the rows of a panel do not see. tile[t][W] holds the tokens from `begin` on. Tiles seen whole
/// are left alone.
template <class T>
HWY_INLINE void HideInvisible(const TileInput<T>& in, Index panel, Index begin, Index tokens, T* tile) {
  constexpr Index W = kPanelWidth<T>;
  const Index first = in.panel_first(panel), last = in.panel_last(panel);
  if (begin >= in.first_visible(last) && begin + tokens <= in.end_visible(first)) return;
  for (Index t = 0; t < tokens; ++t) {
    // Visible to the rows [lo, hi) of the panel: a window sees p up to row p + window - 1, and a two-sided
    // one from row p - window + 1 on.
    const Index p = begin + t;
    const Index window_begin = in.position_of(p) - in.sliding_window + 1;
    const Index lo = in.causal      ? in.rows_before(p - first)
                     : in.two_sided ? in.rows_before(window_begin - in.position_of(first))
                                    : 0;
    const Index window_end = in.position_of(p) + in.sliding_window;
    const Index hi = in.sliding_window > 0 ? in.rows_before(window_end - in.position_of(first)) : W;
    std::fill(tile + t * W, tile + t * W + std::min(lo, hi), kHidden<T>);
    std::fill(tile + t * W + hi, tile + (t + 1) * W, kHidden<T>);
    if (lo > hi) std::fill(tile + t * W, tile + (t + 1) * W, kHidden<T>);
  }
}

/// The largest and second largest logit of every column of a tile, and where the largest is.
template <class T>
struct TopTwo {
  HWY_ALIGN T first[kPanelWidth<T>];
  HWY_ALIGN T second[kPanelWidth<T>];
  HWY_ALIGN T at[kPanelWidth<T>];
};

template <class T>
HWY_INLINE void FindTopTwo(const T* tile, Index begin, Index tokens, TopTwo<T>& top) {
  const hn::ScalableTag<T> d;
  constexpr Index W = kPanelWidth<T>;
  const Index N = static_cast<Index>(hn::Lanes(d));
  for (Index n = 0; n < W; n += 2 * N) {
    auto first0 = hn::Set(d, kHidden<T>), first1 = first0, second0 = first0, second1 = first0;
    auto at0 = hn::Zero(d), at1 = at0;
    for (Index t = 0; t < tokens; ++t) {
      const auto p = hn::Set(d, static_cast<T>(begin + t));
      const auto x0 = hn::LoadU(d, tile + t * W + n), x1 = hn::LoadU(d, tile + t * W + n + N);
      at0 = hn::IfThenElse(hn::Gt(x0, first0), p, at0);
      at1 = hn::IfThenElse(hn::Gt(x1, first1), p, at1);
      second0 = hn::Max(second0, hn::Min(first0, x0));
      second1 = hn::Max(second1, hn::Min(first1, x1));
      first0 = hn::Max(first0, x0);
      first1 = hn::Max(first1, x1);
    }
    hn::StoreU(first0, d, top.first + n);
    hn::StoreU(first1, d, top.first + n + N);
    hn::StoreU(second0, d, top.second + n);
    hn::StoreU(second1, d, top.second + n + N);
    hn::StoreU(at0, d, top.at + n);
    hn::StoreU(at1, d, top.at + n + N);
  }
}

/// Rescaling of two parts of a row to their common maximum, and the column that lost its place as the largest
/// and now belongs to the rest.
template <class T>
struct Rescaling {
  HWY_ALIGN T into[kPanelWidth<T>];      ///< factor of the sums so far
  HWY_ALIGN T later[kPanelWidth<T>];     ///< factor of the sums added
  HWY_ALIGN T loser[kPanelWidth<T>];     ///< weight of the loser, 0 where there is none
  HWY_ALIGN T loser_at[kPanelWidth<T>];  ///< its position
};

/// Merges (top, rest_max) of a later part into the state; the sums are the caller's to add up with `scale`.
/// Where `tile` is given, the later part is that tile: its new largest column is hidden there, so that the
/// rest can be summed.
template <class T>
HWY_INLINE void MergeMaxima(const T* later_top, const T* later_at, const T* later_rest_max, T* tile,
                            Index tile_begin, const SoftmaxPanel<T>& state, Rescaling<T>& scale) {
  using D = hn::ScalableTag<T>;
  using P = Pack<D>;
  const PackOps<D> on{D()};
  constexpr Index W = kPanelWidth<T>;
  const P hidden = on.Set(kHidden<T>), zero = on.Set(0);
  for (Index n = 0; n < W; n += 2 * on.N) {
    const P top = on.Load(state.top + n), at = on.Load(state.top_at + n);
    const P new_top = on.Load(later_top + n), new_at = on.Load(later_at + n);
    // Equal logits: the earlier position stays the largest.
    const auto wins = new_top > top;
    const P loser = on.Min(top, new_top), rest_max = on.Load(state.rest_max + n);
    // A tile is summed after its winner is hidden; until then its loser is just one of its columns.
    P apart_loser = loser, later_max = on.Load(later_rest_max + n);
    if (tile != nullptr) {
      apart_loser = on.IfThenElse(wins, loser, hidden);
      later_max = on.IfThenElse(wins, later_max, new_top);
    }
    const P m = on.Max(on.Max(rest_max, later_max), apart_loser);
    const P m_finite = on.IfThenElse(m > hidden, m, zero);
    on.Store(on.SoftmaxExp(rest_max - m_finite), scale.into + n);
    on.Store(on.SoftmaxExp(later_max - m_finite), scale.later + n);
    on.Store(on.SoftmaxExp(apart_loser - m_finite), scale.loser + n);
    on.Store(on.IfThenElse(wins, at, new_at), scale.loser_at + n);
    on.Store(on.Max(top, new_top), state.top + n);
    on.Store(on.IfThenElse(wins, new_at, at), state.top_at + n);
    on.Store(m, state.rest_max + n);
    if (tile != nullptr) {
      HWY_ALIGN T won[2 * HWY_MAX_BYTES / sizeof(T)];
      on.Store(on.IfThenElse(wins, new_at, on.Set(-1)), won);
      for (Index r = 0; r < 2 * on.N; ++r)
        if (won[r] >= 0) tile[(static_cast<Index>(won[r]) - tile_begin) * W + n + r] = kHidden<T>;
    }
  }
}

/// Adds the losers' values to the output sums, column by column where there is one.
template <class T>
HWY_INLINE void AddLosers(const TileInput<T>& in, const Rescaling<T>& scale, const SoftmaxPanel<T>& state) {
  constexpr Index W = kPanelWidth<T>;
  for (Index r = 0; r < W; ++r) {
    const T weight = scale.loser[r];
    if (!(weight > 0)) continue;
    state.rest_sum[r] += weight;
    const T* v = in.v_centred + static_cast<Index>(scale.loser_at[r]) * in.d_v;
    for (Index c = 0; c < in.d_v; ++c) state.rest_out[c * W + r] += weight * v[c];
  }
}

/// tile := exp(tile - rest_max); rest_sum := rest_sum * scale.into + the column sums of that.
template <class T>
HWY_INLINE void Exponentiate(Index tokens, const Rescaling<T>& scale, const SoftmaxPanel<T>& state, T* tile) {
  using D = hn::ScalableTag<T>;
  using P = Pack<D>;
  const PackOps<D> on{D()};
  constexpr Index W = kPanelWidth<T>;
  for (Index n = 0; n < W; n += 2 * on.N) {
    const P m = on.Load(state.rest_max + n);
    const P finite = on.IfThenElse(m > on.Set(kHidden<T>), m, on.Set(0));
    P sum = on.Set(0);
    for (Index t = 0; t < tokens; ++t) {
      const P p = on.SoftmaxExp(on.Load(tile + t * W + n) - finite);
      sum += p;
      on.Store(p, tile + t * W + n);
    }
    on.Store(on.MulAdd(on.Load(state.rest_sum + n), on.Load(scale.into + n), sum), state.rest_sum + n);
  }
}

/// Logits of a panel's rows and the tokens from `first` on, [tokens][W].
template <class T>
HWY_INLINE void TileLogits(const TileInput<T>& in, Index panel, Index first, Index tokens, T* z) {
  PanelGemm<T>(tokens, in.k + first * in.d, in.d, 1, in.d, in.q_panels + panel * in.d * kPanelWidth<T>,
               nullptr, z);
}

template <class T>
HWY_NOINLINE void SoftmaxTiles(const TileInput<T>& in, Index panel, Index n, Index begin, Index end,
                               const SoftmaxPanel<T>* states) {
  constexpr Index W = kPanelWidth<T>;
  HWY_ALIGN T tile[kTokensPassOne * W];
  TopTwo<T> top;
  Rescaling<T> scale;
  for (Index chunk = begin; chunk < end; chunk += kTokensPassOne) {
    for (Index b = 0; b < n; ++b) {
      const Index first = std::max(chunk, in.first_visible(in.panel_first(panel + b)));
      const Index last = std::min({chunk + kTokensPassOne, end, in.end_visible(in.panel_last(panel + b))});
      const Index tokens = last - first;
      if (tokens <= 0) continue;
      const SoftmaxPanel<T>& state = states[b];
      TileLogits(in, panel + b, first, tokens, tile);
      if (in.logits) std::copy_n(tile, tokens * W, in.logits.at(panel + b, first));
      if (in.softcap > 0) CapLogits(in.softcap, tokens, tile);
      HideInvisible(in, panel + b, first, tokens, tile);
      FindTopTwo(tile, first, tokens, top);
      MergeMaxima<T>(top.first, top.at, top.second, tile, first, state, scale);
      Exponentiate(tokens, scale, state, tile);
      PanelGemm<T>(in.d_v, in.v_centred + first * in.d_v, 1, in.d_v, tokens, tile, scale.into,
                   state.rest_out);
      AddLosers(in, scale, state);
    }
  }
}

template <class T>
HWY_NOINLINE void MergeStates(const TileInput<T>& in, const SoftmaxPanel<T>& later,
                              const SoftmaxPanel<T>& into) {
  constexpr Index W = kPanelWidth<T>;
  Rescaling<T> scale;
  MergeMaxima<T>(later.top, later.top_at, later.rest_max, nullptr, 0, into, scale);
  const hn::ScalableTag<T> d;
  for (Index r = 0; r < W; r += static_cast<Index>(hn::Lanes(d))) {
    const auto of_into = hn::Load(d, scale.into + r), of_later = hn::Load(d, scale.later + r);
    const auto merge = [&](const T* added, T* sum) HWY_ATTR {
      hn::StoreU(hn::Add(hn::Mul(hn::LoadU(d, sum), of_into), hn::Mul(hn::LoadU(d, added), of_later)), d,
                 sum);
    };
    merge(later.rest_sum + r, into.rest_sum + r);
    for (Index c = 0; c < in.d_v; ++c) merge(later.rest_out + c * W + r, into.rest_out + c * W + r);
  }
  AddLosers(in, scale, into);
}

template <class T>
HWY_NOINLINE void FinishRows(const T* centre, Index d_v, T* rest_out, LargestColumns<T>& rows) {
  const hn::ScalableTag<T> d;
  constexpr Index W = kPanelWidth<T>;
  const Index N = static_cast<Index>(hn::Lanes(d));
  for (Index n = 0; n < W; n += N) {
    const auto a = hn::LoadU(d, rows.a + n), z_rest = hn::LoadU(d, rows.z_rest + n),
               delta = hn::LoadU(d, rows.delta + n);
    const auto per_sum = hn::LoadU(d, rows.per_sum + n), alone = hn::LoadU(d, rows.alone + n);
    auto diff_sq = hn::Zero(d), joint = diff_sq, exact_joint = diff_sq, out_sq = diff_sq,
         out_centred_sq = diff_sq, centre_dot = diff_sq;
    for (Index c = 0; c < d_v; ++c) {
      HWY_ALIGN T values[HWY_MAX_BYTES / sizeof(T)];
      for (Index r = 0; r < N; ++r) values[r] = rows.value[n + r][c];
      const auto v = hn::LoadU(d, values), m = hn::Set(d, centre[c]);
      const auto full_v = hn::Add(v, m);
      const auto rest = hn::NegMulAdd(alone, m, hn::Mul(hn::LoadU(d, rest_out + c * W + n), per_sum));
      const auto diff = hn::Sub(v, rest);
      const auto o = hn::MulAdd(a, diff, rest), full_o = hn::Add(o, m);
      const auto j = hn::MulAdd(z_rest, diff, full_v);
      const auto ej = hn::MulAdd(a, full_v, hn::Mul(delta, hn::Add(rest, m)));
      diff_sq = hn::MulAdd(diff, diff, diff_sq);
      joint = hn::MulAdd(j, j, joint);
      exact_joint = hn::MulAdd(ej, ej, exact_joint);
      out_sq = hn::MulAdd(full_o, full_o, out_sq);
      out_centred_sq = hn::MulAdd(o, o, out_centred_sq);
      centre_dot = hn::MulAdd(m, o, centre_dot);
      hn::StoreU(o, d, rest_out + c * W + n);
    }
    hn::StoreU(diff_sq, d, rows.diff_sq + n);
    hn::StoreU(joint, d, rows.joint + n);
    hn::StoreU(exact_joint, d, rows.exact_joint + n);
    hn::StoreU(out_sq, d, rows.out_sq + n);
    hn::StoreU(out_centred_sq, d, rows.out_centred_sq + n);
    hn::StoreU(centre_dot, d, rows.centre_dot_out + n);
  }
}

}  // namespace kvreplay::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif
