// Included once per target by Highway's foreach_target; see https://google.github.io/highway.
#if defined(KVREPLAY_SIMD_EXP_INL_HPP) == defined(HWY_TARGET_TOGGLE)
#ifdef KVREPLAY_SIMD_EXP_INL_HPP
#undef KVREPLAY_SIMD_EXP_INL_HPP
#else
#define KVREPLAY_SIMD_EXP_INL_HPP
#endif

#include <hwy/contrib/math/math-inl.h>
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace kvreplay::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

/// exp(x) for x <= about 1, as a softmax needs it: exactly 0 for -inf. In float: 0 below -87, relative error
/// 2e-7.
template <class D>
HWY_INLINE hn::Vec<D> SoftmaxExp(D d, hn::Vec<D> x) {
  if constexpr (sizeof(hn::TFromD<D>) == 8) {
    return hn::Exp(d, x);
  } else {
    // x = n ln2 + r, |r| <= ln2 / 2: adding 1.5 * 2^23 rounds x / ln2 to the integer n and leaves n in the
    // low bits.
    const hn::RebindToSigned<D> di;
    const auto magic = hn::Set(d, 12582912.0f);
    const auto shifted = hn::MulAdd(x, hn::Set(d, 1.44269504f), magic);
    const auto n = hn::Sub(shifted, magic);
    const auto r = hn::NegMulAdd(n, hn::Set(d, 0.693147181f), x);
    // Minimax of degree 6 with the constant term 1, relative error 4e-9.
    auto p = hn::MulAdd(hn::Set(d, 0.00139136559f), r, hn::Set(d, 0.00838090998f));
    p = hn::MulAdd(p, r, hn::Set(d, 0.0416668265f));
    p = hn::MulAdd(p, r, hn::Set(d, 0.166663287f));
    p = hn::MulAdd(p, r, hn::Set(d, 0.499999986f));
    p = hn::MulAdd(p, r, hn::Set(d, 1.00000006f));
    p = hn::MulAdd(p, r, hn::Set(d, 1.0f));
    const auto scaled =
        hn::BitCast(d, hn::Add(hn::BitCast(di, p), hn::ShiftLeft<23>(hn::BitCast(di, shifted))));
    return hn::IfThenElseZero(hn::Gt(x, hn::Set(d, -87.0f)), scaled);
  }
}

/// (1 - exp(-z)) / z for |z| <= 1/8: where exp(-z) - 1 would cancel.
template <class D>
HWY_INLINE hn::Vec<D> OneMinusExpOverZ(D d, hn::Vec<D> z) {
  using T = hn::TFromD<D>;
  // Taylor: the first term left out is below half an ulp at |z| = 1/8.
  auto p = hn::Set(d, static_cast<T>(sizeof(T) == 4 ? 1.0 / 120 : 1.0 / 3628800));
  if constexpr (sizeof(T) == 8) {
    p = hn::NegMulAdd(p, z, hn::Set(d, static_cast<T>(1.0 / 362880)));
    p = hn::NegMulAdd(p, z, hn::Set(d, static_cast<T>(1.0 / 40320)));
    p = hn::NegMulAdd(p, z, hn::Set(d, static_cast<T>(1.0 / 5040)));
    p = hn::NegMulAdd(p, z, hn::Set(d, static_cast<T>(1.0 / 720)));
    p = hn::NegMulAdd(p, z, hn::Set(d, static_cast<T>(1.0 / 120)));
  }
  p = hn::NegMulAdd(p, z, hn::Set(d, static_cast<T>(1.0 / 24)));
  p = hn::NegMulAdd(p, z, hn::Set(d, static_cast<T>(1.0 / 6)));
  p = hn::NegMulAdd(p, z, hn::Set(d, static_cast<T>(1.0 / 2)));
  return hn::NegMulAdd(p, z, hn::Set(d, static_cast<T>(1)));
}

/// 1 / x for x in [2^-30, 2^30], to rounding.
template <class D>
HWY_INLINE hn::Vec<D> Reciprocal(D d, hn::Vec<D> x) {
  using T = hn::TFromD<D>;
  const auto one = hn::Set(d, T{1});
#if HWY_ARCH_X86 && HWY_TARGET != HWY_SCALAR
  if constexpr (sizeof(T) == 4) {
    // The estimate has 12 bits or more: one Newton step is enough.
    const auto y = hn::ApproximateReciprocal(x);
    return hn::MulAdd(y, hn::NegMulAdd(x, y, one), y);
  }
#endif
  return hn::Div(one, x);
}

}  // namespace kvreplay::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif
