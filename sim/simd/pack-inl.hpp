// Included once per target by Highway's foreach_target; see https://google.github.io/highway.
#if defined(KVREPLAY_SIMD_PACK_INL_HPP) == defined(HWY_TARGET_TOGGLE)
#ifdef KVREPLAY_SIMD_PACK_INL_HPP
#undef KVREPLAY_SIMD_PACK_INL_HPP
#else
#define KVREPLAY_SIMD_PACK_INL_HPP
#endif

#include "sim/simd/panel.hpp"

#include <hwy/contrib/math/math-inl.h>
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace kvreplay::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

/// Two vectors that go through the same long chain of dependent operations side by side: a processor's window
/// holds only two or three such chains, too few to hide their latency when they come one after the other.
template <class D>
struct Pack {
  using V = hn::Vec<D>;
  V lo, hi;
};
template <class D>
struct PackMask {
  hn::Mask<D> lo, hi;
};

// Formulas read as formulas: nothing here is fused unless it says MulAdd.
template <class D>
HWY_INLINE Pack<D> operator+(Pack<D> a, Pack<D> b) {
  return {hn::Add(a.lo, b.lo), hn::Add(a.hi, b.hi)};
}
template <class D>
HWY_INLINE Pack<D> operator-(Pack<D> a, Pack<D> b) {
  return {hn::Sub(a.lo, b.lo), hn::Sub(a.hi, b.hi)};
}
template <class D>
HWY_INLINE Pack<D> operator*(Pack<D> a, Pack<D> b) {
  return {hn::Mul(a.lo, b.lo), hn::Mul(a.hi, b.hi)};
}
template <class D>
HWY_INLINE Pack<D> operator/(Pack<D> a, Pack<D> b) {
  return {hn::Div(a.lo, b.lo), hn::Div(a.hi, b.hi)};
}
template <class D>
HWY_INLINE Pack<D>& operator+=(Pack<D>& a, Pack<D> b) {
  return a = a + b;
}
template <class D>
HWY_INLINE PackMask<D> operator>(Pack<D> a, Pack<D> b) {
  return {hn::Gt(a.lo, b.lo), hn::Gt(a.hi, b.hi)};
}
template <class D>
HWY_INLINE PackMask<D> operator<(Pack<D> a, Pack<D> b) {
  return {hn::Lt(a.lo, b.lo), hn::Lt(a.hi, b.hi)};
}
template <class D>
HWY_INLINE PackMask<D> operator&(PackMask<D> a, PackMask<D> b) {
  return {hn::And(a.lo, b.lo), hn::And(a.hi, b.hi)};
}

/// The other operations on packs of one vector type, named as Highway names them.
template <class D>
struct PackOps {
  using T = hn::TFromD<D>;
  using P = Pack<D>;
  using M = PackMask<D>;
  D d;
  Index N;  ///< lanes of one of the two vectors

  explicit HWY_INLINE PackOps(D tag) : d(tag), N(static_cast<Index>(hn::Lanes(tag))) {}

  HWY_INLINE P Set(T x) const { return {hn::Set(d, x), hn::Set(d, x)}; }
  HWY_INLINE P Load(const T* p) const { return {hn::LoadU(d, p), hn::LoadU(d, p + N)}; }
  HWY_INLINE P Max(P a, P b) const { return {hn::Max(a.lo, b.lo), hn::Max(a.hi, b.hi)}; }
  HWY_INLINE P Abs(P a) const { return {hn::Abs(a.lo), hn::Abs(a.hi)}; }
  HWY_INLINE P MulAdd(P a, P b, P c) const {
    return {hn::MulAdd(a.lo, b.lo, c.lo), hn::MulAdd(a.hi, b.hi, c.hi)};
  }
  HWY_INLINE P NegMulAdd(P a, P b, P c) const {
    return {hn::NegMulAdd(a.lo, b.lo, c.lo), hn::NegMulAdd(a.hi, b.hi, c.hi)};
  }
  HWY_INLINE bool AnyTrue(M m) const { return !hn::AllFalse(d, hn::Or(m.lo, m.hi)); }
  HWY_INLINE P IfThenElse(M m, P a, P b) const {
    return {hn::IfThenElse(m.lo, a.lo, b.lo), hn::IfThenElse(m.hi, a.hi, b.hi)};
  }
  HWY_INLINE P IfThenElseZero(M m, P a) const {
    return {hn::IfThenElseZero(m.lo, a.lo), hn::IfThenElseZero(m.hi, a.hi)};
  }
  HWY_INLINE P IfThenZeroElse(M m, P a) const {
    return {hn::IfThenZeroElse(m.lo, a.lo), hn::IfThenZeroElse(m.hi, a.hi)};
  }
  HWY_INLINE P Tanh(P a) const { return {hn::Tanh(d, a.lo), hn::Tanh(d, a.hi)}; }
  HWY_INLINE P Min(P a, P b) const { return {hn::Min(a.lo, b.lo), hn::Min(a.hi, b.hi)}; }
  HWY_INLINE void Store(P a, T* p) const {
    hn::StoreU(a.lo, d, p);
    hn::StoreU(a.hi, d, p + N);
  }

  /// exp(x) for x <= about 1, as a softmax needs it: exactly 0 for -inf. In float: 0 below -87, relative
  /// error 2e-7.
  HWY_INLINE P SoftmaxExp(P x) const {
    if constexpr (sizeof(T) == 8) {
      return {hn::IfThenElse(hn::IsNaN(x.lo), x.lo, hn::Exp(d, x.lo)),
              hn::IfThenElse(hn::IsNaN(x.hi), x.hi, hn::Exp(d, x.hi))};
    } else {
      // x = n ln2 + r, |r| <= ln2 / 2: adding 1.5 * 2^23 rounds x / ln2 to the integer n and leaves n in the
      // low bits.
      const P magic = Set(12582912.0f);
      const P shifted = MulAdd(x, Set(1.44269504f), magic);
      const P r = NegMulAdd(shifted - magic, Set(0.693147181f), x);
      // Minimax of degree 6 with the constant term 1, relative error 4e-9.
      P p = MulAdd(Set(0.00139136559f), r, Set(0.00838090998f));
      p = MulAdd(p, r, Set(0.0416668265f));
      p = MulAdd(p, r, Set(0.166663287f));
      p = MulAdd(p, r, Set(0.499999986f));
      p = MulAdd(p, r, Set(1.00000006f));
      p = MulAdd(p, r, Set(1.0f));
      return IfThenZeroElse(Set(-87.0f) > x,
                            P{TimesPowerOf2(p.lo, shifted.lo), TimesPowerOf2(p.hi, shifted.hi)});
    }
  }

  /// (1 - exp(-z)) / z for |z| <= 1/8, where exp(-z) - 1 would cancel: Taylor, up to the last term above half
  /// an ulp.
  HWY_INLINE P OneMinusExpOverZ(P z) const {
    constexpr int kTerms = sizeof(T) == 8 ? 10 : 5;
    double factorial = 1;
    for (int k = 2; k <= kTerms; ++k) factorial *= k;
    P p = Set(static_cast<T>(1 / factorial));
#pragma GCC unroll 10
    for (int k = kTerms; k > 1; --k) {
      factorial /= k;
      p = NegMulAdd(p, z, Set(static_cast<T>(1 / factorial)));
    }
    return p;
  }

  /// 1 / x for x in [2^-30, 2^30], to rounding.
  HWY_INLINE P Reciprocal(P x) const {
#if HWY_ARCH_X86 && HWY_TARGET != HWY_SCALAR
    if constexpr (sizeof(T) == 4) {
      // The estimate has 12 bits or more: one Newton step is enough.
      const P y = {hn::ApproximateReciprocal(x.lo), hn::ApproximateReciprocal(x.hi)};
      return MulAdd(y, NegMulAdd(x, y, Set(1)), y);
    }
#endif
    return Set(1) / x;
  }
  HWY_INLINE hn::Vec<D> Sum(P a) const { return hn::Add(a.lo, a.hi); }

 private:
  /// v 2^n, n in the low bits of `shifted`; float only.
  HWY_INLINE hn::Vec<D> TimesPowerOf2(hn::Vec<D> v, hn::Vec<D> shifted) const {
    const hn::RebindToSigned<D> di;
    return hn::BitCast(d, hn::Add(hn::BitCast(di, v), hn::ShiftLeft<23>(hn::BitCast(di, shifted))));
  }
};

}  // namespace kvreplay::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif
