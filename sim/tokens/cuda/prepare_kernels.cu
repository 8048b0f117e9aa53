#include "sim/cuda/half.hpp"
#include "sim/cuda/softmax.hpp"
#include "sim/tokens/cuda/column_kernels.hpp"

namespace kvreplay::cuda {
namespace {

constexpr int kThreads = 128, kWarps = 4;

KVREPLAY_DEVICE float number(const StoredRows& rows, std::ptrdiff_t at) {
  if (rows.type == NumberType::f32) return static_cast<const float*>(rows.data)[at];
  const std::uint16_t bits = static_cast<const std::uint16_t*>(rows.data)[at];
  return rows.type == NumberType::f16 ? from_half(bits) : as_float(static_cast<std::uint32_t>(bits) << 16U);
}

KVREPLAY_DEVICE void put(const HalfMatrix& to, std::ptrdiff_t at, const HalfPair& halves) {
  to.high[at] = halves.high;
  if (to.low != nullptr) to.low[at] = halves.low;
}

/// One warp a row of `to`, or, where to.high is null, a row that is only checked.
KVREPLAY_KERNEL void rows_kernel(StoredRows from, HeadRows which, HalfMatrix to, int* needed) {
  const int packed_row = static_cast<int>(block_id().x) * kWarps + warp_id();
  if (packed_row >= which.heads * which.padded_rows) return;
  const int r = packed_row % which.padded_rows, width = r < which.rows ? which.width : 0;
  const std::ptrdiff_t first =
      (packed_row / which.padded_rows * which.head_rows + which.first_row + r) * which.width;
  float largest = 0;
  for (int c = lane_id(); c < width; c += 32) largest = larger(largest, std::fabs(number(from, first + c)));
  largest = warp_largest(largest);
  const float unit = half_unit(largest), per_unit = per_unit_of(unit);
  if (to.high == nullptr) {
    bool two = false;
    for (int c = lane_id(); c < width; c += 32)
      two = two || (split(number(from, first + c) * per_unit).low & 0x7fffU) != 0;
    if (two) set_flag(needed);
    return;
  }
  if (lane_id() == 0) to.unit[packed_row] = unit;
  for (int c = lane_id(); c < to.depth; c += 32)
    put(to, static_cast<std::ptrdiff_t>(packed_row) * to.depth + c,
        split(c < width ? number(from, first + c) * per_unit : 0.0F));
}

/// One thread a channel: the mean of some rows from all over the matrix.
KVREPLAY_KERNEL void centre_kernel(StoredRows values, int tokens, int d_v, PreparedRows to) {
  constexpr int kSampled = 256;
  const int c = static_cast<int>(block_id().x) * kThreads + thread_id();
  if (c == 0) to.halves.unit[0] = 0;
  if (c >= d_v) return;
  const int step = (tokens + kSampled - 1) / kSampled;
  double sum = 0;
  int n = 0;
  for (int p = 0; p < tokens; p += step, ++n)
    sum += static_cast<double>(number(values, static_cast<std::ptrdiff_t>(p) * d_v + c));
  to.centre[c] = static_cast<float>(sum / n);
}

/// One warp a token. Leaves the largest |v - centre| of all in the unit.
KVREPLAY_KERNEL void values_kernel(StoredRows values, int tokens, int d_v, PreparedRows to) {
  const int p = static_cast<int>(block_id().x) * kWarps + warp_id();
  if (p >= tokens) return;
  const std::ptrdiff_t first = static_cast<std::ptrdiff_t>(p) * d_v;
  double value_sq = 0, centred_sq = 0, centre_dot = 0;
  float largest = 0;
  for (int c = lane_id(); c < d_v; c += 32) {
    const float v = number(values, first + c), m = to.centre[c], x = v - m;
    to.centred[first + c] = x;
    value_sq += static_cast<double>(v) * static_cast<double>(v);
    centred_sq += static_cast<double>(x) * static_cast<double>(x);
    centre_dot += static_cast<double>(m) * static_cast<double>(x);
    largest = larger(largest, std::fabs(x));
  }
  value_sq = warp_sum(value_sq);
  centred_sq = warp_sum(centred_sq);
  centre_dot = warp_sum(centre_dot);
  largest = warp_largest(largest);
  if (lane_id() != 0) return;
  to.value_sq[p] = static_cast<float>(value_sq);
  to.value_centred_sq[p] = static_cast<float>(centred_sq);
  to.centre_dot_value[p] = static_cast<float>(centre_dot);
  raise(to.halves.unit, largest);
}

/// One thread: the unit of the largest number.
KVREPLAY_KERNEL void unit_kernel(float* unit) {
  if (thread_id() == 0) *unit = half_unit(*unit);
}

KVREPLAY_KERNEL void halves_kernel(int tokens, int d_v, PreparedRows to) {
  const std::ptrdiff_t at = static_cast<std::ptrdiff_t>(block_id().x) * kThreads + thread_id();
  const int depth = to.halves.depth;
  if (at >= static_cast<std::ptrdiff_t>(tokens) * depth) return;
  const std::ptrdiff_t p = at / depth;
  const int c = static_cast<int>(at % depth);
  put(to.halves, at, split(c < d_v ? to.centred[p * d_v + c] * per_unit_of(to.halves.unit[0]) : 0.0F));
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

void prepare_tokens(const StoredRows& values, int tokens, int d_v, const PreparedRows& to,
                    const Stream& stream) {
  launch(centre_kernel, {blocks_of(d_v, kThreads)}, kThreads, 0, stream, values, tokens, d_v, to);
  launch(values_kernel, {blocks_of(tokens, kWarps)}, kThreads, 0, stream, values, tokens, d_v, to);
  launch(unit_kernel, {1}, 32, 0, stream, to.halves.unit);
  launch(halves_kernel, {blocks_of(static_cast<std::ptrdiff_t>(tokens) * to.halves.depth, kThreads)},
         kThreads, 0, stream, tokens, d_v, to);
}

}  // namespace kvreplay::cuda
