#include "sim/simd/softmax_exp.hpp"

#include <algorithm>
#include <iterator>

// The order of these is Highway's.
// clang-format off
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "sim/simd/softmax_exp.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>
#include "sim/simd/pack-inl.hpp"
// clang-format on

HWY_BEFORE_NAMESPACE();
namespace kvreplay::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

template <class T>
void SoftmaxExp(const T* HWY_RESTRICT z, const Index* HWY_RESTRICT which, Index n,
                const T* HWY_RESTRICT offset, const T* HWY_RESTRICT shift, T* HWY_RESTRICT e) {
  using D = hn::ScalableTag<T>;
  constexpr Index W = kPanelWidth<T>;
  const PackOps<D> on{D()};
  for (Index j = 0; j < n; ++j)
    for (Index r = 0; r < W; r += 2 * on.N)
      on.Store(on.SoftmaxExp(on.Load(z + which[j] * W + r) + (on.Set(offset[j]) - on.Load(shift + r))),
               e + j * W + r);
}

void SoftmaxExpInPlace(double* HWY_RESTRICT z, Index n, double shift) {
  using D = hn::ScalableTag<double>;
  const PackOps<D> on{D()};
  const auto exp_at = [&](double* at) { on.Store(on.SoftmaxExp(on.Load(at) - on.Set(shift)), at); };
  Index i = 0;
  for (; i + 2 * on.N <= n; i += 2 * on.N) exp_at(z + i);
  if (i == n) return;
  double rest[2 * hn::MaxLanes(D())];
  std::fill(std::copy(z + i, z + n, rest), std::end(rest), shift);
  exp_at(rest);
  std::copy_n(rest, n - i, z + i);
}

void SoftmaxExpF32(const float* z, const Index* which, Index n, const float* offset, const float* shift,
                   float* e) {
  SoftmaxExp(z, which, n, offset, shift, e);
}
void SoftmaxExpF64(const double* z, const Index* which, Index n, const double* offset, const double* shift,
                   double* e) {
  SoftmaxExp(z, which, n, offset, shift, e);
}

}  // namespace kvreplay::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace kvreplay {

HWY_EXPORT(SoftmaxExpF32);
HWY_EXPORT(SoftmaxExpF64);
HWY_EXPORT(SoftmaxExpInPlace);

void softmax_exp(const float* z, const Index* which, Index n, const float* offset, const float* shift,
                 float* e) {
  HWY_DYNAMIC_DISPATCH(SoftmaxExpF32)(z, which, n, offset, shift, e);
}
void softmax_exp(const double* z, const Index* which, Index n, const double* offset, const double* shift,
                 double* e) {
  HWY_DYNAMIC_DISPATCH(SoftmaxExpF64)(z, which, n, offset, shift, e);
}
void softmax_exp(double* z, Index n, double shift) { HWY_DYNAMIC_DISPATCH(SoftmaxExpInPlace)(z, n, shift); }

}  // namespace kvreplay
#endif
