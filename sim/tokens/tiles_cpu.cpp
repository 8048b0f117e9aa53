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

// Highway exports plain functions: one set of names for each element type.
#define KVREPLAY_TILES(T, Suffix)                                                                     \
  void SoftmaxTiles##Suffix(const TileInput<T>& in, Index panel, Index n, Index begin, Index end,     \
                            const SoftmaxPanel<T>* states) {                                          \
    SoftmaxTiles(in, panel, n, begin, end, states);                                                   \
  }                                                                                                   \
  void MergeStates##Suffix(const TileInput<T>& in, const SoftmaxPanel<T>& later,                      \
                           const SoftmaxPanel<T>& into) {                                             \
    MergeStates(in, later, into);                                                                     \
  }                                                                                                   \
  void FinishRows##Suffix(const T* centre, Index d_v, T* rest_out, LargestColumns<T>& largest) {      \
    FinishRows(centre, d_v, rest_out, largest);                                                       \
  }                                                                                                   \
  void ScoreTiles##Suffix(const TileInput<T>& in, const T* row_constants, const T* out_panels,        \
                          const TokenConstants<T>& tokens, ColumnSet columns, Index begin, Index end, \
                          const ColumnSums& sums) {                                                   \
    ScoreTiles(in, row_constants, out_panels, tokens, columns, begin, end, sums);                     \
  }
KVREPLAY_TILES(float, F32)
KVREPLAY_TILES(double, F64)
#undef KVREPLAY_TILES

}  // namespace kvreplay::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace kvreplay {

#define KVREPLAY_TILES(T, Suffix)                                                                        \
  HWY_EXPORT(SoftmaxTiles##Suffix);                                                                      \
  HWY_EXPORT(MergeStates##Suffix);                                                                       \
  HWY_EXPORT(FinishRows##Suffix);                                                                        \
  HWY_EXPORT(ScoreTiles##Suffix);                                                                        \
  template <>                                                                                            \
  void softmax_tiles(const TileInput<T>& in, Index panel, Index n, Index begin, Index end,               \
                     const SoftmaxPanel<T>* states) {                                                    \
    HWY_DYNAMIC_DISPATCH(SoftmaxTiles##Suffix)(in, panel, n, begin, end, states);                        \
  }                                                                                                      \
  template <>                                                                                            \
  void merge_states(const TileInput<T>& in, const SoftmaxPanel<T>& later, const SoftmaxPanel<T>& into) { \
    HWY_DYNAMIC_DISPATCH(MergeStates##Suffix)(in, later, into);                                          \
  }                                                                                                      \
  template <>                                                                                            \
  void finish_rows(const T* centre, Index d_v, T* rest_out, LargestColumns<T>& largest) {                \
    HWY_DYNAMIC_DISPATCH(FinishRows##Suffix)(centre, d_v, rest_out, largest);                            \
  }                                                                                                      \
  template <>                                                                                            \
  void score_tiles(const TileInput<T>& in, const T* row_constants, const T* out_panels,                  \
                   const TokenConstants<T>& tokens, ColumnSet columns, Index begin, Index end,           \
                   const ColumnSums& sums) {                                                             \
    HWY_DYNAMIC_DISPATCH(ScoreTiles##Suffix)                                                             \
    (in, row_constants, out_panels, tokens, columns, begin, end, sums);                                  \
  }
KVREPLAY_TILES(float, F32)
KVREPLAY_TILES(double, F64)
#undef KVREPLAY_TILES

}  // namespace kvreplay
#endif
