#include "sim/cuda/softmax.hpp"
#include "sim/tokens/cuda/stored_rows.hpp"

namespace kvreplay::cuda {
namespace {

constexpr int kThreads = 128, kWarps = 4;

/// A warp makes halves of a row, with zeros up to `depth`; returns whether some number of it takes two. Where
/// to.high is null it is only looked at.
KVREPLAY_DEVICE bool take_row(const StoredRows& from, std::ptrdiff_t first, int width, int depth,
                              std::ptrdiff_t to_row, const HalfMatrix& to) {
  float largest = 0;
  for (int c = lane_id(); c < width; c += 32) largest = larger(largest, std::fabs(number(from, first + c)));
  float unit = half_unit(warp_largest(largest));
  if (from.type == NumberType::f16) unit = smaller(unit, 1.0F);  // none is rounded
  const float per_unit = per_unit_of(unit);
  if (to.high != nullptr && lane_id() == 0) to.unit[to_row] = unit;
  bool two = false;
  for (int c = lane_id(); c < depth; c += 32) {
    const HalfPair halves = split(c < width ? number(from, first + c) * per_unit : 0.0F);
    two = two || (halves.low & 0x7fffU) != 0;
    if (to.high != nullptr) put(to, to_row * to.depth + c, halves);
  }
  return two;
}

/// One warp a row of `to`.
KVREPLAY_KERNEL void rows_kernel(StoredRows from, HeadRows which, HalfMatrix to, int* needed) {
  const int packed_row = static_cast<int>(block_id().x) * kWarps + warp_id();
  if (packed_row >= which.heads * which.padded_rows) return;
  const int r = packed_row % which.padded_rows, width = r < which.rows ? which.width : 0;
  const std::ptrdiff_t row = static_cast<std::ptrdiff_t>(packed_row / which.padded_rows) * which.rows + r;
  const bool two =
      take_row(from, row * which.width, width, to.high != nullptr ? to.depth : width, packed_row, to);
  if (needed != nullptr && two) set_flag(needed);
}

constexpr int kCentreWarps = 32;

/// The mean of some rows from all over the matrix: a block has 32 channels, whose rows its warps share.
KVREPLAY_KERNEL void centre_kernel(StoredRows values, int d_v, int tokens, float* centre, float* largest) {
  constexpr int kSampled = 256;
  auto* const parts = reinterpret_cast<double*>(shared_memory());  // [kCentreWarps][32]
  const int c = static_cast<int>(block_id().x) * 32 + lane_id();
  if (c == 0 && warp_id() == 0) *largest = 0;
  const int step = (tokens + kSampled - 1) / kSampled, all = (tokens + step - 1) / step;
  double sum = 0;
  KVREPLAY_UNROLL_BY(4)
  for (int n = warp_id(); n < all; n += kCentreWarps)
    if (c < d_v) sum += static_cast<double>(number(values, static_cast<std::ptrdiff_t>(n) * step * d_v + c));
  parts[thread_id()] = sum;
  sync_block();
  if (warp_id() > 0 || c >= d_v) return;
  for (int warp = 1; warp < kCentreWarps; ++warp) sum += parts[warp * 32 + lane_id()];
  centre[c] = static_cast<float>(sum / all);
}

/// One warp a token: its key's halves, its value's norms.
KVREPLAY_KERNEL void tokens_kernel(StoredRows keys, int d, HalfMatrix k, PreparedRows v, int d_v, int tokens,
                                   int* needed) {
  const int p = static_cast<int>(block_id().x) * kWarps + warp_id();
  if (p >= tokens) return;
  if (d > 0 && k.high == keys.data) {
    if (lane_id() == 0) k.unit[p] = 1;
  } else if (d > 0 && take_row(keys, static_cast<std::ptrdiff_t>(p) * d, d, k.depth, p, k) &&
             needed != nullptr) {
    set_flag(needed);
  }
  if (d_v == 0) return;

  const std::ptrdiff_t first = static_cast<std::ptrdiff_t>(p) * d_v;
  double value_sq = 0, centred_sq = 0, centre_dot = 0;
  float largest = 0;
  for (int c = lane_id(); c < d_v; c += 32) {
    const float value = number(v.values, first + c), m = v.centre[c], x = value - m;
    value_sq += static_cast<double>(value) * static_cast<double>(value);
    centred_sq += static_cast<double>(x) * static_cast<double>(x);
    centre_dot += static_cast<double>(m) * static_cast<double>(x);
    largest = larger(largest, std::fabs(x));
  }
  value_sq = warp_sum(value_sq);
  centred_sq = warp_sum(centred_sq);
  centre_dot = warp_sum(centre_dot);
  largest = warp_largest(largest);
  if (lane_id() != 0) return;
  v.value_sq[p] = static_cast<float>(value_sq);
  v.value_centred_sq[p] = static_cast<float>(centred_sq);
  v.centre_dot_value[p] = static_cast<float>(centre_dot);
  raise(v.largest, largest);
}

/// One warp a token: its value's halves, in the unit of the largest number of all.
KVREPLAY_KERNEL void values_kernel(PreparedRows v, int d_v, int tokens) {
  const int p = static_cast<int>(block_id().x) * kWarps + warp_id(), depth = v.halves.depth;
  if (p >= tokens) return;
  const float unit = half_unit(*v.largest), per_unit = per_unit_of(unit);
  if (p == 0 && lane_id() == 0) v.halves.unit[0] = unit;
  const CentredValue value(v, p, d_v);
  for (int c = lane_id(); c < depth; c += 32)
    put(v.halves, static_cast<std::ptrdiff_t>(p) * depth + c, split(c < d_v ? value[c] * per_unit : 0.0F));
}

}  // namespace

void prepare_rows(const StoredRows& from, const HeadRows& which, const HalfMatrix& to, const Stream& stream) {
  launch(rows_kernel, {blocks_of(which.heads * which.padded_rows, kWarps)}, kThreads, 0, stream, from, which,
         to, static_cast<int*>(nullptr));
}

void check_halves(const StoredRows& from, const HeadRows& which, int* needed, const Stream& stream) {
  launch(rows_kernel, {blocks_of(which.heads * which.padded_rows, kWarps)}, kThreads, 0, stream, from, which,
         HalfMatrix{}, needed);
}

void find_centre(const StoredRows& values, int d_v, int tokens, float* centre, float* largest,
                 const Stream& stream) {
  launch(centre_kernel, {blocks_of(d_v, 32)}, 32 * kCentreWarps, sizeof(double) * 32 * kCentreWarps, stream,
         values, d_v, tokens, centre, largest);
}

void prepare_tokens(const StoredRows& keys, int d, const HalfMatrix& k, const PreparedRows& v, int d_v,
                    int tokens, int* needed, const Stream& stream) {
  const Grid a_warp_each{blocks_of(tokens, kWarps)};
  launch(tokens_kernel, a_warp_each, kThreads, 0, stream, keys, d, k, v, d_v, tokens, needed);
  if (d_v > 0) launch(values_kernel, a_warp_each, kThreads, 0, stream, v, d_v, tokens);
}

}  // namespace kvreplay::cuda
