#include "sim/simd/gram_simd.hpp"

#include <algorithm>

// The order of these is Highway's.
// clang-format off
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "sim/simd/gram_simd.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>
#include "sim/simd/panel_gemm-inl.hpp"
// clang-format on

HWY_BEFORE_NAMESPACE();
namespace kvreplay::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

HWY_INLINE void AddTo(const float* HWY_RESTRICT x, Index n, double* HWY_RESTRICT sums) {
  const hn::ScalableTag<double> d;
  const hn::Rebind<float, decltype(d)> half;
  for (Index at = 0; at < n; at += static_cast<Index>(hn::Lanes(d)))
    hn::StoreU(hn::Add(hn::LoadU(d, sums + at), hn::PromoteTo(d, hn::LoadU(half, x + at))), d, sums + at);
}
HWY_INLINE void AddTo(const double* HWY_RESTRICT x, Index n, double* HWY_RESTRICT sums) {
  const hn::ScalableTag<double> d;
  for (Index at = 0; at < n; at += static_cast<Index>(hn::Lanes(d)))
    hn::StoreU(hn::Add(hn::LoadU(d, sums + at), hn::LoadU(d, x + at)), d, sums + at);
}

template <class T>
HWY_NOINLINE void PackRows(const ListedRows<T>& rows, T* HWY_RESTRICT panels) {
  const hn::ScalableTag<T> d;
  const Index N = static_cast<Index>(hn::Lanes(d));
  constexpr Index W = kPanelWidth<T>;
  const Index whole = rows.d / W, rest = rows.d % W;
  for (Index r = 0; r < rows.n; ++r) {
    const T* HWY_RESTRICT from = rows.x + rows.rows[r] * rows.d;
    for (Index j = 0; j < whole; ++j)
      for (Index c = 0; c < W; c += N)
        hn::StoreU(hn::LoadU(d, from + j * W + c), d, panels + (j * rows.n + r) * W + c);
    if (rest == 0) continue;
    T* last = panels + (whole * rows.n + r) * W;
    std::fill(std::copy_n(from + whole * W, rest, last), last + W, T{0});
  }
}

/// Fetches the rows of a list, a line at a time: many at once would hold up the product's own loads.
template <class T>
class Fetch {
 public:
  explicit Fetch(const ListedRows<T>& rows) : rows_(rows) {}
  HWY_INLINE void Line() {
    if (at_ == rows_.n) return;
    __builtin_prefetch(rows_.x + rows_.rows[at_] * rows_.d + c_, 0, 2);
    c_ += 64 / static_cast<Index>(sizeof(T));
    if (c_ < rows_.d) return;
    c_ = 0;
    ++at_;
  }

 private:
  ListedRows<T> rows_;
  Index at_ = 0, c_ = 0;
};

inline constexpr Index kRowsPerLine = 2;  // of a product, between two lines fetched

/// block [MR][W] := A^T B, A being MR columns of a panel [rows][W] and B a whole one.
template <int MR, class T>
HWY_INLINE void BlockRows(const T* HWY_RESTRICT a, const T* HWY_RESTRICT b, Index rows, Fetch<T>& fetch,
                          T* HWY_RESTRICT block) {
  const hn::ScalableTag<T> d;
  const Index N = static_cast<Index>(hn::Lanes(d));
  constexpr Index W = kPanelWidth<T>;
  for (Index n = 0; n < W; n += 2 * N) {
    hn::Vec<decltype(d)> sum[MR][2];
#pragma GCC unroll 16
    for (int r = 0; r < MR; ++r) sum[r][0] = sum[r][1] = hn::Zero(d);
    for (Index k = 0; k < rows; ++k) {
      if (k % kRowsPerLine == 0) fetch.Line();
      const auto b0 = hn::LoadU(d, b + k * W + n), b1 = hn::LoadU(d, b + k * W + n + N);
#pragma GCC unroll 16
      for (int r = 0; r < MR; ++r) {
        const auto x = hn::Set(d, a[k * W + r]);
        sum[r][0] = hn::MulAdd(x, b0, sum[r][0]);
        sum[r][1] = hn::MulAdd(x, b1, sum[r][1]);
      }
    }
#pragma GCC unroll 16
    for (int r = 0; r < MR; ++r) {
      hn::StoreU(sum[r][0], d, block + r * W + n);
      hn::StoreU(sum[r][1], d, block + r * W + n + N);
    }
  }
}

// Rows of a diagonal block worked on at once, against one vector: they divide W.
#if HWY_TARGET <= HWY_AVX3
inline constexpr int kRowsOnDiagonal = 16;
#else
inline constexpr int kRowsOnDiagonal = 8;
#endif

/// block [W][W]: X^T X of one panel, on and above the diagonal; what lies a vector or more below it is left
/// as it is.
template <class T>
HWY_INLINE void DiagonalBlock(const T* HWY_RESTRICT x, Index rows, Fetch<T>& fetch, T* HWY_RESTRICT block) {
  const hn::ScalableTag<T> d;
  const Index N = static_cast<Index>(hn::Lanes(d));
  constexpr Index W = kPanelWidth<T>;
  for (Index n = 0; n < W; n += N)
    for (Index m = 0; m < n + N; m += kRowsOnDiagonal) {
      hn::Vec<decltype(d)> sum[kRowsOnDiagonal];
#pragma GCC unroll 16
      for (int r = 0; r < kRowsOnDiagonal; ++r) sum[r] = hn::Zero(d);
      for (Index k = 0; k < rows; ++k) {
        if (k % kRowsPerLine == 0) fetch.Line();
        const auto b = hn::LoadU(d, x + k * W + n);
#pragma GCC unroll 16
        for (int r = 0; r < kRowsOnDiagonal; ++r)
          sum[r] = hn::MulAdd(hn::Set(d, x[k * W + m + r]), b, sum[r]);
      }
#pragma GCC unroll 16
      for (int r = 0; r < kRowsOnDiagonal; ++r) hn::StoreU(sum[r], d, block + (m + r) * W + n);
    }
}

template <class T>
HWY_NOINLINE void AddGram(const T* panels, Index rows, Index d, double* blocks, const ListedRows<T>& next) {
  constexpr Index W = kPanelWidth<T>;
  HWY_ALIGN T block[W * W], diagonal[W * W] = {};
  constexpr Index kRows = kRowsAtOnce, kLast = W % kRows;
  const Index n = panels_of<T>(d);
  Fetch<T> fetch(next);
  for (Index j = 0; j < n; ++j) {
    const T* b = panels + j * rows * W;
    for (Index i = 0; i < j; ++i) {
      const T* a = panels + i * rows * W;
      for (Index m = 0; m + kRows <= W; m += kRows) BlockRows<kRows>(a + m, b, rows, fetch, block + m * W);
      if constexpr (kLast > 0) BlockRows<kLast>(a + W - kLast, b, rows, fetch, block + (W - kLast) * W);
      AddTo(block, W * W, blocks + gram_block<T>(i, j));
    }
    DiagonalBlock(b, rows, fetch, diagonal);
    AddTo(diagonal, W * W, blocks + gram_block<T>(j, j));
  }
}

#define KVREPLAY_GRAM(T, Suffix)                                                                          \
  void PackRows##Suffix(const ListedRows<T>& rows, T* panels) { PackRows(rows, panels); }                 \
  void AddGram##Suffix(const T* panels, Index rows, Index d, double* blocks, const ListedRows<T>& next) { \
    AddGram(panels, rows, d, blocks, next);                                                               \
  }
KVREPLAY_GRAM(float, F32)
KVREPLAY_GRAM(double, F64)
#undef KVREPLAY_GRAM

}  // namespace kvreplay::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace kvreplay {

#define KVREPLAY_GRAM(T, Suffix)                                                                   \
  HWY_EXPORT(PackRows##Suffix);                                                                    \
  HWY_EXPORT(AddGram##Suffix);                                                                     \
  template <>                                                                                      \
  void pack_rows(const ListedRows<T>& rows, T* panels) {                                           \
    HWY_DYNAMIC_DISPATCH(PackRows##Suffix)(rows, panels);                                          \
  }                                                                                                \
  template <>                                                                                      \
  void add_gram(const T* panels, Index rows, Index d, double* blocks, const ListedRows<T>& next) { \
    HWY_DYNAMIC_DISPATCH(AddGram##Suffix)(panels, rows, d, blocks, next);                          \
  }
KVREPLAY_GRAM(float, F32)
KVREPLAY_GRAM(double, F64)
#undef KVREPLAY_GRAM

}  // namespace kvreplay
#endif
