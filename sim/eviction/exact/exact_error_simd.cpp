#include "sim/eviction/exact/exact_error_simd.hpp"

#include <algorithm>
#include <cstddef>
#include <limits>

// The order of these is Highway's.
// clang-format off
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "sim/eviction/exact/exact_error_simd.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>
#include <hwy/cache_control.h>
// clang-format on

HWY_BEFORE_NAMESPACE();
namespace kvreplay::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

using Lanes = hn::CappedTag<double, kErrorPad>;
using Vec = hn::Vec<Lanes>;

HWY_INLINE double Total(Vec sum) { return hn::GetLane(hn::SumOfLanes(Lanes(), sum)); }

/// R rows at once: a row alone would wait for each of its multiply-adds.
template <int R>
HWY_INLINE void DotsOfRows(const double* HWY_RESTRICT rows, Index width, const double* HWY_RESTRICT x,
                           double* HWY_RESTRICT out) {
  const Lanes d;
  const Index N = static_cast<Index>(hn::Lanes(d));
  Vec sum[R];
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r) sum[r] = hn::Zero(d);
  for (Index c = 0; c < width; c += N) {
    const auto y = hn::LoadU(d, x + c);
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) sum[r] = hn::MulAdd(hn::LoadU(d, rows + r * width + c), y, sum[r]);
  }
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r) out[r] = Total(sum[r]);
}

HWY_NOINLINE void RowDots(const double* rows, Index n, Index width, const double* x, double* out) {
  Index r = 0;
  for (; r + 8 <= n; r += 8) DotsOfRows<8>(rows + r * width, width, x, out + r);
  for (; r < n; ++r) DotsOfRows<1>(rows + r * width, width, x, out + r);
}

HWY_NOINLINE void OutputTermsOf(const OutputVectors& vectors, Index begin, Index end, Index width,
                                const double* all_x, const double* all_centre, Index step, bool store,
                                OutputTerms* terms) {
  const Lanes d;
  const Index N = static_cast<Index>(hn::Lanes(d));
  for (Index r = begin; r < end; ++r) {
    OutputTerms& t = terms[r];
    const double* HWY_RESTRICT x = all_x + r * step;
    const double* HWY_RESTRICT centre = all_centre + r * step;
    const double* HWY_RESTRICT out = vectors.out + r * width;
    double* HWY_RESTRICT rest_sum = vectors.rest + r * width;
    double* HWY_RESTRICT removed_sum = vectors.removed + r * width;
    double* HWY_RESTRICT current_out = vectors.current + r * width;
    double* HWY_RESTRICT change_out = vectors.change + r * width;
    const double* HWY_RESTRICT top_value = t.top_value;
    const Vec rest_add = hn::Set(d, t.rest_add), removed_add = hn::Set(d, t.removed_add);
    const Vec inv_rest = hn::Set(d, t.inv_rest), alone = hn::Set(d, t.alone), top = hn::Set(d, t.top_weight);
    const Vec by_out = hn::Set(d, t.by_out), by_removed = hn::Set(d, t.by_removed),
              by_current = hn::Set(d, t.by_current);
    Vec current_sq = hn::Zero(d), change_current = current_sq, change_sq = current_sq, top_error = current_sq;
    for (Index c = 0; c < width; c += N) {
      const Vec x_c = hn::LoadU(d, x + c);
      const Vec rest = hn::MulAdd(rest_add, x_c, hn::LoadU(d, rest_sum + c));
      const Vec removed = hn::MulAdd(removed_add, x_c, hn::LoadU(d, removed_sum + c));
      if (store) {
        hn::StoreU(rest, d, rest_sum + c);
        hn::StoreU(removed, d, removed_sum + c);
      }
      const Vec others = hn::NegMulAdd(alone, hn::LoadU(d, centre + c), hn::Mul(rest, inv_rest));
      const Vec to_top = hn::Mul(top, hn::Sub(hn::LoadU(d, top_value + c), others));
      const Vec current = hn::Add(others, to_top);
      Vec change = hn::MulAdd(by_out, hn::LoadU(d, out + c), hn::Mul(by_removed, removed));
      change = hn::MulAdd(by_current, current, change);
      hn::StoreU(current, d, current_out + c);
      hn::StoreU(change, d, change_out + c);
      current_sq = hn::MulAdd(current, current, current_sq);
      change_current = hn::MulAdd(change, current, change_current);
      change_sq = hn::MulAdd(change, change, change_sq);
      // ||D - t||^2 - ||D||^2 = t . (t - 2 D)
      top_error = hn::MulAdd(to_top, hn::Sub(to_top, hn::Add(change, change)), top_error);
    }
    t.current_sq = Total(current_sq);
    t.change_current = Total(change_current);
    t.change_sq = Total(change_sq);
    t.top_error = Total(top_error);
  }
}

/// A vector of columns over all rows.
struct Change {
  Vec sum, extent;
  HWY_INLINE Change() : sum(hn::Zero(Lanes())), extent(sum) {}

  /// One row, at the vector of columns that starts at `entries`.
  HWY_INLINE void Add(const ErrorRow& t, Vec x_dot, Vec value_sq, bool store, double* HWY_RESTRICT entries) {
    const Lanes d;
    const Vec one = hn::Set(d, 1.0);
    const Vec u = hn::MulAdd(hn::Set(d, t.add), x_dot, hn::LoadU(d, entries + kSum * kErrorBlock));
    if (store) hn::StoreU(u, d, entries + kSum * kErrorBlock);
    const Vec out = hn::LoadU(d, entries + kOut * kErrorBlock);
    const Vec su = hn::Mul(hn::Set(d, t.s), u);
    const Vec linear = hn::NegMulAdd(hn::Set(d, t.by_out), out, hn::Add(hn::Set(d, t.d_out), su));
    const Vec squares = hn::Add(hn::Set(d, t.out_sq), value_sq);
    Vec square = hn::NegMulAdd(hn::Set(d, t.cur_out), out, hn::Add(squares, su));
    square = hn::Max(square, hn::Zero(d));
    const Vec a = hn::Mul(hn::LoadU(d, entries + kWeight * kErrorBlock), hn::Set(d, t.weight));
    const Vec c = hn::Div(a, hn::Sub(one, a));
    sum = hn::MulAdd(c, hn::MulAdd(c, square, linear), sum);
    extent = hn::MulAdd(hn::Mul(c, c), squares, extent);
  }
};

template <bool kOfRow>
HWY_INLINE void ErrorChangesOf(double* HWY_RESTRICT blocks, Index n_blocks, Index rows,
                               const ErrorRow* HWY_RESTRICT terms, bool store, const ErrorColumns& columns) {
  const Lanes d;
  const Index N = static_cast<Index>(hn::Lanes(d));
  for (Index b = 0; b < n_blocks; ++b) {
    for (Index n = 0; n < kErrorBlock; n += 2 * N) {
      const Index p = b * kErrorBlock + n;
      const Index first = kOfRow ? b * rows * kErrorBlock + n : p;
      const double *HWY_RESTRICT x_dot = columns.x_dot + first,
                                 *HWY_RESTRICT value_sq = columns.value_sq + first;
      Vec x_lo = hn::LoadU(d, x_dot), x_hi = hn::LoadU(d, x_dot + N), sq_lo = hn::LoadU(d, value_sq),
          sq_hi = hn::LoadU(d, value_sq + N);
      Change lo, hi;
      double* entries = blocks + b * rows * kErrorEntries * kErrorBlock + n;
      for (Index r = 0; r < rows; ++r, entries += kErrorEntries * kErrorBlock) {
        if constexpr (kOfRow) {
          x_lo = hn::LoadU(d, x_dot + r * kErrorBlock);
          x_hi = hn::LoadU(d, x_dot + r * kErrorBlock + N);
          sq_lo = hn::LoadU(d, value_sq + r * kErrorBlock);
          sq_hi = hn::LoadU(d, value_sq + r * kErrorBlock + N);
        }
        lo.Add(terms[r], x_lo, sq_lo, store, entries);
        hi.Add(terms[r], x_hi, sq_hi, store, entries + N);
      }
      hn::StoreU(lo.sum, d, columns.change + p);
      hn::StoreU(hi.sum, d, columns.change + p + N);
      hn::StoreU(lo.extent, d, columns.extent + p);
      hn::StoreU(hi.extent, d, columns.extent + p + N);
    }
  }
}

HWY_NOINLINE void ErrorChanges(double* blocks, Index n, Index rows, const ErrorRow* terms, bool store,
                               const ErrorColumns& columns) {
  if (columns.of_row)
    ErrorChangesOf<true>(blocks, n, rows, terms, store, columns);
  else
    ErrorChangesOf<false>(blocks, n, rows, terms, store, columns);
}

/// R rows at once, as DotsOfRows().
template <int R>
HWY_INLINE void AddMovesTo(double* HWY_RESTRICT block, Index rows, Index moves,
                           const double* HWY_RESTRICT added, const double* HWY_RESTRICT x_dots) {
  const Lanes d;
  const Index N = static_cast<Index>(hn::Lanes(d));
  constexpr Index kRow = kErrorEntries * kErrorBlock;
  for (Index n = 0; n < kErrorBlock; n += 2 * N) {
    double* HWY_RESTRICT sums = block + kSum * kErrorBlock + n;
    Vec lo[R], hi[R];
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) {
      lo[r] = hn::LoadU(d, sums + r * kRow);
      hi[r] = hn::LoadU(d, sums + r * kRow + N);
    }
    for (Index m = 0; m < moves; ++m) {
      const Vec x_lo = hn::LoadU(d, x_dots + m * kErrorBlock + n),
                x_hi = hn::LoadU(d, x_dots + m * kErrorBlock + n + N);
#pragma GCC unroll 8
      for (int r = 0; r < R; ++r) {
        const Vec add = hn::Set(d, added[m * rows + r]);
        lo[r] = hn::MulAdd(add, x_lo, lo[r]);
        hi[r] = hn::MulAdd(add, x_hi, hi[r]);
      }
    }
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) {
      hn::StoreU(lo[r], d, sums + r * kRow);
      hn::StoreU(hi[r], d, sums + r * kRow + N);
    }
  }
}

/// Sums are a third of what they lie among, which is not in a cache by the time that they are asked for.
HWY_INLINE void PrefetchSums(const double* row) {
  for (Index c = 0; c < kErrorBlock; c += 8) hwy::Prefetch(row + kSum * kErrorBlock + c);
}

HWY_NOINLINE void AddMoves(double* block, Index rows, Index moves, const double* added,
                           const double* x_dots) {
  constexpr Index kRow = kErrorEntries * kErrorBlock, kAhead = 16;
  Index r = 0;
  for (Index ahead = 0; ahead < std::min(kAhead, rows); ++ahead) PrefetchSums(block + ahead * kRow);
  for (; r + 4 <= rows; r += 4) {
    for (Index next = r + kAhead; next < std::min(r + kAhead + 4, rows); ++next)
      PrefetchSums(block + next * kRow);
    AddMovesTo<4>(block + r * kRow, rows, moves, added + r, x_dots);
  }
  for (; r < rows; ++r) AddMovesTo<1>(block + r * kRow, rows, moves, added + r, x_dots);
}

using FloatLanes = hn::CappedTag<float, kErrorPad>;
using FloatVec = hn::Vec<FloatLanes>;

/// A vector of columns over some rows of a pass.
struct CoarseChange {
  FloatVec sum, extent;
  HWY_INLINE CoarseChange() : sum(hn::Zero(FloatLanes())), extent(sum) {}

  HWY_INLINE void Add(const CoarseRow& t, FloatVec value_sq, const float* HWY_RESTRICT entries,
                      float* HWY_RESTRICT slopes, FloatVec& largest) {
    const FloatLanes d;
    const FloatVec out = hn::LoadU(d, entries + kOut * kErrorBlock);
    const FloatVec su = hn::Mul(hn::Set(d, t.s), hn::LoadU(d, entries + kSum * kErrorBlock));
    const FloatVec lin = hn::NegMulAdd(hn::Set(d, t.by_out), out, hn::Add(hn::Set(d, t.d_out), su));
    const FloatVec squares = hn::Add(hn::Set(d, t.out_sq), value_sq);
    const FloatVec products = hn::NegMulAdd(hn::Set(d, t.cur_out), out, su);  // -2 o . v
    const FloatVec sq = hn::Add(squares, products);
    const FloatVec a = hn::Mul(hn::LoadU(d, entries + kWeight * kErrorBlock), hn::Set(d, t.weight));
    const FloatVec c = hn::Div(a, hn::Sub(hn::Set(d, 1.0F), a));
    sum = hn::MulAdd(c, hn::MulAdd(c, sq, lin), sum);
    extent = hn::MulAdd(c, hn::MulAdd(c, hn::Set(d, t.sq_bound), hn::Set(d, t.lin_bound)), extent);
    const FloatVec growth = hn::MulAdd(c, c, c);
    hn::StoreU(growth, d, slopes + kGrowth * kErrorBlock);
    hn::StoreU(hn::Mul(growth, hn::Add(hn::MulAdd(hn::Add(c, c), sq, lin), products)), d,
               slopes + kSlope * kErrorBlock);
    largest = hn::Max(largest, c);
  }
};

/// Entries of a row and a block in float32, those of products in `unit`. Evicted columns, which nothing looks
/// at, may have less than float32 knows (kAllWeight).
HWY_INLINE void NarrowEntries(const double* HWY_RESTRICT entries, double unit, float* HWY_RESTRICT narrow) {
  const Lanes wide;
  const hn::Rebind<float, Lanes> d;
  const Index N = static_cast<Index>(hn::Lanes(wide));
  for (Index c = 0; c < kErrorBlock; c += N) {
    const Vec weight = hn::Max(hn::LoadU(wide, entries + kWeight * kErrorBlock + c), hn::Set(wide, -1e30));
    hn::StoreU(hn::DemoteTo(d, weight), d, narrow + kWeight * kErrorBlock + c);
    for (const ErrorEntry which : {kOut, kSum}) {
      const Vec product = hn::Mul(hn::LoadU(wide, entries + which * kErrorBlock + c), hn::Set(wide, unit));
      hn::StoreU(hn::DemoteTo(d, product), d, narrow + which * kErrorBlock + c);
    }
  }
}

/// to [N] += x.
HWY_INLINE void AddWide(FloatVec x, double* HWY_RESTRICT to) {
  const Lanes wide;
  const hn::Rebind<float, Lanes> narrow;
  const Index N = static_cast<Index>(hn::Lanes(wide));
  HWY_ALIGN float lanes[kErrorPad];
  hn::StoreU(x, FloatLanes(), lanes);
  for (Index n = 0; n < static_cast<Index>(hn::Lanes(FloatLanes())); n += N)
    hn::StoreU(hn::Add(hn::LoadU(wide, to + n), hn::PromoteTo(wide, hn::LoadU(narrow, lanes + n))), wide,
               to + n);
}

HWY_NOINLINE void CoarsePass(const double* HWY_RESTRICT blocks, Index n_blocks, Index rows,
                             const CoarseRow* HWY_RESTRICT terms, double unit, const CoarseColumns& columns) {
  constexpr Index kRowsAtOnce = 16, kEntries = kErrorEntries * kErrorBlock;
  const FloatLanes d;
  const Index N = static_cast<Index>(hn::Lanes(d));
  HWY_ALIGN float narrow[kRowsAtOnce * kEntries];
  std::fill_n(columns.change, n_blocks * kErrorBlock, 0.0);
  std::fill_n(columns.extent, n_blocks * kErrorBlock, 0.0);
  std::fill_n(columns.largest_weight, n_blocks * kErrorBlock, 0.0F);
  for (Index b = 0; b < n_blocks; ++b)
    for (Index first = 0; first < rows; first += kRowsAtOnce) {
      const Index n_rows = std::min(kRowsAtOnce, rows - first), row = b * rows + first;
      for (Index r = 0; r < n_rows; ++r)
        NarrowEntries(blocks + (row + r) * kEntries, unit, narrow + r * kEntries);
      for (Index n = 0; n < kErrorBlock; n += 2 * N) {
        const Index p = b * kErrorBlock + n;
        const FloatVec sq_lo = hn::LoadU(d, columns.value_sq + p),
                       sq_hi = hn::LoadU(d, columns.value_sq + p + N);
        FloatVec most_lo = hn::LoadU(d, columns.largest_weight + p),
                 most_hi = hn::LoadU(d, columns.largest_weight + p + N);
        CoarseChange lo, hi;
        float* slopes = columns.slopes + row * kSlopeEntries * kErrorBlock + n;
        for (Index r = 0; r < n_rows; ++r, slopes += kSlopeEntries * kErrorBlock) {
          lo.Add(terms[first + r], sq_lo, narrow + r * kEntries + n, slopes, most_lo);
          hi.Add(terms[first + r], sq_hi, narrow + r * kEntries + n + N, slopes + N, most_hi);
        }
        hn::StoreU(most_lo, d, columns.largest_weight + p);
        hn::StoreU(most_hi, d, columns.largest_weight + p + N);
        AddWide(lo.sum, columns.change + p);
        AddWide(hi.sum, columns.change + p + N);
        AddWide(lo.extent, columns.extent + p);
        AddWide(hi.extent, columns.extent + p + N);
      }
    }
}

HWY_NOINLINE void FollowChanges(const float* HWY_RESTRICT slopes, Index n_blocks, Index rows,
                                const FollowedRow* HWY_RESTRICT terms, const float* HWY_RESTRICT values,
                                Index width, const float* HWY_RESTRICT x, double* HWY_RESTRICT change,
                                double* HWY_RESTRICT left_out) {
  const FloatLanes d;
  const Index N = static_cast<Index>(hn::Lanes(d));
  std::fill_n(left_out, n_blocks * kErrorBlock, 0.0);
  for (Index b = 0; b < n_blocks; ++b)
    for (Index n = 0; n < kErrorBlock; n += 2 * N) {
      const Index p = b * kErrorBlock + n;
      // Each its own chain of multiply-adds, as many as are in flight at once.
      FloatVec sum_lo = hn::Zero(d), sum_hi = sum_lo, slope_lo = sum_lo, slope_hi = sum_lo, by_x_lo = sum_lo,
               by_x_hi = sum_lo, rest_lo = sum_lo, rest_hi = sum_lo;
      const float* entries = slopes + b * rows * kSlopeEntries * kErrorBlock + n;
      for (Index r = 0; r < rows; ++r, entries += kSlopeEntries * kErrorBlock) {
        const FloatVec k_lo = hn::LoadU(d, entries + kGrowth * kErrorBlock),
                       k_hi = hn::LoadU(d, entries + kGrowth * kErrorBlock + N);
        const FloatVec by_growth = hn::Set(d, terms[r].by_growth), by_x = hn::Set(d, terms[r].by_x),
                       by_slope = hn::Set(d, terms[r].by_slope), rest = hn::Set(d, terms[r].left_out);
        sum_lo = hn::MulAdd(k_lo, by_growth, sum_lo);
        sum_hi = hn::MulAdd(k_hi, by_growth, sum_hi);
        by_x_lo = hn::MulAdd(k_lo, by_x, by_x_lo);
        by_x_hi = hn::MulAdd(k_hi, by_x, by_x_hi);
        slope_lo = hn::MulAdd(hn::LoadU(d, entries + kSlope * kErrorBlock), by_slope, slope_lo);
        slope_hi = hn::MulAdd(hn::LoadU(d, entries + kSlope * kErrorBlock + N), by_slope, slope_hi);
        rest_lo = hn::MulAdd(k_lo, rest, rest_lo);
        rest_hi = hn::MulAdd(k_hi, rest, rest_hi);
      }
      constexpr int kChains = 4;
      FloatVec dot_lo[kChains], dot_hi[kChains];
#pragma GCC unroll 4
      for (int i = 0; i < kChains; ++i) dot_lo[i] = dot_hi[i] = hn::Zero(d);
      const float* HWY_RESTRICT v = values + b * width * kErrorBlock + n;
      for (Index k = 0; k < width; k += kChains, v += kChains * kErrorBlock)
#pragma GCC unroll 4
        for (int i = 0; i < kChains; ++i) {
          dot_lo[i] = hn::MulAdd(hn::Set(d, x[k + i]), hn::LoadU(d, v + i * kErrorBlock), dot_lo[i]);
          dot_hi[i] = hn::MulAdd(hn::Set(d, x[k + i]), hn::LoadU(d, v + i * kErrorBlock + N), dot_hi[i]);
        }
      const auto all = [](const FloatVec* dots)
                           HWY_ATTR { return hn::Add(hn::Add(dots[0], dots[1]), hn::Add(dots[2], dots[3])); };
      AddWide(hn::MulAdd(by_x_lo, all(dot_lo), hn::Add(sum_lo, slope_lo)), change + p);
      AddWide(hn::MulAdd(by_x_hi, all(dot_hi), hn::Add(sum_hi, slope_hi)), change + p + N);
      AddWide(rest_lo, left_out + p);
      AddWide(rest_hi, left_out + p + N);
    }
}

HWY_NOINLINE double CoarseBounds(const CoarseDoubt& doubt, const CoarseFound& found, Index of,
                                 double* HWY_RESTRICT own) {
  const Lanes d;
  const hn::Rebind<float, Lanes> narrow;
  const Index N = static_cast<Index>(hn::Lanes(d));
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  Vec least = hn::Set(d, kInfinity);
  const Vec most = hn::Set(d, std::numeric_limits<double>::max());
  Index told = 0;
  for (Index c = 0; c < of; c += N) {
    const Vec extent = hn::LoadU(d, found.extent + c),
              root = hn::Sqrt(hn::Mul(hn::Set(d, doubt.error), extent));
    const Vec wide = hn::Mul(hn::Set(d, doubt.wide), hn::Add(extent, root));
    const Vec rounded = hn::Add(hn::MulAdd(hn::Set(d, doubt.eps), extent, wide), hn::Set(d, doubt.lost));
    const Vec weight = hn::PromoteTo(d, hn::LoadU(narrow, found.largest_weight + c));
    const Vec times =
        hn::IfThenElse(hn::Gt(weight, hn::Set(d, 1.0 / 16)), hn::Set(d, 256.0), hn::Set(d, 1.0));
    const Vec doubted = hn::MulAdd(times, hn::LoadU(d, found.left_out + c), rounded);
    const Vec at_most = hn::Add(hn::LoadU(d, found.change + c), doubted);
    const auto seen = hn::FirstN(d, static_cast<std::size_t>(of - c));
    hn::StoreU(doubted, d, own + c);
    told += static_cast<Index>(hn::CountTrue(d, hn::And(seen, hn::Lt(at_most, most))));
    least = hn::Min(least, hn::IfThenElse(seen, at_most, hn::Set(d, kInfinity)));
  }
  return told == of ? hn::GetLane(hn::MinOfLanes(d, least)) : kInfinity;
}

HWY_NOINLINE void Differences(const double* HWY_RESTRICT current, const double* HWY_RESTRICT change, Index n,
                              Index width, const double* all_v, Index step, double* HWY_RESTRICT change_dot,
                              double* HWY_RESTRICT square) {
  const Lanes d;
  const Index N = static_cast<Index>(hn::Lanes(d));
  for (Index r = 0; r < n; ++r) {
    const double* HWY_RESTRICT v = all_v + r * step;
    Vec dot = hn::Zero(d), sq = dot;
    for (Index c = 0; c < width; c += N) {
      const Vec difference = hn::Sub(hn::LoadU(d, current + r * width + c), hn::LoadU(d, v + c));
      dot = hn::MulAdd(hn::LoadU(d, change + r * width + c), difference, dot);
      sq = hn::MulAdd(difference, difference, sq);
    }
    change_dot[r] = Total(dot);
    square[r] = Total(sq);
  }
}

}  // namespace kvreplay::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace kvreplay {

HWY_EXPORT(RowDots);
HWY_EXPORT(AddMoves);
HWY_EXPORT(CoarsePass);
HWY_EXPORT(FollowChanges);
HWY_EXPORT(CoarseBounds);
HWY_EXPORT(OutputTermsOf);
HWY_EXPORT(ErrorChanges);
HWY_EXPORT(Differences);

void row_dots(const double* rows, Index n, Index width, const double* x, double* out) {
  HWY_DYNAMIC_DISPATCH(RowDots)(rows, n, width, x, out);
}
void add_moves(double* block, Index rows, Index moves, const double* added, const double* x_dots) {
  HWY_DYNAMIC_DISPATCH(AddMoves)(block, rows, moves, added, x_dots);
}
void coarse_pass(const double* blocks, Index n, Index rows, const CoarseRow* terms, double unit,
                 const CoarseColumns& columns) {
  HWY_DYNAMIC_DISPATCH(CoarsePass)(blocks, n, rows, terms, unit, columns);
}
void follow_changes(const float* slopes, Index n, Index rows, const FollowedRow* terms, const float* values,
                    Index width, const float* x, double* change, double* left_out) {
  HWY_DYNAMIC_DISPATCH(FollowChanges)(slopes, n, rows, terms, values, width, x, change, left_out);
}
double coarse_bounds(const CoarseDoubt& doubt, const CoarseFound& found, Index of, double* own) {
  return HWY_DYNAMIC_DISPATCH(CoarseBounds)(doubt, found, of, own);
}
void output_terms(const OutputVectors& vectors, Index begin, Index end, Index width, const double* x,
                  const double* centre, Index step, bool store, OutputTerms* terms) {
  HWY_DYNAMIC_DISPATCH(OutputTermsOf)(vectors, begin, end, width, x, centre, step, store, terms);
}
void error_changes(double* blocks, Index n, Index rows, const ErrorRow* terms, bool store,
                   const ErrorColumns& columns) {
  HWY_DYNAMIC_DISPATCH(ErrorChanges)(blocks, n, rows, terms, store, columns);
}
void differences(const double* current, const double* change, Index n, Index width, const double* v,
                 Index step, double* change_dot, double* square) {
  HWY_DYNAMIC_DISPATCH(Differences)(current, change, n, width, v, step, change_dot, square);
}

}  // namespace kvreplay
#endif
