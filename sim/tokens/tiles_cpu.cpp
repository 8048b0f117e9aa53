#include "sim/tokens/tiles.hpp"

// clang-format off: the order of these is Highway's
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "sim/tokens/tiles_cpu.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>
#include "sim/tokens/softmax_tiles-inl.hpp"
#include "sim/tokens/score_tiles-inl.hpp"
// clang-format on

HWY_BEFORE_NAMESPACE();
namespace kvreplay::HWY_NAMESPACE {

void SoftmaxTilesF32(const TileInput<float>& in, Index panel, Index n, Index begin, Index end,
                     const SoftmaxPanel<float>* states) {
  SoftmaxTiles(in, panel, n, begin, end, states);
}
void SoftmaxTilesF64(const TileInput<double>& in, Index panel, Index n, Index begin, Index end,
                     const SoftmaxPanel<double>* states) {
  SoftmaxTiles(in, panel, n, begin, end, states);
}
void MergeStatesF32(const TileInput<float>& in, const SoftmaxPanel<float>& later,
                    const SoftmaxPanel<float>& into) {
  MergeStates(in, later, into);
}
void MergeStatesF64(const TileInput<double>& in, const SoftmaxPanel<double>& later,
                    const SoftmaxPanel<double>& into) {
  MergeStates(in, later, into);
}
void ScoreTilesF32(const TileInput<float>& in, const float* row_constants, const float* out_panels,
                   const TokenConstants<float>& tokens, ColumnSet columns, Index begin, Index end,
                   const ColumnSums& sums) {
  ScoreTiles(in, row_constants, out_panels, tokens, columns, begin, end, sums);
}
void ScoreTilesF64(const TileInput<double>& in, const double* row_constants, const double* out_panels,
                   const TokenConstants<double>& tokens, ColumnSet columns, Index begin, Index end,
                   const ColumnSums& sums) {
  ScoreTiles(in, row_constants, out_panels, tokens, columns, begin, end, sums);
}

}  // namespace kvreplay::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace kvreplay {

HWY_EXPORT(SoftmaxTilesF32);
HWY_EXPORT(SoftmaxTilesF64);
HWY_EXPORT(MergeStatesF32);
HWY_EXPORT(MergeStatesF64);
HWY_EXPORT(ScoreTilesF32);
HWY_EXPORT(ScoreTilesF64);

template <>
void softmax_tiles(const TileInput<float>& in, Index panel, Index n, Index begin, Index end,
                   const SoftmaxPanel<float>* states) {
  HWY_DYNAMIC_DISPATCH(SoftmaxTilesF32)(in, panel, n, begin, end, states);
}
template <>
void softmax_tiles(const TileInput<double>& in, Index panel, Index n, Index begin, Index end,
                   const SoftmaxPanel<double>* states) {
  HWY_DYNAMIC_DISPATCH(SoftmaxTilesF64)(in, panel, n, begin, end, states);
}
template <>
void merge_states(const TileInput<float>& in, const SoftmaxPanel<float>& later,
                  const SoftmaxPanel<float>& into) {
  HWY_DYNAMIC_DISPATCH(MergeStatesF32)(in, later, into);
}
template <>
void merge_states(const TileInput<double>& in, const SoftmaxPanel<double>& later,
                  const SoftmaxPanel<double>& into) {
  HWY_DYNAMIC_DISPATCH(MergeStatesF64)(in, later, into);
}
template <>
void score_tiles(const TileInput<float>& in, const float* row_constants, const float* out_panels,
                 const TokenConstants<float>& tokens, ColumnSet columns, Index begin, Index end,
                 const ColumnSums& sums) {
  HWY_DYNAMIC_DISPATCH(ScoreTilesF32)(in, row_constants, out_panels, tokens, columns, begin, end, sums);
}
template <>
void score_tiles(const TileInput<double>& in, const double* row_constants, const double* out_panels,
                 const TokenConstants<double>& tokens, ColumnSet columns, Index begin, Index end,
                 const ColumnSums& sums) {
  HWY_DYNAMIC_DISPATCH(ScoreTilesF64)(in, row_constants, out_panels, tokens, columns, begin, end, sums);
}

}  // namespace kvreplay
#endif
