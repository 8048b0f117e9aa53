#include "sim/tokens/tiles.hpp"

// The order of these is Highway's.
// clang-format off
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "sim/tokens/tiles_cpu.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>
#include "sim/simd/pack-inl.hpp"
#include "sim/tokens/softmax_tiles-inl.hpp"
// clang-format on

#include <algorithm>
#include <type_traits>

HWY_BEFORE_NAMESPACE();
namespace kvreplay::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

constexpr int kAttention = sum_at(RowScore::attention), kAttentionSq = sum_at(RowScore::attention_sq);
static_assert(kAttention == 0 && kAttentionSq == 1, "the sums of the weights are the first");

/// One token's value and one panel's outputs, both less the centre: what is needed to take their difference
/// itself.
template <class T>
struct ValueAndOutputs {
  const T* value;    ///< [d_v]
  const T* outputs;  ///< [d_v][W], from the first row in question on
  const T* centre;   ///< [d_v]
  Index d_v;
};

/// u = ||v - o||^2, v . (v - o) and o . (v - o) for two vectors of rows.
template <class D>
struct Distances {
  Pack<D> u, v_dot_diff, o_dot_diff;
};

/// Takes the rows for which `cancelled` holds from v - o itself, in place of the expanded squares.
template <class D, class T = hn::TFromD<D>>
HWY_NOINLINE void TakeDifferences(D d, const ValueAndOutputs<T>& at, PackMask<D> cancelled,
                                  Distances<D>& distances) {
  const PackOps<D> on(d);
  constexpr Index kLanes = 2 * HWY_MAX_BYTES / static_cast<Index>(sizeof(T));
  HWY_ALIGN T which[kLanes], u[kLanes], v_dot_diff[kLanes], o_dot_diff[kLanes];
  on.Store(on.IfThenElseZero(cancelled, on.Set(1)), which);
  on.Store(distances.u, u);
  on.Store(distances.v_dot_diff, v_dot_diff);
  on.Store(distances.o_dot_diff, o_dot_diff);
  for (Index r = 0; r < 2 * on.N; ++r) {
    if (!(which[r] > 0)) continue;
    T square = 0, v_dot = 0, o_dot = 0;
    for (Index c = 0; c < at.d_v; ++c) {
      const T o = at.outputs[c * kPanelWidth<T> + r], diff = at.value[c] - o;
      square += diff * diff;
      v_dot += (at.value[c] + at.centre[c]) * diff;
      o_dot += (o + at.centre[c]) * diff;
    }
    u[r] = square;
    v_dot_diff[r] = v_dot;
    o_dot_diff[r] = o_dot;
  }
  distances = {on.Load(u), on.Load(v_dot_diff), on.Load(o_dot_diff)};
}

/// The distances of a token from two vectors of rows with weights a. Tokens of the same value (a repeated
/// word, padding) that hold a row together are as near to its output as a sink, but none of them is its
/// largest column alone.
template <class D, class T = hn::TFromD<D>>
HWY_INLINE Distances<D> ValueDistances(D d, const T* row, const T* tile_vo, hn::Vec<D> value_centred_sq,
                                       hn::Vec<D> centre_dot_value, const ValueAndOutputs<T>& at, Pack<D> a) {
  using P = Pack<D>;
  const PackOps<D> on(d);
  const auto constant = [&](RowConstant which) HWY_ATTR { return on.Load(row + which * kPanelWidth<T>); };
  const P v_dot_o = on.Load(tile_vo), v_sq = {value_centred_sq, value_centred_sq};
  const P out_sq = constant(kOutCentredSq), squares = v_sq + out_sq;
  const P shift = P{centre_dot_value, centre_dot_value} - constant(kCentreDotOut);
  Distances<D> distances = {on.NegMulAdd(on.Set(2), v_dot_o, squares), v_sq - v_dot_o + shift,
                            v_dot_o - out_sq + shift};
  constexpr T kLightest = T(1) / 8192;  // below that weight it does not matter
  const auto cancelled = (distances.u < on.Set(kCancelled<T>) * squares) & (a > on.Set(kLightest));
  if (HWY_UNLIKELY(on.AnyTrue(cancelled))) TakeDifferences(d, at, cancelled, distances);
  return distances;
}

/// Two vectors of rows against one token: adds what they contribute to the token's window sums. A score has
/// its line here beside its RowFormula, which knows no vectors: functions that take them have to be compiled
/// for each target, and sums allow what single entries do not: one reciprocal serves both quotients, and
/// factors meet in fused multiply-adds. Names follow METRICS.md: a weight, z logit, u = ||v - o||^2,
/// t = a (exp(-z) - 1), g and e as in RowConstant.
template <bool kCapped, class D, class T = hn::TFromD<D>>
HWY_INLINE void AddWindowRows(D d, const TileInput<T>& in, const T* HWY_RESTRICT row,
                              const T* HWY_RESTRICT tile_z, const T* HWY_RESTRICT tile_vo,
                              hn::Vec<D> value_centred_sq, hn::Vec<D> centre_dot_value,
                              const ValueAndOutputs<T>& at, hn::Vec<D>* HWY_RESTRICT sum) {
  using P = Pack<D>;
  const PackOps<D> on(d);
  const auto constant = [&](RowConstant which) { return on.Load(row + which * kPanelWidth<T>); };
  const auto accumulate = [&](RowScore which, P a, P b) {
    hn::Vec<D>& all = sum[sum_at(which)];
    all = hn::MulAdd(a.lo, b.lo, all);
    all = hn::MulAdd(a.hi, b.hi, all);
  };
  static_assert(kRowSums == 7, "each score has its line");
  const P one = on.Set(1), zero = on.Set(0);

  // A hidden logit is -inf: its weight is 0, and nowhere else may it be multiplied.
  const P logit = on.Load(tile_z);
  const auto visible = logit > on.Set(kHidden<T>);
  P z = on.IfThenElseZero(visible, logit);
  P taylor_z = z, exponent = logit;
  if constexpr (kCapped) {
    // z holds the raw logit: the derivative of the cap belongs to the Taylor scores.
    const P cap = on.Set(in.softcap), tanh = on.Tanh(z / cap);
    taylor_z = z * on.NegMulAdd(tanh, tanh, one);
    z = cap * tanh;
    exponent = on.IfThenElse(visible, z, logit);
  }
  const P a = on.SoftmaxExp(exponent - constant(kLse));
  const P e = on.IfThenElseZero(visible, constant(kZeroLogit));

  const auto [u, v_dot_diff, o_dot_diff] =
      ValueDistances(d, row, tile_vo, value_centred_sq, centre_dot_value, at, a);

  const P a_sq = a * a;
  sum[kAttention] = hn::Add(sum[kAttention], on.Sum(a));
  sum[kAttentionSq] = hn::Add(sum[kAttentionSq], on.Sum(a_sq));
  const P a_sq_z = a_sq * taylor_z;
  accumulate(RowScore::key, a_sq_z, taylor_z * u);
  accumulate(RowScore::joint, a_sq_z, v_dot_diff);  // RowFormula::part()

  // g t: exp(-z) is never formed, and near z = 0, where the difference cancels, its series takes over: below
  // 1/8, where five terms are enough, not below 1/2 as for single entries, since every lane computes both.
  const P ga = constant(kRescale) * a;
  const auto small_z = on.Abs(z) < on.Set(T{0.125});
  const P series = on.NegMulAdd(ga * z, on.OneMinusExpOverZ(z), zero);
  const P gt = on.IfThenElse(small_z, series, e - ga);
  const P rest = one - a;
  const P norm = constant(kZeroWeightSum) - ga;  // g (1 + t)
  const P inverse = on.Reciprocal(norm * rest);
  const P odds = a * (inverse * norm);
  accumulate(RowScore::exact_remove, odds * odds, u);
  const P w = inverse * rest, w_sq = w * w;
  accumulate(RowScore::exact_key, gt * gt * u, w_sq);
  // a (1 - c) v + c o = w (g a (v - o) + e o), c = t / (1 + t)
  const P cross = on.MulAdd(e + e, o_dot_diff, ga * u);
  const P alone = on.IfThenElseZero(visible, constant(kZeroLogitOutSq));
  accumulate(RowScore::exact_joint, on.MulAdd(ga, cross, alone), w_sq);
}

/// Adds what is made of weights alone, with the bits that it has among all.
template <ColumnSet kColumns, bool kCapped, class D, class T = hn::TFromD<D>>
HWY_INLINE void AddWeightRows(D d, const TileInput<T>& in, const T* HWY_RESTRICT row,
                              const T* HWY_RESTRICT tile_z, hn::Vec<D>* HWY_RESTRICT sum,
                              hn::Vec<D>& max_attn) {
  using P = Pack<D>;
  const PackOps<D> on(d);
  P z = on.Load(tile_z);
  if constexpr (kCapped) {
    const auto visible = z > on.Set(kHidden<T>);
    const P finite = on.IfThenElseZero(visible, z), cap = on.Set(in.softcap);
    z = on.IfThenElse(visible, cap * on.Tanh(finite / cap), z);
  }
  const P a = on.SoftmaxExp(z - on.Load(row + kLse * kPanelWidth<T>));
  if constexpr (kColumns == ColumnSet::weights) {
    sum[kAttention] = hn::Add(sum[kAttention], on.Sum(a));
    sum[kAttentionSq] = hn::Add(sum[kAttentionSq], on.Sum(a * a));
  } else {
    max_attn = hn::Max(max_attn, hn::Max(a.lo, a.hi));
  }
}

/// Adds what the oracles sum over future rows.
template <bool kCapped, class D, class T = hn::TFromD<D>>
HWY_INLINE void AddFutureRows(D d, const TileInput<T>& in, const T* HWY_RESTRICT row,
                              const T* HWY_RESTRICT tile_z, const T* HWY_RESTRICT tile_vo,
                              hn::Vec<D> value_centred_sq, hn::Vec<D> centre_dot_value,
                              const ValueAndOutputs<T>& at, hn::Vec<D>& exact_remove, hn::Vec<D>& max_attn) {
  using P = Pack<D>;
  const PackOps<D> on(d);
  const auto constant = [&](RowConstant which) { return on.Load(row + which * kPanelWidth<T>); };
  P z = on.Load(tile_z);
  const auto visible = z > on.Set(kHidden<T>);
  z = on.IfThenElseZero(visible, z);
  if constexpr (kCapped) z = on.Set(in.softcap) * on.Tanh(z / on.Set(in.softcap));
  const P a = on.IfThenElseZero(visible, on.SoftmaxExp(z - constant(kLse)));
  const P u = ValueDistances(d, row, tile_vo, value_centred_sq, centre_dot_value, at, a).u;
  const P odds = a * on.Reciprocal(on.Set(1) - a);
  exact_remove = hn::Add(exact_remove, on.Sum(odds * odds * u));
  max_attn = hn::Max(max_attn, hn::Max(a.lo, a.hi));
}

/// Sums of the lanes of n vectors that lie one behind the other, added to out[i]: each in an order of its own
/// lanes that does not depend on the others.
template <class T>
HWY_INLINE void AddLaneSums(const T* vectors, Index n, double* out) {
  const hn::ScalableTag<T> d;
  const Index N = static_cast<Index>(hn::Lanes(d));
  Index i = 0;
#if HWY_TARGET != HWY_SCALAR
  if constexpr (sizeof(T) == 4) {
    // Four vectors at a time are transposed within blocks of 128 bits: [a b c d] in every block of the sum.
    const hn::RepartitionToWide<decltype(d)> dw;
    const hn::Full128<T> block;
    const auto pair = [&](const T* at) HWY_ATTR {
      const auto a = hn::LoadU(d, at), b = hn::LoadU(d, at + N);
      return hn::BitCast(dw, hn::Add(hn::InterleaveLower(d, a, b), hn::InterleaveUpper(d, a, b)));
    };
    const auto add_four = [&](const T* four, Index count) HWY_ATTR {
      const auto ab = pair(four), cd = pair(four + 2 * N);
      const auto sum = hn::Add(hn::BitCast(d, hn::InterleaveLower(dw, ab, cd)),
                               hn::BitCast(d, hn::InterleaveUpper(dw, ab, cd)));
      HWY_ALIGN T blocks[HWY_MAX_BYTES / sizeof(T)];
      hn::StoreU(sum, d, blocks);
      auto total = hn::LoadU(block, blocks);
      for (Index at = 4; at < N; at += 4) total = hn::Add(total, hn::LoadU(block, blocks + at));
      HWY_ALIGN T totals[4];
      hn::StoreU(total, block, totals);
      for (Index k = 0; k < count; ++k) out[i + k] += static_cast<double>(totals[k]);
    };
    for (; i + 4 <= n; i += 4) add_four(vectors + i * N, 4);
    HWY_ALIGN T last[4 * HWY_MAX_BYTES / sizeof(T)] = {};
    std::copy_n(vectors + i * N, (n - i) * N, last);
    if (i < n) add_four(last, n - i);
    return;
  }
#endif
  for (; i < n; ++i)
    out[i] += static_cast<double>(hn::GetLane(hn::SumOfLanes(d, hn::LoadU(d, vectors + i * N))));
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

/// Sums of the tokens of an item, still by lane: [kTokensPassTwo][kRowSums][N]. Every few blocks of rows the
/// sums are moved to float64, before float32 has added up too many terms.
template <class T>
struct LaneSums {
  HWY_ALIGN T sums[kTokensPassTwo * kRowSums * (HWY_MAX_BYTES / sizeof(T))];
  HWY_ALIGN T max_attn[kTokensPassTwo * (HWY_MAX_BYTES / sizeof(T))];
  double totals[kTokensPassTwo * kRowSums];
};

/// One tile of tokens against n panels, whose logits and products v.o are [n] of [tokens][W]. `first`: the
/// tile's sums are not set yet.
template <ColumnSet kColumns, bool kCapped, class T>
HWY_INLINE void AddTile(const TileInput<T>& in, const T* const* rows, const T* const* outputs, Index n,
                        Index item, Index tile, Index tokens, const T* const* z, const T* const* vo,
                        const TokenConstants<T>& token, bool first, LaneSums<T>& lanes) {
  using D = hn::ScalableTag<T>;
  const D d;
  constexpr Index W = kPanelWidth<T>;
  const Index N = static_cast<Index>(hn::Lanes(d));
  for (Index t = 0; t < tokens; ++t) {
    const Index p = tile + t;
    constexpr Index kSums = sums_of(kColumns);
    T* sums = lanes.sums + (p - item) * kSums * N;
    hn::Vec<D> sum[std::max<Index>(kSums, 1)];
#pragma GCC unroll 8
    for (Index s = 0; s < kSums; ++s) sum[s] = first ? hn::Zero(d) : hn::LoadU(d, sums + s * N);
    T* max_at = lanes.max_attn + (p - item) * N;
    auto max_attn = hn::LoadU(d, max_at);
    if constexpr (!needs_outputs(kColumns)) {
      for (Index b = 0; b < n; ++b)
        for (Index r = 0; r < W; r += 2 * N)
          AddWeightRows<kColumns, kCapped>(d, in, rows[b] + r, z[b] + t * W + r, sum, max_attn);
    } else {
      const auto centred_sq = hn::Set(d, token.value_centred_sq[p]);
      const auto centre_dot = hn::Set(d, token.centre_dot_value[p]);
      const T* value = in.v_centred + p * in.d_v;
      for (Index b = 0; b < n; ++b) {
        for (Index r = 0; r < W; r += 2 * N) {
          const Index at = t * W + r;
          const ValueAndOutputs<T> both{value, outputs[b] + r, token.centre, in.d_v};
          if constexpr (kColumns == ColumnSet::window)
            AddWindowRows<kCapped>(d, in, rows[b] + r, z[b] + at, vo[b] + at, centred_sq, centre_dot, both,
                                   sum);
          else
            AddFutureRows<kCapped>(d, in, rows[b] + r, z[b] + at, vo[b] + at, centred_sq, centre_dot, both,
                                   sum[0], max_attn);
        }
      }
    }
    if constexpr (has_max_attn(kColumns)) hn::StoreU(max_attn, d, max_at);
#pragma GCC unroll 8
    for (Index s = 0; s < kSums; ++s) hn::StoreU(sum[s], d, sums + s * N);
  }
}

template <ColumnSet kColumns, bool kCapped, class T>
HWY_INLINE void ScoreItem(const TileInput<T>& in, const T* row_constants, const T* out_panels,
                          const TokenConstants<T>& token, Index begin, Index end, LaneSums<T>& lanes) {
  constexpr Index W = kPanelWidth<T>;
  constexpr Index kBlocksPerFlush = 8;
  constexpr Index kSums = sums_of(kColumns);
  const Index N = static_cast<Index>(hn::Lanes(hn::ScalableTag<T>()));
  HWY_ALIGN T z_tiles[kPanelsPerBlock * kTokensPerTile * W];
  HWY_ALIGN T vo_tiles[kPanelsPerBlock * kTokensPerTile * W];
  // A tile's sums are unset until its first block of rows, and again after each flush.
  bool set[kTokensPassTwo / kTokensPerTile] = {};
  const auto flush = [&] HWY_ATTR {
    for (Index tile = begin; tile < end; tile += kTokensPerTile) {
      bool& tile_set = set[(tile - begin) / kTokensPerTile];
      if (!tile_set) continue;
      const Index at = (tile - begin) * kSums, n = std::min(kTokensPerTile, end - tile) * kSums;
      AddLaneSums(lanes.sums + at * N, n, lanes.totals + at);
      tile_set = false;
    }
  };
  Index unflushed = 0;
  for (Index block = 0; block < in.panels(); block += kPanelsPerBlock) {
    const Index block_end = std::min(block + kPanelsPerBlock, in.panels());
    for (Index tile = begin; tile < end; tile += kTokensPerTile) {
      const Index tokens = std::min(kTokensPerTile, end - tile);
      const T *rows[kPanelsPerBlock], *outputs[kPanelsPerBlock];
      T *z[kPanelsPerBlock], *vo[kPanelsPerBlock];
      Index n = 0;
      for (Index panel = block; panel < block_end; ++panel) {
        if (in.end_visible(in.panel_last(panel)) <= tile ||
            in.first_visible(in.panel_first(panel)) >= tile + tokens)
          continue;
        // No other item has this tile: kept logits are hidden where they are.
        z[n] = in.logits ? in.logits.at(panel, tile) : z_tiles + n * kTokensPerTile * W;
        vo[n] = vo_tiles + n * kTokensPerTile * W;
        if (!in.logits) TileLogits(in, panel, tile, tokens, z[n]);
        if constexpr (needs_outputs(kColumns))
          PanelGemm<T>(tokens, in.v_centred + tile * in.d_v, in.d_v, 1, in.d_v,
                       out_panels + panel * in.d_v * W, nullptr, vo[n]);
        rows[n] = row_constants + panel * kRowConstants * W;
        outputs[n] = out_panels + panel * in.d_v * W;
        HideInvisible(in, panel, tile, tokens, z[n]);
        HideTop(rows[n] + kTopAt * W, tile, tokens, z[n]);
        ++n;
      }
      if (n == 0) continue;
      bool& tile_set = set[(tile - begin) / kTokensPerTile];
      AddTile<kColumns, kCapped>(in, rows, outputs, n, begin, tile, tokens, z, vo, token, !tile_set, lanes);
      tile_set = true;
    }
    if (++unflushed == kBlocksPerFlush) {
      flush();
      unflushed = 0;
    }
  }
  if (unflushed > 0) flush();
}

template <class T>
HWY_NOINLINE void ScoreTiles(const TileInput<T>& in, const T* row_constants, const T* out_panels,
                             const TokenConstants<T>& token, ColumnSet columns, Index begin, Index end,
                             const ColumnSums& sums) {
  const hn::ScalableTag<T> d;
  const Index N = static_cast<Index>(hn::Lanes(d)), tokens = end - begin;
  LaneSums<T> lanes;
  std::fill_n(lanes.totals, tokens * kRowSums, 0.0);
  std::fill_n(lanes.max_attn, tokens * N, T{0});
  const auto score = [&](auto capped) HWY_ATTR {
    constexpr bool kCapped = decltype(capped)::value;
    if (columns == ColumnSet::window)
      ScoreItem<ColumnSet::window, kCapped>(in, row_constants, out_panels, token, begin, end, lanes);
    else if (columns == ColumnSet::weights)
      ScoreItem<ColumnSet::weights, kCapped>(in, row_constants, out_panels, token, begin, end, lanes);
    else if (columns == ColumnSet::max_attn)
      ScoreItem<ColumnSet::max_attn, kCapped>(in, row_constants, out_panels, token, begin, end, lanes);
    else
      ScoreItem<ColumnSet::future, kCapped>(in, row_constants, out_panels, token, begin, end, lanes);
  };
  if (in.softcap > 0)
    score(std::true_type{});
  else
    score(std::false_type{});

  for (Index t = 0; t < tokens; ++t) {
    const double* const total = lanes.totals + t * sums_of(columns);
    for (int s = 0; s < kRowSums; ++s) {
      const auto score = static_cast<RowScore>(s);
      if (!has_sum(columns, score)) continue;
      double sum = total[sum_at(columns, score)];
      if (score == RowScore::joint)
        sum = RowFormula<RowScore::joint>::whole(sum, total[kAttentionSq], total[sum_at(RowScore::key)],
                                                 static_cast<double>(token.value_sq[begin + t]));
      sums.of[s][begin + t] += std::max(sum, 0.0);  // rounding may leave a sum of squares just below 0
    }
    if (!has_max_attn(columns)) continue;
    const T largest = hn::GetLane(hn::MaxOfLanes(d, hn::LoadU(d, lanes.max_attn + t * N)));
    double& max_attn = sums.max_attn[begin + t];
    max_attn = std::max(max_attn, static_cast<double>(largest));
  }
}

TilesSimd<float> TilesSimdF32() { return {SoftmaxTiles, MergeStates, FinishRows, ScoreTiles}; }
TilesSimd<double> TilesSimdF64() { return {SoftmaxTiles, MergeStates, FinishRows, ScoreTiles}; }

}  // namespace kvreplay::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace kvreplay {

HWY_EXPORT(TilesSimdF32);
HWY_EXPORT(TilesSimdF64);
template <>
TilesSimd<float> tiles_simd() {
  return HWY_DYNAMIC_DISPATCH(TilesSimdF32)();
}
template <>
TilesSimd<double> tiles_simd() {
  return HWY_DYNAMIC_DISPATCH(TilesSimdF64)();
}

}  // namespace kvreplay
#endif
