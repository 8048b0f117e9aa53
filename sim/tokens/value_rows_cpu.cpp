#include "sim/tokens/value_rows.hpp"

#include <hwy/cache_control.h>

#include <algorithm>

// The order of these is Highway's.
// clang-format off
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "sim/tokens/value_rows_cpu.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>
// clang-format on

HWY_BEFORE_NAMESPACE();
namespace kvreplay::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

/// Several rows at once are several streams, which the processor does not see coming: rows so far ahead are
/// asked for.
inline constexpr Index kRowsAhead = 16;

template <class T, class V>
HWY_INLINE T Total(V sum) {
  return hn::GetLane(hn::SumOfLanes(hn::ScalableTag<T>(), sum));
}

/// Results of centre_rows().
template <class T>
struct CentredRows {
  T *centred, *value_sq, *centred_sq, *centre_dot, *sum;
};

/// R rows at once: one alone would wait for its own sums.
template <int R, class T>
HWY_INLINE void CentreSomeRows(const T* HWY_RESTRICT v, const T* HWY_RESTRICT centre, Index row, Index d_v,
                               const CentredRows<T>& out) {
  const hn::ScalableTag<T> d;
  const Index N = static_cast<Index>(hn::Lanes(d));
  const T* from = v + row * d_v;
  T* to = out.centred + row * d_v;
  hn::Vec<decltype(d)> square[R], centred_square[R], dot[R];
#pragma GCC unroll 4
  for (int r = 0; r < R; ++r) square[r] = centred_square[r] = dot[r] = hn::Zero(d);
  Index c = 0;
  for (; c + N <= d_v; c += N) {
    const auto m = hn::LoadU(d, centre + c);
    auto sum = hn::LoadU(d, out.sum + c);
#pragma GCC unroll 4
    for (int r = 0; r < R; ++r) {
      hwy::Prefetch(from + (r + kRowsAhead) * d_v + c);
      const auto x = hn::LoadU(d, from + r * d_v + c), y = hn::Sub(x, m);
      square[r] = hn::MulAdd(x, x, square[r]);
      centred_square[r] = hn::MulAdd(y, y, centred_square[r]);
      dot[r] = hn::MulAdd(m, y, dot[r]);
      sum = hn::Add(sum, y);
      hn::StoreU(y, d, to + r * d_v + c);
    }
    hn::StoreU(sum, d, out.sum + c);
  }
  for (int r = 0; r < R; ++r) {
    T s = Total<T>(square[r]), cs = Total<T>(centred_square[r]), cd = Total<T>(dot[r]);
    for (Index rest = c; rest < d_v; ++rest) {
      const T x = from[r * d_v + rest], y = x - centre[rest];
      s += x * x;
      cs += y * y;
      cd += centre[rest] * y;
      to[r * d_v + rest] = y;
      out.sum[rest] += y;
    }
    out.value_sq[row + r] = s;
    out.centred_sq[row + r] = cs;
    out.centre_dot[row + r] = cd;
  }
}

template <class T>
HWY_NOINLINE void CentreRows(const T* v, const T* centre, Index rows, Index d_v, T* centred, T* value_sq,
                             T* centred_sq, T* centre_dot, T* sum) {
  const CentredRows<T> out{centred, value_sq, centred_sq, centre_dot, sum};
  Index r = 0;
  for (; r + 4 <= rows; r += 4) CentreSomeRows<4>(v, centre, r, d_v, out);
  for (; r < rows; ++r) CentreSomeRows<1>(v, centre, r, d_v, out);
}

template <class T>
HWY_NOINLINE void AddWeightedRows(const T* HWY_RESTRICT v, const T* HWY_RESTRICT weights, Index rows,
                                  Index d_v, T* HWY_RESTRICT sum) {
  const hn::ScalableTag<T> d;
  const Index N = static_cast<Index>(hn::Lanes(d));
  Index c = 0;
  for (; c + 4 * N <= d_v; c += 4 * N) {
    auto s0 = hn::LoadU(d, sum + c), s1 = hn::LoadU(d, sum + c + N);
    auto s2 = hn::LoadU(d, sum + c + 2 * N), s3 = hn::LoadU(d, sum + c + 3 * N);
    for (Index r = 0; r < rows; ++r) {
      const T* row = v + r * d_v + c;
      const auto w = hn::Set(d, weights[r]);
      s0 = hn::MulAdd(w, hn::LoadU(d, row), s0);
      s1 = hn::MulAdd(w, hn::LoadU(d, row + N), s1);
      s2 = hn::MulAdd(w, hn::LoadU(d, row + 2 * N), s2);
      s3 = hn::MulAdd(w, hn::LoadU(d, row + 3 * N), s3);
    }
    hn::StoreU(s0, d, sum + c);
    hn::StoreU(s1, d, sum + c + N);
    hn::StoreU(s2, d, sum + c + 2 * N);
    hn::StoreU(s3, d, sum + c + 3 * N);
  }
  for (; c < d_v; ++c) {
    T s = sum[c];
    for (Index r = 0; r < rows; ++r) s += weights[r] * v[r * d_v + c];
    sum[c] = s;
  }
}

/// Adds the square of the difference between a row and a point to a sum.
struct SquaredDifference {
  template <class V>
  HWY_INLINE V operator()(V x, V point, V sum) const {
    const V difference = hn::Sub(point, x);
    return hn::MulAdd(difference, difference, sum);
  }
  template <class T>
  HWY_INLINE T of_one(T x, T point) const {
    return (point - x) * (point - x);
  }
};
struct Product {
  template <class V>
  HWY_INLINE V operator()(V x, V point, V sum) const {
    return hn::MulAdd(x, point, sum);
  }
  template <class T>
  HWY_INLINE T of_one(T x, T point) const {
    return x * point;
  }
};

#if HWY_TARGET != HWY_SCALAR
/// Adds up the blocks of four lanes.
template <class D, class V>
HWY_INLINE auto SumOfBlocks(D d, V v) {
  if constexpr (hn::MaxLanes(D()) > 4) {
    const hn::Half<D> half;
    return SumOfBlocks(half, hn::Add(hn::LowerHalf(half, v), hn::UpperHalf(half, v)));
  } else {
    return v;
  }
}

/// The totals of four vectors side by side: half the steps of four alone.
template <class V>
HWY_INLINE void StoreFourTotals(const V (&sum)[4], float* HWY_RESTRICT out) {
  const hn::ScalableTag<float> d;
  const hn::RepartitionToWide<decltype(d)> pairs;
  const auto both = [&](V a, V b) {  // a0 + a2, b0 + b2, a1 + a3, b1 + b3 of each block
    return hn::BitCast(pairs, hn::Add(hn::InterleaveLower(d, a, b), hn::InterleaveUpper(d, a, b)));
  };
  const auto ab = both(sum[0], sum[1]), cd = both(sum[2], sum[3]);
  const V blocks = hn::Add(hn::BitCast(d, hn::InterleaveLower(pairs, ab, cd)),
                           hn::BitCast(d, hn::InterleaveUpper(pairs, ab, cd)));
  hn::StoreU(SumOfBlocks(d, blocks), hn::CappedTag<float, 4>(), out);
}
#endif

/// out[r] = the total of sum[r].
template <int R, class T, class V>
HWY_INLINE void StoreTotals(const V (&sum)[R], T* HWY_RESTRICT out) {
#if HWY_TARGET != HWY_SCALAR
  if constexpr (R == 4 && sizeof(T) == 4) return StoreFourTotals(sum, out);
#endif
  for (int r = 0; r < R; ++r) out[r] = Total<T>(sum[r]);
}

/// P points and R rows: out [P][rows].
template <int R, int P, class Term, class T>
HWY_INLINE void SomePairs(const T* HWY_RESTRICT v, const T* HWY_RESTRICT points, Index row, Index rows,
                          Index d_v, T* HWY_RESTRICT out) {
  const hn::ScalableTag<T> d;
  const Term term;
  const Index N = static_cast<Index>(hn::Lanes(d));
  const T* from = v + row * d_v;
  hn::Vec<decltype(d)> sum[P][R];
#pragma GCC unroll 4
  for (int p = 0; p < P; ++p)
#pragma GCC unroll 4
    for (int r = 0; r < R; ++r) sum[p][r] = hn::Zero(d);
  Index c = 0;
  for (; c + N <= d_v; c += N) {
    hn::Vec<decltype(d)> x[R];
#pragma GCC unroll 4
    for (int r = 0; r < R; ++r) {
      hwy::Prefetch(from + (r + kRowsAhead) * d_v + c);
      x[r] = hn::LoadU(d, from + r * d_v + c);
    }
#pragma GCC unroll 4
    for (int p = 0; p < P; ++p) {
      const auto point = hn::LoadU(d, points + p * d_v + c);
#pragma GCC unroll 4
      for (int r = 0; r < R; ++r) sum[p][r] = term(x[r], point, sum[p][r]);
    }
  }
  for (int p = 0; p < P; ++p) {
    T* const own = out + p * rows + row;
    StoreTotals<R>(sum[p], own);
    for (int r = 0; r < R; ++r)
      for (Index rest = c; rest < d_v; ++rest)
        own[r] += term.of_one(from[r * d_v + rest], points[p * d_v + rest]);
  }
}

template <class Term, class T>
HWY_NOINLINE void RowPairs(const T* v, const T* points, Index n, Index rows, Index d_v, T* out) {
  // As many sums as there are registers for.
  constexpr int P = HWY_TARGET <= HWY_AVX3 || HWY_TARGET == HWY_NEON ? 4 : 2;
  Index r = 0;
  for (; r + 4 <= rows; r += 4) {
    Index p = 0;
    for (; p + P <= n; p += P) SomePairs<4, P, Term>(v, points + p * d_v, r, rows, d_v, out + p * rows);
    for (; p < n; ++p) SomePairs<4, 1, Term>(v, points + p * d_v, r, rows, d_v, out + p * rows);
  }
  for (; r < rows; ++r)
    for (Index p = 0; p < n; ++p) SomePairs<1, 1, Term>(v, points + p * d_v, r, rows, d_v, out + p * rows);
}

HWY_INLINE hn::Vec<hn::ScalableTag<double>> Wide(const float* x) {
  const hn::ScalableTag<double> d;
  return hn::PromoteTo(d, hn::LoadU(hn::Rebind<float, decltype(d)>(), x));
}
HWY_INLINE hn::Vec<hn::ScalableTag<double>> Wide(const double* x) {
  return hn::LoadU(hn::ScalableTag<double>(), x);
}

/// out[r] = v(r) . w(r), which are rows. One after the other: memory is read in its order.
template <class Row, class Other>
HWY_INLINE void RowDots(const Row& v, Index rows, Index d_v, double* HWY_RESTRICT out, const Other& w) {
  const hn::ScalableTag<double> d;
  const Index N = static_cast<Index>(hn::Lanes(d));
  constexpr int kSums = 4;  // as many as hide the latency
  for (Index r = 0; r < rows; ++r) {
    const auto* row = v(r);
    const auto* other = w(r);
    hn::Vec<decltype(d)> sum[kSums];
#pragma GCC unroll 4
    for (int i = 0; i < kSums; ++i) sum[i] = hn::Zero(d);
    Index c = 0;
    for (; c + kSums * N <= d_v; c += kSums * N) {
#pragma GCC unroll 4
      for (int i = 0; i < kSums; ++i)
        sum[i] = hn::MulAdd(Wide(row + c + i * N), Wide(other + c + i * N), sum[i]);
    }
    double total = Total<double>(hn::Add(hn::Add(sum[0], sum[1]), hn::Add(sum[2], sum[3])));
    for (; c < d_v; ++c) total += static_cast<double>(row[c]) * static_cast<double>(other[c]);
    out[r] = total;
  }
}

template <class T>
HWY_NOINLINE void RowSquares(const T* v, Index rows, Index d_v, double* squares) {
  const auto row = [=](Index r) { return v + r * d_v; };
  RowDots(row, rows, d_v, squares, row);
}

template <class T>
HWY_NOINLINE void RowProducts(const T* v, const Index* which, const double* w, Index rows, Index d_v,
                              double* products) {
  RowDots([=](Index r) { return v + which[r] * d_v; }, rows, d_v, products, [=](Index) { return w; });
}

template <class T>
HWY_NOINLINE void AddWideRows(const T* HWY_RESTRICT v, const Index* which, const double* HWY_RESTRICT weights,
                              Index rows, Index d_v, double* HWY_RESTRICT sum) {
  const hn::ScalableTag<double> d;
  const Index N = static_cast<Index>(hn::Lanes(d));
  for (Index r = 0; r < rows; ++r) {
    const T* row = v + which[r] * d_v;
    const auto w = hn::Set(d, weights[r]);
    Index c = 0;
    for (; c + N <= d_v; c += N) hn::StoreU(hn::MulAdd(w, Wide(row + c), hn::LoadU(d, sum + c)), d, sum + c);
    for (; c < d_v; ++c) sum[c] += weights[r] * static_cast<double>(row[c]);
  }
}

template <class T>
HWY_NOINLINE void AddSquaredRows(const T* HWY_RESTRICT v, const Index* which, Index rows, Index d_v,
                                 double* HWY_RESTRICT sum) {
  const hn::ScalableTag<double> d;
  const Index N = static_cast<Index>(hn::Lanes(d));
  constexpr Index kAtOnce = 4;  // rows whose sums are loaded and stored once
  for (Index r = 0; r < rows; r += kAtOnce) {
    const Index end = std::min(r + kAtOnce, rows);
    Index c = 0;
    for (; c + N <= d_v; c += N) {
      auto s = hn::LoadU(d, sum + c);
      for (Index i = r; i < end; ++i) {
        const auto x = Wide(v + which[i] * d_v + c);
        s = hn::MulAdd(x, x, s);
      }
      hn::StoreU(s, d, sum + c);
    }
    for (; c < d_v; ++c)
      for (Index i = r; i < end; ++i) {
        const auto x = static_cast<double>(v[which[i] * d_v + c]);
        sum[c] += x * x;
      }
  }
}

ValueRowsSimd<float> ValueRowsSimdF32() {
  return {CentreRows,        AddWeightedRows, RowPairs<SquaredDifference>,
          RowPairs<Product>, RowSquares,      RowProducts,
          AddWideRows,       AddSquaredRows};
}
ValueRowsSimd<double> ValueRowsSimdF64() {
  return {CentreRows,        AddWeightedRows, RowPairs<SquaredDifference>,
          RowPairs<Product>, RowSquares,      RowProducts,
          AddWideRows,       AddSquaredRows};
}

}  // namespace kvreplay::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace kvreplay {

HWY_EXPORT(ValueRowsSimdF32);
HWY_EXPORT(ValueRowsSimdF64);
template <>
ValueRowsSimd<float> value_rows_simd() {
  return HWY_DYNAMIC_DISPATCH(ValueRowsSimdF32)();
}
template <>
ValueRowsSimd<double> value_rows_simd() {
  return HWY_DYNAMIC_DISPATCH(ValueRowsSimdF64)();
}

}  // namespace kvreplay
#endif
