#include "sim/cuda/softmax.hpp"
#include "sim/tokens/cuda/stored_rows.hpp"

namespace kvreplay::cuda {
namespace {

/// Warps of a row with many segments, and rows of a block.
constexpr int kManyWarps = 16;
template <int kWarpsARow>
constexpr int kRowsABlock = kWarpsARow > 1 ? 1 : 8;

/// A row's softmax with its largest column set apart.
struct RowSoftmax {
  float top;
  int top_at;
  float rest_max, rest_sum;
};

KVREPLAY_DEVICE float number(const HalfMatrix& from, std::ptrdiff_t at) {
  const float high = from_half(from.high[at]);
  return from.low == nullptr ? high : high + from_half(from.low[at]);
}

/// A row's largest column of all, and its segment; of equal ones the first is it, as its tokens are.
struct Leader {
  float top;
  int segment;
};
KVREPLAY_DEVICE Leader joined(const Leader& a, const Leader& b) {
  const bool a_leads = a.top > b.top || (a.top == b.top && a.segment < b.segment);
  return a_leads ? a : b;
}

/// Channels that a warp sums at once, and each lane's of them.
constexpr int kLaneChannels = 4, kChannels = 32 * kLaneChannels;
/// Rows of memory that are on their way at once: nothing else is there to hide how long that takes.
constexpr int kAtOnce = 4;
/// A segment's columns that wait: its losers, and its largest where another segment has the row's.
constexpr int kWaiting = kLosers + 1;

/// The n-th lane's: a column, and the weight that it has at the end; 0: none.
struct WaitingColumn {
  float weight;
  int at;
};

/// Brings the columns of all lanes to the first ones, in their order; how many there are.
KVREPLAY_DEVICE int to_first_lanes(WaitingColumn& own) {
  int upto = own.weight > 0 ? 1 : 0;  // columns of lanes up to this one
  KVREPLAY_UNROLL
  for (int step = 1; step < 32; step *= 2) {
    const int before = shuffle_from(upto, larger(lane_id() - step, 0));
    if (lane_id() >= step) upto += before;
  }
  int from = 0;  // the first lane up to which there are more than lane_id()
  KVREPLAY_UNROLL
  for (int step = 16; step > 0; step /= 2)
    if (shuffle_from(upto, from + step - 1) <= lane_id()) from += step;
  const int all = shuffle_from(upto, 31);
  own = {shuffle_from(own.weight, from), shuffle_from(own.at, from)};
  if (lane_id() >= all) own = {0, 0};
  return all;
}

/// A warp's part of the sums over a row's segments: the segments own, own + kWarpsARow, ...
template <int kWarpsARow>
struct WarpSums {
  const ColumnProblem& in;
  const SoftmaxStates& states;
  int row, own;
  Leader leader;
  float most;

  KVREPLAY_DEVICE int segments() const { return (states.segments - own + kWarpsARow - 1) / kWarpsARow; }

  /// A lane's column among those that wait: place 0 .. segments() kWaiting - 1.
  KVREPLAY_DEVICE WaitingColumn waiting(int place) const {
    if (place >= segments() * kWaiting) return {0, 0};
    const int s = own + place / kWaiting * kWarpsARow, n = place % kWaiting;
    const std::ptrdiff_t at = in.state_at(s, row);
    if (n == kLosers)
      return s == leader.segment ? WaitingColumn{0, 0}
                                 : WaitingColumn{weight(states.top[at], most), states.top_at[at]};
    if (n >= states.losers[at]) return {0, 0};
    return {weight(states.loser[at * kLosers + n], most), states.loser_at[at * kLosers + n]};
  }

  template <NumberType kType>
  KVREPLAY_DEVICE void add_columns(const WaitingColumn& column, int all, int first,
                                   float (&sum)[kLaneChannels]) const {
    for (int n = 0; n < all; n += kAtOnce) {
      float of[kAtOnce], x[kAtOnce][kLaneChannels];
      KVREPLAY_UNROLL
      for (int u = 0; u < kAtOnce; ++u) {
        of[u] = shuffle_from(column.weight, (n + u) % 32);
        const std::ptrdiff_t at = static_cast<std::ptrdiff_t>(shuffle_from(column.at, (n + u) % 32)) * in.d_v;
        KVREPLAY_UNROLL
        for (int i = 0; i < kLaneChannels; ++i) {
          const int c = first + lane_id() + 32 * i;
          x[u][i] = c < in.d_v ? number_of<kType>(in.v.values.data, at + c) - in.v.centre[c] : 0.0F;
        }
      }
      KVREPLAY_UNROLL
      for (int u = 0; u < kAtOnce; ++u) {
        if (n + u >= all) break;
        KVREPLAY_UNROLL
        for (int i = 0; i < kLaneChannels; ++i) sum[i] += of[u] * x[u][i];
      }
    }
  }

  KVREPLAY_DEVICE void add_segments(int first, float (&sum)[kLaneChannels]) const {
    for (int s = own; s < states.segments; s += kAtOnce * kWarpsARow) {
      float take[kAtOnce], x[kAtOnce][kLaneChannels];
      KVREPLAY_UNROLL
      for (int u = 0; u < kAtOnce; ++u) {
        const bool real = s + u * kWarpsARow < states.segments;
        const std::ptrdiff_t at = in.state_at(real ? s + u * kWarpsARow : s, row);
        take[u] = real ? weight(states.rest_max[at], most) : 0.0F;
        KVREPLAY_UNROLL
        for (int i = 0; i < kLaneChannels; ++i) {
          const int c = first + lane_id() + 32 * i;
          x[u][i] = c < in.d_v ? states.rest_out[at * in.d_v + c] : 0.0F;
        }
      }
      KVREPLAY_UNROLL
      for (int u = 0; u < kAtOnce; ++u) {
        if (!(take[u] > 0)) continue;
        KVREPLAY_UNROLL
        for (int i = 0; i < kLaneChannels; ++i) sum[i] += take[u] * x[u][i];
      }
    }
  }

  /// Adds all segments and waiting columns to the sums of the channels first + lane + 32 i.
  template <NumberType kType>
  KVREPLAY_DEVICE void add(int first, float (&sum)[kLaneChannels]) const {
    add_segments(first, sum);
    for (int place = 0; place < segments() * kWaiting; place += 32) {
      WaitingColumn column = waiting(place + lane_id());
      const int all = to_first_lanes(column);
      add_columns<kType>(column, all, first, sum);
    }
  }
};

/// Merges a row's segments, and the columns that wait, into the first one's place; returns what the softmax
/// has become. kWarpsARow warps share the segments, a whole block or one alone.
template <int kWarpsARow>
KVREPLAY_DEVICE RowSoftmax merge_segments(const ColumnProblem& in, const SoftmaxStates& states, int row) {
  // Every warp finds out for itself: they are few numbers.
  Leader leader{kHidden, 0x7fffffff};
  KVREPLAY_UNROLL_BY(4)
  for (int s = lane_id(); s < states.segments; s += 32)
    leader = joined(leader, {states.top[in.state_at(s, row)], s});
  KVREPLAY_UNROLL
  for (int mask = 1; mask < 32; mask *= 2)
    leader = joined(leader, {shuffle_xor(leader.top, mask), shuffle_xor(leader.segment, mask)});
  float most = kHidden;
  KVREPLAY_UNROLL_BY(4)
  for (int s = lane_id(); s < states.segments; s += 32) {
    most = larger(most, states.rest_max[in.state_at(s, row)]);
    if (s != leader.segment) most = larger(most, states.top[in.state_at(s, row)]);
  }
  most = warp_largest(most);
  float rest_sum = 0;
  KVREPLAY_UNROLL_BY(4)
  for (int s = lane_id(); s < states.segments; s += 32) {
    const std::ptrdiff_t at = in.state_at(s, row);
    rest_sum += states.rest_sum[at] * weight(states.rest_max[at], most);
    if (s != leader.segment) rest_sum += weight(states.top[at], most);
  }
  rest_sum = warp_of(rest_sum, [](float a, float b) { return a + b; });

  auto* const parts = reinterpret_cast<float*>(shared_memory());  // [kWarpsARow][kChannels]
  const int own = warp_id() % kWarpsARow;
  for (int first = 0; first < in.d_v; first += kChannels) {
    float sum[kLaneChannels] = {};
    const WarpSums<kWarpsARow> sums{in, states, row, own, leader, most};
    switch (in.v.values.type) {
      case NumberType::f32:
        sums.template add<NumberType::f32>(first, sum);
        break;
      case NumberType::f16:
        sums.template add<NumberType::f16>(first, sum);
        break;
      case NumberType::bf16:
        sums.template add<NumberType::bf16>(first, sum);
        break;
    }
    if (kWarpsARow > 1) {
      KVREPLAY_UNROLL
      for (int i = 0; i < kLaneChannels; ++i) parts[own * kChannels + lane_id() + 32 * i] = sum[i];
      sync_block();
      for (int warp = 1; own == 0 && warp < kWarpsARow; ++warp) {
        KVREPLAY_UNROLL
        for (int i = 0; i < kLaneChannels; ++i) sum[i] += parts[warp * kChannels + lane_id() + 32 * i];
      }
      sync_block();
    }
    KVREPLAY_UNROLL
    for (int i = 0; i < kLaneChannels; ++i) {
      const int c = first + lane_id() + 32 * i;
      if (own == 0 && c < in.d_v) states.rest_out[in.state_at(0, row) * in.d_v + c] = sum[i];
    }
  }
  return {leader.top, states.top_at[in.state_at(leader.segment, row)], most, rest_sum};
}

/// A warp ends a row of the packed ones, whose softmax is merged; its lanes share the channels.
KVREPLAY_DEVICE void finish_row(const ColumnProblem& in, const SoftmaxStates& states,
                                const FinishedRows& rows, int row, const RowSoftmax& softmax) {
  const int r = row % in.padded_rows;
  float* out = states.rest_out + static_cast<std::ptrdiff_t>(row) * in.d_v;
  const bool rest = softmax.rest_sum > 0;
  const double rest_lse =
      rest ? static_cast<double>(softmax.rest_max) + log(static_cast<double>(softmax.rest_sum))
           : -static_cast<double>(INFINITY);
  const int top = softmax.top_at >= 0 ? softmax.top_at : 0;
  const LargestColumn column = largest_column(static_cast<double>(softmax.top), rest_lse);
  double taylor_z = static_cast<double>(softmax.top);
  if (in.softcap > 0) {
    // Near the cap z no longer tells z_raw.
    double raw = 0;
    for (int c = lane_id(); c < in.d; c += 32)
      raw += static_cast<double>(number(in.q, static_cast<std::ptrdiff_t>(row) * in.q.depth + c)) *
             static_cast<double>(number(in.k, static_cast<std::ptrdiff_t>(top) * in.k.depth + c));
    raw *= static_cast<double>(in.q.unit[row]) * static_cast<double>(in.k.unit[top]);
    const double slope = taylor_z / static_cast<double>(in.softcap);
    taylor_z = static_cast<double>(in.scale) * warp_sum(raw) * (1 - slope * slope);
  }
  const double per_sum = rest ? 1 / static_cast<double>(softmax.rest_sum) : 0;
  const double z_rest = taylor_z * column.one_minus_a;
  double diff_sq = 0, joint = 0, exact_joint = 0, out_sq = 0, out_centred_sq = 0, centre_dot_out = 0;
  float most = 0;
  const CentredValue top_value(in.v, top, in.d_v);
  for (int c = lane_id(); c < in.d_v; c += 32) {
    const double m = static_cast<double>(in.v.centre[c]);
    const double v = static_cast<double>(top_value[c]);
    // A row that sees nothing else has the output 0 without its column.
    const double others = rest ? static_cast<double>(out[c]) * per_sum : -m;
    const double diff = v - others, o = others + column.a * diff;
    const double j = v + m + z_rest * diff, ej = column.a * (v + m) + column.delta * (others + m);
    if (rows.top_diff != nullptr)
      rows.top_diff[static_cast<std::ptrdiff_t>(row) * in.d_v + c] = static_cast<float>(diff);
    diff_sq += diff * diff;
    joint += j * j;
    exact_joint += ej * ej;
    out_sq += (o + m) * (o + m);
    out_centred_sq += o * o;
    centre_dot_out += m * o;
    out[c] = static_cast<float>(o);
    most = larger(most, std::fabs(out[c]));
  }
  diff_sq = warp_sum(diff_sq);
  joint = warp_sum(joint);
  exact_joint = warp_sum(exact_joint);
  out_sq = warp_sum(out_sq);
  out_centred_sq = warp_sum(out_centred_sq);
  centre_dot_out = warp_sum(centre_dot_out);
  const float unit = half_unit(warp_largest(most));
  for (int c = lane_id(); c < rows.out.depth; c += 32) {
    put(rows.out, static_cast<std::ptrdiff_t>(row) * rows.out.depth + c,
        split(c < in.d_v ? out[c] * per_unit_of(unit) : 0.0F));
  }
  if (lane_id() != 0) return;
  rows.out.unit[row] = unit;

  const bool fits = softmax.top_at >= 0 && softmax.rest_max < INFINITY && finite(column.lse) &&
                    finite(static_cast<double>(static_cast<float>(out_sq)));
  rows.largest[row / in.padded_rows * in.rows + r] =
      largest_scores(fits ? softmax.top_at : -1, column, taylor_z,
                     {in.d_v > 0 ? static_cast<double>(in.v.value_sq[top]) : 0, diff_sq, joint, exact_joint});
  const EntryRow<double> of_row = entry_row(column.lse, out_sq, out_centred_sq, centre_dot_out);
  rows.constants[row] = {
      in.q.unit[row] * in.scale,
      {static_cast<float>(of_row.lse), static_cast<float>(of_row.rescale),
       static_cast<float>(of_row.zero_logit), static_cast<float>(of_row.zero_weight_sum),
       static_cast<float>(of_row.zero_logit_out_sq), static_cast<float>(of_row.out_centred_sq),
       static_cast<float>(of_row.centre_dot_out)},
      in.d_v > 0 ? unit * in.v.halves.unit[0] : 0,
      in.first_visible[r],
      in.end_visible[r],
      softmax.top_at};
}

/// A row of the padding: it has no numbers.
KVREPLAY_DEVICE void finish_padding(const FinishedRows& rows, int row) {
  if (lane_id() == 0) {
    rows.constants[row] = {0, {0, 0, 0, 0, 0, 0, 0}, 0, 0, 0, -1};
    rows.out.unit[row] = 1;
  }
  for (int c = lane_id(); c < rows.out.depth; c += 32)
    put(rows.out, static_cast<std::ptrdiff_t>(row) * rows.out.depth + c, {0, 0});
}

/// Each warp has a row, or each block one whose many segments its warps share.
template <int kWarpsARow>
KVREPLAY_KERNEL void finish_kernel(ColumnProblem in, SoftmaxStates states, FinishedRows rows) {
  const int row = static_cast<int>(block_id().x) * kRowsABlock<kWarpsARow> + warp_id() / kWarpsARow;
  if (row >= in.packed_rows()) return;
  const bool padding = row % in.padded_rows >= in.rows;
  RowSoftmax softmax{};
  if (!padding) softmax = merge_segments<kWarpsARow>(in, states, row);
  if (warp_id() % kWarpsARow > 0) return;
  if (padding)
    finish_padding(rows, row);
  else
    finish_row(in, states, rows, row, softmax);
}

template <int kWarpsARow>
void start(const ColumnProblem& problem, const SoftmaxStates& states, const FinishedRows& rows,
           const Stream& stream) {
  constexpr int kRows = kRowsABlock<kWarpsARow>, kWarps = kRows * kWarpsARow;
  launch(finish_kernel<kWarpsARow>, {blocks_of(problem.packed_rows(), kRows)}, 32 * kWarps,
         kWarpsARow > 1 ? sizeof(float) * kWarpsARow * kChannels : 0, stream, problem, states, rows);
}

}  // namespace

void finish_rows(const ColumnProblem& problem, const SoftmaxStates& states, const FinishedRows& rows,
                 const Stream& stream) {
  if (states.segments >= kManyWarps)
    start<kManyWarps>(problem, states, rows, stream);
  else
    start<1>(problem, states, rows, stream);
}

}  // namespace kvreplay::cuda
