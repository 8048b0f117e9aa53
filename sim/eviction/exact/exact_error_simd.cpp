#include "sim/eviction/exact/exact_error_simd.hpp"

// The order of these is Highway's.
// clang-format off
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "sim/eviction/exact/exact_error_simd.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>
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
    const Vec y = hn::LoadU(d, x + c);
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
HWY_EXPORT(OutputTermsOf);
HWY_EXPORT(ErrorChanges);
HWY_EXPORT(Differences);

void row_dots(const double* rows, Index n, Index width, const double* x, double* out) {
  HWY_DYNAMIC_DISPATCH(RowDots)(rows, n, width, x, out);
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
