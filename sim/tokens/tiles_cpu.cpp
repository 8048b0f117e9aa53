#include "sim/tokens/tiles.hpp"

// The order of these is Highway's.
// clang-format off
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "sim/tokens/tiles_cpu.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>
#include "sim/tokens/softmax_tiles-inl.hpp"
#include "sim/tokens/score_tiles-inl.hpp"
// clang-format on

HWY_BEFORE_NAMESPACE();
namespace kvreplay::HWY_NAMESPACE {

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
