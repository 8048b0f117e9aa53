#include "sim/cuda/softmax.hpp"
#include "sim/tokens/cuda/stored_rows.hpp"

namespace kvreplay::cuda {
namespace {

constexpr int kThreads = 256, kWarps = kThreads / 32;

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

/// Where a segment's state of a row stands.
KVREPLAY_DEVICE std::ptrdiff_t state_at(const ColumnProblem& in, int segment, int row) {
  return static_cast<std::ptrdiff_t>(segment) * in.packed_rows() + row;
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

/// Merges a row's segments into the first one's place; returns what the softmax has become. kWarpsARow warps
/// share the segments, a whole block or one alone.
template <int kWarpsARow>
KVREPLAY_DEVICE RowSoftmax merge_segments(const ColumnProblem& in, const SoftmaxStates& states, int row) {
  // Every warp finds out for itself: they are few numbers.
  Leader leader{kHidden, 0x7fffffff};
  for (int s = lane_id(); s < states.segments; s += 32)
    leader = joined(leader, {states.top[state_at(in, s, row)], s});
  KVREPLAY_UNROLL
  for (int mask = 1; mask < 32; mask *= 2)
    leader = joined(leader, {shuffle_xor(leader.top, mask), shuffle_xor(leader.segment, mask)});
  float most = kHidden;
  for (int s = lane_id(); s < states.segments; s += 32) {
    most = larger(most, states.rest_max[state_at(in, s, row)]);
    if (s != leader.segment) most = larger(most, states.top[state_at(in, s, row)]);
  }
  most = warp_largest(most);
  // What a segment's sums count, and its largest column where another's is the row's.
  const auto take = [&](int s) { return weight(states.rest_max[state_at(in, s, row)], most); };
  const auto lost = [&](int s) {
    return s == leader.segment ? 0.0F : weight(states.top[state_at(in, s, row)], most);
  };
  float sum = 0;
  for (int s = lane_id(); s < states.segments; s += 32)
    sum += states.rest_sum[state_at(in, s, row)] * take(s) + lost(s);
  sum = warp_of(sum, [](float a, float b) { return a + b; });

  auto* const parts = reinterpret_cast<float*>(shared_memory());  // [kWarpsARow][32]
  const int own = warp_id() % kWarpsARow;
  for (int first = 0; first < in.d_v; first += 32) {
    const int c = first + lane_id();
    float part = 0;
    for (int s = own; c < in.d_v && s < states.segments; s += kWarpsARow) {
      const std::ptrdiff_t at = state_at(in, s, row);
      const float of_sums = take(s), of_top = lost(s);
      if (of_sums > 0) part += of_sums * states.rest_out[at * in.d_v + c];
      if (of_top > 0) part += of_top * CentredValue(in.v, states.top_at[at], in.d_v)[c];
    }
    if (kWarpsARow > 1) {
      parts[thread_id()] = part;
      sync_block();
      for (int warp = 1; own == 0 && warp < kWarpsARow; ++warp) part += parts[warp * 32 + lane_id()];
      sync_block();
    }
    if (own == 0 && c < in.d_v) states.rest_out[state_at(in, 0, row) * in.d_v + c] = part;
  }
  return {leader.top, states.top_at[state_at(in, leader.segment, row)], most, sum};
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

/// One warp a row, or a block, whose warps share what segments there are.
template <int kWarpsARow>
KVREPLAY_KERNEL void finish_kernel(ColumnProblem in, SoftmaxStates states, FinishedRows rows) {
  static_assert(kWarpsARow == 1 || kWarpsARow == kWarps, "a row's warps meet as a block");
  const int row = (static_cast<int>(block_id().x) * kWarps + warp_id()) / kWarpsARow;
  if (row >= in.packed_rows()) return;
  const bool padding = row % in.padded_rows >= in.rows;
  RowSoftmax softmax{};
  if (!padding && states.segments > 1)
    softmax = merge_segments<kWarpsARow>(in, states, row);
  else if (!padding)
    softmax = {states.top[row], states.top_at[row], states.rest_max[row], states.rest_sum[row]};
  if (warp_id() % kWarpsARow > 0) return;
  if (padding)
    finish_padding(rows, row);
  else
    finish_row(in, states, rows, row, softmax);
}

}  // namespace

void finish_rows(const ColumnProblem& problem, const SoftmaxStates& states, const FinishedRows& rows,
                 const Stream& stream) {
  const auto start = [&](auto kernel, int warps_a_row) {
    launch(kernel, {blocks_of(problem.packed_rows(), kWarps / warps_a_row)}, kThreads,
           sizeof(float) * kThreads, stream, problem, states, rows);
  };
  if (states.segments >= kWarps)
    start(finish_kernel<kWarps>, kWarps);
  else
    start(finish_kernel<1>, 1);
}

}  // namespace kvreplay::cuda
