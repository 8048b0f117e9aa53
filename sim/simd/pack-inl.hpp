// Included once per target by Highway's foreach_target; see https://google.github.io/highway.
#if defined(KVREPLAY_SIMD_PACK_INL_HPP) == defined(HWY_TARGET_TOGGLE)
#ifdef KVREPLAY_SIMD_PACK_INL_HPP
#undef KVREPLAY_SIMD_PACK_INL_HPP
#else
#define KVREPLAY_SIMD_PACK_INL_HPP
#endif

#include "sim/simd/exp-inl.hpp"

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

/// The operations on packs of one vector type, named as Highway names them.
template <class D>
struct PackOps {
  using T = hn::TFromD<D>;
  using P = Pack<D>;
  using M = PackMask<D>;
  D d;
  std::size_t N = hn::Lanes(D());

  HWY_INLINE P Set(T x) const { return {hn::Set(d, x), hn::Set(d, x)}; }
  HWY_INLINE P Load(const T* p) const { return {hn::LoadU(d, p), hn::LoadU(d, p + N)}; }
  HWY_INLINE P Add(P a, P b) const { return {hn::Add(a.lo, b.lo), hn::Add(a.hi, b.hi)}; }
  HWY_INLINE P Sub(P a, P b) const { return {hn::Sub(a.lo, b.lo), hn::Sub(a.hi, b.hi)}; }
  HWY_INLINE P Mul(P a, P b) const { return {hn::Mul(a.lo, b.lo), hn::Mul(a.hi, b.hi)}; }
  HWY_INLINE P Div(P a, P b) const { return {hn::Div(a.lo, b.lo), hn::Div(a.hi, b.hi)}; }
  HWY_INLINE P Max(P a, P b) const { return {hn::Max(a.lo, b.lo), hn::Max(a.hi, b.hi)}; }
  HWY_INLINE P Abs(P a) const { return {hn::Abs(a.lo), hn::Abs(a.hi)}; }
  HWY_INLINE P MulAdd(P a, P b, P c) const {
    return {hn::MulAdd(a.lo, b.lo, c.lo), hn::MulAdd(a.hi, b.hi, c.hi)};
  }
  HWY_INLINE P NegMulAdd(P a, P b, P c) const {
    return {hn::NegMulAdd(a.lo, b.lo, c.lo), hn::NegMulAdd(a.hi, b.hi, c.hi)};
  }
  HWY_INLINE M Gt(P a, P b) const { return {hn::Gt(a.lo, b.lo), hn::Gt(a.hi, b.hi)}; }
  HWY_INLINE M Lt(P a, P b) const { return {hn::Lt(a.lo, b.lo), hn::Lt(a.hi, b.hi)}; }
  HWY_INLINE P IfThenElse(M m, P a, P b) const {
    return {hn::IfThenElse(m.lo, a.lo, b.lo), hn::IfThenElse(m.hi, a.hi, b.hi)};
  }
  HWY_INLINE P IfThenElseZero(M m, P a) const {
    return {hn::IfThenElseZero(m.lo, a.lo), hn::IfThenElseZero(m.hi, a.hi)};
  }
  HWY_INLINE P Tanh(P a) const { return {hn::Tanh(d, a.lo), hn::Tanh(d, a.hi)}; }
  HWY_INLINE P SoftmaxExp(P x) const {
    if constexpr (sizeof(T) == 8) {
      return {hn::Exp(d, x.lo), hn::Exp(d, x.hi)};
    } else {
      const hn::RebindToSigned<D> di;
      const P magic = Set(12582912.0f);
      const P shifted = MulAdd(x, Set(1.44269504f), magic);
      const P r = NegMulAdd(Sub(shifted, magic), Set(0.693147181f), x);
      P p = MulAdd(Set(0.00139136559f), r, Set(0.00838090998f));
      p = MulAdd(p, r, Set(0.0416668265f));
      p = MulAdd(p, r, Set(0.166663287f));
      p = MulAdd(p, r, Set(0.499999986f));
      p = MulAdd(p, r, Set(1.00000006f));
      p = MulAdd(p, r, Set(1.0f));
      const auto scale = [&](auto v, auto n) {
        return hn::BitCast(d, hn::Add(hn::BitCast(di, v), hn::ShiftLeft<23>(hn::BitCast(di, n))));
      };
      return IfThenElseZero(Gt(x, Set(-87.0f)), P{scale(p.lo, shifted.lo), scale(p.hi, shifted.hi)});
    }
  }
  HWY_INLINE P OneMinusExpOverZ(P z) const {
    if constexpr (sizeof(T) == 8)
      return {HWY_NAMESPACE::OneMinusExpOverZ(d, z.lo), HWY_NAMESPACE::OneMinusExpOverZ(d, z.hi)};
    P p = Set(static_cast<T>(1.0 / 120));
    p = NegMulAdd(p, z, Set(static_cast<T>(1.0 / 24)));
    p = NegMulAdd(p, z, Set(static_cast<T>(1.0 / 6)));
    p = NegMulAdd(p, z, Set(static_cast<T>(1.0 / 2)));
    return NegMulAdd(p, z, Set(static_cast<T>(1)));
  }
  HWY_INLINE P Reciprocal(P a) const {
    return {HWY_NAMESPACE::Reciprocal(d, a.lo), HWY_NAMESPACE::Reciprocal(d, a.hi)};
  }
  HWY_INLINE hn::Vec<D> Sum(P a) const { return hn::Add(a.lo, a.hi); }
};

}  // namespace kvreplay::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif
