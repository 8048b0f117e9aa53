// Included once per target by Highway's foreach_target; see https://google.github.io/highway.
#if defined(KVREPLAY_SCORE_TILES_INL_HPP) == defined(HWY_TARGET_TOGGLE)
#ifdef KVREPLAY_SCORE_TILES_INL_HPP
#undef KVREPLAY_SCORE_TILES_INL_HPP
#else
#define KVREPLAY_SCORE_TILES_INL_HPP
#endif

#include "sim/simd/exp-inl.hpp"
#include "sim/simd/panel_gemm-inl.hpp"
#include "sim/tokens/softmax_tiles-inl.hpp"
#include "sim/tokens/tiles.hpp"

#include <hwy/highway.h>

#include <algorithm>

HWY_BEFORE_NAMESPACE();
namespace kvreplay::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

/// The sums of one token over a block of panels, a vector each.
template <class D>
struct WindowSums {
  using V = hn::Vec<D>;
  V attn, attn_sq, key, joint, exact_key, exact_joint, exact_remove;

  explicit HWY_INLINE WindowSums(D d)
      : attn(hn::Zero(d)),
        attn_sq(attn),
        key(attn),
        joint(attn),
        exact_key(attn),
        exact_joint(attn),
        exact_remove(attn) {}
};

/// One vector of rows against one token: adds what each row contributes to the token's window sums.
/// Names follow METRICS.md: a weight, z logit, u = ||v - o||^2, t = a (exp(-z) - 1), c = t / (1 + t).
template <bool kCapped, class D, class T = hn::TFromD<D>>
HWY_INLINE void AddWindowRows(D d, const TileInput<T>& in, const T* row, Index W, hn::Vec<D> tile_z,
                              hn::Vec<D> v_dot_o, hn::Vec<D> value_sq, hn::Vec<D> value_centred_sq,
                              hn::Vec<D> centre_dot_value, WindowSums<D>& sum) {
  using V = hn::Vec<D>;
  const auto constant = [&](RowConstant which) { return hn::LoadU(d, row + which * W); };
  const auto two = hn::Set(d, T{2});
  const auto visible = hn::Gt(tile_z, hn::Set(d, kHidden<T>));
  V z = hn::IfThenElseZero(visible, tile_z);
  V taylor_z = z;
  if constexpr (kCapped) {
    // z holds the raw logit: the derivative of the cap belongs to the Taylor scores.
    const auto tanh = hn::Tanh(d, hn::Div(z, hn::Set(d, in.softcap)));
    taylor_z = hn::Mul(z, hn::NegMulAdd(tanh, tanh, hn::Set(d, T{1})));
    z = hn::Mul(hn::Set(d, in.softcap), tanh);
  }
  const V a = hn::IfThenElseZero(visible, SoftmaxExp(d, hn::Sub(z, constant(kLse))));
  const V e = hn::IfThenElseZero(visible, constant(kZeroLogit));
  const V ga = hn::Mul(constant(kRescale), a);

  const V out_centred_sq = constant(kOutCentredSq);
  const V shift = hn::Sub(centre_dot_value, constant(kCentreDotOut));
  const V u = hn::Max(hn::NegMulAdd(two, v_dot_o, hn::Add(value_centred_sq, out_centred_sq)), hn::Zero(d));
  const V v_dot_diff = hn::Add(hn::Sub(value_centred_sq, v_dot_o), shift);  // v . (v - o)
  const V o_dot_diff = hn::Add(hn::Sub(v_dot_o, out_centred_sq), shift);    // o . (v - o)

  const V a_sq = hn::Mul(a, a);
  sum.attn = hn::Add(sum.attn, a);
  sum.attn_sq = hn::Add(sum.attn_sq, a_sq);
  const V az = hn::Mul(a, taylor_z);
  sum.key = hn::MulAdd(hn::Mul(az, az), u, sum.key);
  const V slope = hn::MulAdd(taylor_z, u, hn::Add(v_dot_diff, v_dot_diff));
  sum.joint = hn::MulAdd(a_sq, hn::MulAdd(taylor_z, slope, value_sq), sum.joint);

  // g t: exp(-z) is never formed, and near z = 0, where the difference cancels, its series takes over.
  const auto small_z = hn::Lt(hn::Abs(z), hn::Set(d, T{0.125}));
  const V gt =
      hn::IfThenElse(small_z, hn::Neg(hn::Mul(hn::Mul(ga, z), OneMinusExpOverZ(d, z))), hn::Sub(e, ga));
  const V one_minus_a = hn::Sub(hn::Set(d, T{1}), a);
  const V denominator = hn::Sub(constant(kZeroWeightSum), ga);  // g (1 + t)
  const V both = Reciprocal(d, hn::Mul(denominator, one_minus_a));
  const V w = hn::Mul(both, one_minus_a);
  const V c = hn::Mul(gt, w);
  sum.exact_key = hn::MulAdd(hn::Mul(c, c), u, sum.exact_key);
  // a (1 - c) v + c o = alpha (v - o) + beta o
  const V alpha = hn::Mul(ga, w), beta = hn::Mul(e, w);
  const V cross = hn::MulAdd(alpha, u, hn::Mul(hn::Add(beta, beta), o_dot_diff));
  const V joint_error = hn::MulAdd(alpha, cross, hn::Mul(hn::Mul(beta, beta), constant(kOutSq)));
  sum.exact_joint = hn::Add(sum.exact_joint, joint_error);
  const V odds = hn::Mul(a, hn::Mul(both, denominator));
  sum.exact_remove = hn::MulAdd(hn::Mul(odds, odds), u, sum.exact_remove);
}

/// The same for the oracles.
template <bool kCapped, class D, class T = hn::TFromD<D>>
HWY_INLINE void AddFutureRows(D d, const TileInput<T>& in, const T* row, Index W, hn::Vec<D> tile_z,
                              hn::Vec<D> v_dot_o, hn::Vec<D> value_centred_sq, hn::Vec<D>& exact_remove,
                              hn::Vec<D>& max_attn) {
  using V = hn::Vec<D>;
  const auto constant = [&](RowConstant which) { return hn::LoadU(d, row + which * W); };
  const auto visible = hn::Gt(tile_z, hn::Set(d, kHidden<T>));
  V z = hn::IfThenElseZero(visible, tile_z);
  if constexpr (kCapped) z = hn::Mul(hn::Set(d, in.softcap), hn::Tanh(d, hn::Div(z, hn::Set(d, in.softcap))));
  const V a = hn::IfThenElseZero(visible, SoftmaxExp(d, hn::Sub(z, constant(kLse))));
  const V u =
      hn::Max(hn::NegMulAdd(hn::Set(d, T{2}), v_dot_o, hn::Add(value_centred_sq, constant(kOutCentredSq))),
              hn::Zero(d));
  const V odds = hn::Mul(a, Reciprocal(d, hn::Sub(hn::Set(d, T{1}), a)));
  exact_remove = hn::MulAdd(hn::Mul(odds, odds), u, exact_remove);
  max_attn = hn::Max(max_attn, a);
}

/// Rows of a panel whose largest column lies in the tile are scored elsewhere: hidden here.
template <class T>
HWY_INLINE void HideTop(const T* top_at, Index begin, Index tokens, T* tile) {
  constexpr Index W = kPanelWidth<T>;
  for (Index r = 0; r < W; ++r) {
    const Index t = static_cast<Index>(top_at[r]) - begin;
    if (t >= 0 && t < tokens) tile[t * W + r] = kHidden<T>;
  }
}

/// One tile of tokens against the panels that see any of them: tiles [n][kTokensPerTile][W].
template <ColumnSet kColumns, bool kCapped, class T>
HWY_INLINE void AddTile(const TileInput<T>& in, const T* const* rows, Index n, Index begin, Index tokens,
                        const T* z_tiles, const T* vo_tiles, const TokenConstants<T>& token,
                        const ColumnSums& sums) {
  using D = hn::ScalableTag<T>;
  const D d;
  constexpr Index W = kPanelWidth<T>;
  const Index N = static_cast<Index>(hn::Lanes(d));
  const auto total = [&](auto sum) { return static_cast<double>(hn::GetLane(hn::SumOfLanes(d, sum))); };
  for (Index t = 0; t < tokens; ++t) {
    const Index p = begin + t;
    const auto centred_sq = hn::Set(d, token.value_centred_sq[p]);
    if constexpr (kColumns == ColumnSet::window) {
      const auto value_sq = hn::Set(d, token.value_sq[p]), centre_dot = hn::Set(d, token.centre_dot_value[p]);
      WindowSums<D> sum(d);
      for (Index b = 0; b < n; ++b) {
        const Index at = (b * kTokensPerTile + t) * W;
        for (Index r = 0; r < W; r += N)
          AddWindowRows<kCapped>(d, in, rows[b] + r, W, hn::LoadU(d, z_tiles + at + r),
                                 hn::LoadU(d, vo_tiles + at + r), value_sq, centred_sq, centre_dot, sum);
      }
      sums.attn[p] += total(sum.attn);
      sums.attn_sq[p] += total(sum.attn_sq);
      sums.key[p] += total(sum.key);
      sums.joint[p] += total(sum.joint);
      sums.exact_key[p] += total(sum.exact_key);
      sums.exact_joint[p] += total(sum.exact_joint);
      sums.exact_remove[p] += total(sum.exact_remove);
    } else {
      auto exact_remove = hn::Zero(d), max_attn = hn::Zero(d);
      for (Index b = 0; b < n; ++b) {
        const Index at = (b * kTokensPerTile + t) * W;
        for (Index r = 0; r < W; r += N)
          AddFutureRows<kCapped>(d, in, rows[b] + r, W, hn::LoadU(d, z_tiles + at + r),
                                 hn::LoadU(d, vo_tiles + at + r), centred_sq, exact_remove, max_attn);
      }
      sums.exact_remove[p] += total(exact_remove);
      sums.max_attn[p] =
          std::max(sums.max_attn[p], static_cast<double>(hn::GetLane(hn::MaxOfLanes(d, max_attn))));
    }
  }
}

template <class T>
HWY_NOINLINE void ScoreTiles(const TileInput<T>& in, const T* row_constants, const T* out_panels,
                             const TokenConstants<T>& token, ColumnSet columns, Index begin, Index end,
                             const ColumnSums& sums) {
  constexpr Index W = kPanelWidth<T>;
  HWY_ALIGN T z_tiles[kPanelsPerBlock * kTokensPerTile * W];
  HWY_ALIGN T vo_tiles[kPanelsPerBlock * kTokensPerTile * W];
  for (Index block = 0; block < in.panels(); block += kPanelsPerBlock) {
    const Index block_end = std::min(block + kPanelsPerBlock, in.panels());
    for (Index tile = begin; tile < end; tile += kTokensPerTile) {
      const Index tokens = std::min(kTokensPerTile, end - tile);
      const T* rows[kPanelsPerBlock];
      Index n = 0;
      for (Index panel = block; panel < block_end; ++panel) {
        if (in.end_visible(in.panel_last(panel)) <= tile ||
            in.first_visible(in.panel_first(panel)) >= tile + tokens)
          continue;
        T* z = z_tiles + n * kTokensPerTile * W;
        T* vo = vo_tiles + n * kTokensPerTile * W;
        PanelGemm<T>(tokens, in.k + tile * in.d, in.d, 1, in.d, in.q_panels + panel * in.d * W, nullptr, z);
        PanelGemm<T>(tokens, in.v_centred + tile * in.d_v, in.d_v, 1, in.d_v, out_panels + panel * in.d_v * W,
                     nullptr, vo);
        rows[n] = row_constants + panel * kRowConstants * W;
        HideInvisible(in, panel, tile, tokens, z);
        HideTop(rows[n] + kTopAt * W, tile, tokens, z);
        ++n;
      }
      if (n == 0) continue;
      const bool capped = in.softcap > 0;
      if (columns == ColumnSet::window) {
        if (capped)
          AddTile<ColumnSet::window, true>(in, rows, n, tile, tokens, z_tiles, vo_tiles, token, sums);
        else
          AddTile<ColumnSet::window, false>(in, rows, n, tile, tokens, z_tiles, vo_tiles, token, sums);
      } else if (capped) {
        AddTile<ColumnSet::future, true>(in, rows, n, tile, tokens, z_tiles, vo_tiles, token, sums);
      } else {
        AddTile<ColumnSet::future, false>(in, rows, n, tile, tokens, z_tiles, vo_tiles, token, sums);
      }
    }
  }
}

}  // namespace kvreplay::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif
