#include "sim/cuda/block_product.hpp"
#include "sim/cuda/mma.hpp"
#include "sim/cuda/softmax.hpp"
#include "sim/tokens/column_kernels.hpp"

namespace kvreplay::cuda {
namespace {

constexpr int kThreads = 128, kWarps = 4;
constexpr int kBlockRows = 16 * kWarps;  // of the matrix that stays with the block
constexpr int kStep = 32;                // of the one that passes by
constexpr int kOutColumns = 128;         // of o, for each block of pass one
constexpr int kPad = 4;                  // keeps rows of shared memory in different banks

using Chunks = BlockChunks<kBlockRows, kStep>;

struct TopTwo {
  float first;
  int at;
  float second;
};

/// Of equal logits the one at the lower position is the first.
KVREPLAY_DEVICE TopTwo joined(const TopTwo& a, const TopTwo& b) {
  const bool a_leads = a.first > b.first || (a.first == b.first && a.at < b.at);
  const TopTwo& lead = a_leads ? a : b;
  const TopTwo& other = a_leads ? b : a;
  return {lead.first, lead.at, larger(lead.second, other.first)};
}

template <class Tile>
KVREPLAY_DEVICE TopTwo top_two_over_columns(TopTwo value) {
  KVREPLAY_UNROLL
  for (int mask = 1; mask < Tile::kLanesARow; mask *= 2) {
    const TopTwo other{shuffle_xor(value.first, mask), shuffle_xor(value.at, mask),
                       shuffle_xor(value.second, mask)};
    value = joined(value, other);
  }
  return value;
}

/// A row's softmax with its largest column set apart.
struct RowState {
  float top;
  int top_at;
  float rest_max, rest_sum;
};

/// What becomes of the sums when a later tile or segment joins.
struct Merge {
  float keep;   ///< factor of the sums so far
  float loser;  ///< weight of the column that was the largest so far and is no more; 0: none
  int loser_at;
  bool won;  ///< the later part has the new largest column
};

/// `first`, at `first_at`, is the later part's largest logit and `rest` the largest of its others. Leaves
/// rest_sum for the caller to finish.
KVREPLAY_DEVICE Merge merge_maxima(float first, int first_at, float rest, RowState& state) {
  Merge merge{1, 0, -1, first > state.top};
  float new_max = larger(state.rest_max, rest), loser = kHidden;
  if (merge.won) {
    loser = state.top;
    merge.loser_at = state.top_at;
    state.top = first;
    state.top_at = first_at;
    new_max = larger(new_max, loser);
  } else {
    new_max = larger(new_max, first);
  }
  merge.keep = state.rest_max > kHidden ? fast_exp(state.rest_max - new_max) : 0.0F;
  merge.loser = weight(loser, new_max);
  state.rest_max = new_max;
  state.rest_sum = state.rest_sum * merge.keep + merge.loser;
  return merge;
}

struct SoftmaxShared {
  Chunks chunks;
  float weights[kBlockRows * (kStep + kPad)];
  float values[kStep * kOutColumns];
};

/// Grid: blocks of rows, segments, G x parts of d_v.
template <template <int> class Tile>
KVREPLAY_KERNEL void softmax_kernel(ColumnProblem in, SoftmaxStates states) {
  using Scores = Tile<kStep>;
  using Out = Tile<kOutColumns>;
  constexpr int kRows = Scores::kRows;
  SoftmaxShared& shared = *reinterpret_cast<SoftmaxShared*>(shared_memory());
  const int parts = (in.d_v + kOutColumns - 1) / kOutColumns;
  const int g = static_cast<int>(block_id().z) / parts,
            first_out = static_cast<int>(block_id().z) % parts * kOutColumns;
  // The rows that see the most tokens come first.
  const int blocks = (in.rows + kBlockRows - 1) / kBlockRows;
  const int first_row = (blocks - 1 - static_cast<int>(block_id().x)) * kBlockRows;
  const int last_row = smaller(first_row + kBlockRows, in.rows) - 1;
  const int segment = static_cast<int>(block_id().y);
  const int begin = larger(states.begin + segment * states.per_segment, in.first_visible[first_row]);
  const int end = smaller(states.begin + (segment + 1) * states.per_segment, in.end_visible[last_row]);
  const float* q = in.q + g * in.head_rows * in.d;

  RowState state[kRows];
  int row[kRows], visible_from[kRows], visible_to[kRows];
  Out out;
  const bool sink = segment == 0 && in.sink_logit != nullptr;
  KVREPLAY_UNROLL
  for (int i = 0; i < kRows; ++i) {
    row[i] = first_row + warp_id() * 16 + Scores::row(i);
    const bool real = row[i] < in.rows;
    visible_from[i] = real ? in.first_visible[row[i]] : 0;
    visible_to[i] = real ? in.end_visible[row[i]] : 0;
    state[i] = {kHidden, -1, sink ? in.sink_logit[g] : kHidden, sink ? 1.0F : 0.0F};
    KVREPLAY_UNROLL
    for (int j = 0; j < Out::kCols; ++j) {
      const int c = first_out + Out::col(j);
      out.at[i][j] = sink && c < in.d_v ? -in.centre[c] : 0.0F;
    }
  }

  for (int first = begin; first < end; first += kStep) {
    Scores z;
    z.fill(0);
    BlockProduct<Tile, kThreads, kStep>::add(q, first_row, in.rows, in.k, first, in.tokens, in.d,
                                             shared.chunks, z);
    float* weights = shared.weights + warp_id() * 16 * (kStep + kPad);
    KVREPLAY_UNROLL
    for (int i = 0; i < kRows; ++i) {
      TopTwo tile{kHidden, 0x7fffffff, kHidden};
      KVREPLAY_UNROLL
      for (int j = 0; j < Scores::kCols; ++j) {
        const int p = first + Scores::col(j);
        const bool visible = p >= visible_from[i] && p < visible_to[i] && p < end;
        z.at[i][j] = visible ? entry_logit(in.scale * z.at[i][j], in.softcap).z : kHidden;
        tile = joined(tile, {z.at[i][j], p, kHidden});
      }
      tile = top_two_over_columns<Scores>(tile);
      const Merge merge = merge_maxima(tile.first, tile.at, tile.second, state[i]);
      float sum = 0;
      KVREPLAY_UNROLL
      for (int j = 0; j < Scores::kCols; ++j) {
        const bool apart = merge.won && first + Scores::col(j) == tile.at;
        const float w = apart ? 0.0F : weight(z.at[i][j], state[i].rest_max);
        sum += w;
        weights[Scores::row(i) * (kStep + kPad) + Scores::col(j)] = w;
      }
      state[i].rest_sum += over_columns<Scores>(sum, [](float a, float b) { return a + b; });
      KVREPLAY_UNROLL
      for (int j = 0; j < Out::kCols; ++j) out.at[i][j] *= merge.keep;
      if (merge.loser > 0) {
        const float* value = in.v_centred + static_cast<std::ptrdiff_t>(merge.loser_at) * in.d_v;
        KVREPLAY_UNROLL
        for (int j = 0; j < Out::kCols; ++j) {
          const int c = first_out + Out::col(j);
          if (c < in.d_v) out.at[i][j] = fused(merge.loser, value[c], out.at[i][j]);
        }
      }
    }
    for (int at = thread_id(); at < kStep * kOutColumns; at += kThreads) {
      const int p = first + at / kOutColumns, c = first_out + at % kOutColumns;
      shared.values[at] =
          p < in.tokens && c < in.d_v ? in.v_centred[static_cast<std::ptrdiff_t>(p) * in.d_v + c] : 0.0F;
    }
    sync_block();
    out.add_product(weights, kStep + kPad, shared.values, kOutColumns, kStep);
  }

  KVREPLAY_UNROLL
  for (int i = 0; i < kRows; ++i) {
    if (row[i] >= in.rows) continue;
    const std::ptrdiff_t at = (static_cast<std::ptrdiff_t>(segment) * in.G + g) * in.rows + row[i];
    if (first_out == 0 && lane_id() % Scores::kLanesARow == 0) {
      states.top[at] = state[i].top;
      states.top_at[at] = state[i].top_at;
      states.rest_max[at] = state[i].rest_max;
      states.rest_sum[at] = state[i].rest_sum;
    }
    KVREPLAY_UNROLL
    for (int j = 0; j < Out::kCols; ++j) {
      const int c = first_out + Out::col(j);
      if (c < in.d_v) states.rest_out[at * in.d_v + c] = out.at[i][j];
    }
  }
}

/// One warp a row; its lanes share the channels.
KVREPLAY_KERNEL void finish_kernel(ColumnProblem in, SoftmaxStates states, FinishedRows rows) {
  const int row = static_cast<int>(block_id().x) * kWarps + warp_id(), g = static_cast<int>(block_id().y);
  if (row >= in.rows) return;
  const std::ptrdiff_t at = static_cast<std::ptrdiff_t>(g) * in.rows + row;
  const std::ptrdiff_t all_rows = static_cast<std::ptrdiff_t>(in.G) * in.rows;
  float* out = states.rest_out + at * in.d_v;

  RowState state{states.top[at], states.top_at[at], states.rest_max[at], states.rest_sum[at]};
  for (int segment = 1; segment < states.segments; ++segment) {
    const std::ptrdiff_t later = segment * all_rows + at;
    const float* later_out = states.rest_out + later * in.d_v;
    const float later_max = states.rest_max[later], later_sum = states.rest_sum[later];
    const int later_at = states.top_at[later];
    const float later_top = states.top[later];
    const Merge merge = merge_maxima(later_top, later_at, later_max, state);
    // The later part's largest column, where it did not win, is one of the others now.
    const float lost = merge.won ? 0.0F : weight(later_top, state.rest_max);
    const float take = weight(later_max, state.rest_max);
    state.rest_sum += later_sum * take + lost;
    for (int c = lane_id(); c < in.d_v; c += 32) {
      float x = out[c] * merge.keep + later_out[c] * take;
      if (merge.loser > 0)
        x += merge.loser * in.v_centred[static_cast<std::ptrdiff_t>(merge.loser_at) * in.d_v + c];
      if (lost > 0) x += lost * in.v_centred[static_cast<std::ptrdiff_t>(later_at) * in.d_v + c];
      out[c] = x;
    }
  }

  const bool rest = state.rest_sum > 0;
  const double rest_lse = rest
                              ? static_cast<double>(state.rest_max) + log(static_cast<double>(state.rest_sum))
                              : -static_cast<double>(INFINITY);
  const int top = state.top_at >= 0 ? state.top_at : 0;
  const LargestColumn column = largest_column(static_cast<double>(state.top), rest_lse);
  double taylor_z = static_cast<double>(state.top);
  if (in.softcap > 0) {
    // Near the cap z no longer tells z_raw.
    double raw = 0;
    for (int c = lane_id(); c < in.d; c += 32)
      raw += static_cast<double>(in.q[(g * in.head_rows + row) * in.d + c]) *
             static_cast<double>(in.k[static_cast<std::ptrdiff_t>(top) * in.d + c]);
    const double slope = taylor_z / static_cast<double>(in.softcap);
    taylor_z = static_cast<double>(in.scale) * warp_sum(raw) * (1 - slope * slope);
  }
  const double per_sum = rest ? 1 / static_cast<double>(state.rest_sum) : 0;
  const double z_rest = taylor_z * column.one_minus_a;
  double diff_sq = 0, joint = 0, exact_joint = 0, out_sq = 0, out_centred_sq = 0, centre_dot_out = 0;
  for (int c = lane_id(); c < in.d_v; c += 32) {
    const double m = static_cast<double>(in.centre[c]);
    const double v = static_cast<double>(in.v_centred[static_cast<std::ptrdiff_t>(top) * in.d_v + c]);
    // A row that sees nothing else has the output 0 without its column.
    const double others = rest ? static_cast<double>(out[c]) * per_sum : -m;
    const double diff = v - others, o = others + column.a * diff;
    const double j = v + m + z_rest * diff, ej = column.a * (v + m) + column.delta * (others + m);
    diff_sq += diff * diff;
    joint += j * j;
    exact_joint += ej * ej;
    out_sq += (o + m) * (o + m);
    out_centred_sq += o * o;
    centre_dot_out += m * o;
    out[c] = static_cast<float>(o);
  }
  diff_sq = warp_sum(diff_sq);
  joint = warp_sum(joint);
  exact_joint = warp_sum(exact_joint);
  out_sq = warp_sum(out_sq);
  out_centred_sq = warp_sum(out_centred_sq);
  centre_dot_out = warp_sum(centre_dot_out);
  if (lane_id() != 0) return;

  const bool fits = state.top_at >= 0 && state.rest_max < INFINITY && finite(column.lse) &&
                    finite(static_cast<double>(static_cast<float>(out_sq)));
  rows.top_at[at] = state.top_at;
  rows.largest[at] = largest_scores(fits ? state.top_at : -1, column, taylor_z, diff_sq, joint, exact_joint);
  const double rescale = exp(smaller(column.lse, 0.0)), zero_logit = exp(-larger(column.lse, 0.0));
  const auto put = [&](RowNumber which, double value) {
    rows.numbers[which * all_rows + at] = static_cast<float>(value);
  };
  put(kRowLse, column.lse);
  put(kRowRescale, rescale);
  put(kRowZeroLogit, zero_logit);
  put(kRowZeroWeightSum, rescale + zero_logit);
  put(kRowZeroLogitOutSq, zero_logit * zero_logit * out_sq);
  put(kRowOutCentredSq, out_centred_sq);
  put(kRowCentreDotOut, centre_dot_out);
}

/// One row against one token that it sees and that is not its largest column.
struct Entry {
  float a, z, taylor;
  EntryDistances<float> to;
};

KVREPLAY_DEVICE EntryRow<float> row_at(const float* numbers, std::ptrdiff_t all_rows, std::ptrdiff_t at) {
  return {numbers[kRowLse * all_rows + at],
          numbers[kRowRescale * all_rows + at],
          numbers[kRowZeroLogit * all_rows + at],
          numbers[kRowZeroWeightSum * all_rows + at],
          numbers[kRowZeroLogitOutSq * all_rows + at],
          numbers[kRowOutCentredSq * all_rows + at],
          numbers[kRowCentreDotOut * all_rows + at]};
}

/// The distances of a token from a row of weight a. Tokens of the same value (a repeated word, padding) that
/// hold a row together are as near to its output as a sink, but none of them is its largest column alone.
KVREPLAY_DEVICE EntryDistances<float> distances(const EntryRow<float>& row, const EntryToken<float>& token,
                                                float v_dot_o, float a, const float* value,
                                                const float* output, const float* centre, int d_v) {
  constexpr float kLightest = 1.0F / 8192;
  const EntryDistances<float> to = entry_distances(row, token, v_dot_o);
  if (a > kLightest && distances_cancelled(row, token, to.u))
    return entry_differences(value, output, 1, centre, d_v);
  return to;
}

KVREPLAY_DEVICE void add_window(const EntryRow<float>& row, const Entry& e, float* sums) {
  const float a_sq = e.a * e.a, norm = scaled_norm(row, e.a);
  sums[kSumAttn] += e.a;
  sums[kSumAttnSq] += a_sq;
  sums[kSumKey] += key_entry(e.a, e.taylor, e.to.u);
  sums[kSumJointCross] += a_sq * e.taylor * e.to.v_dot_diff;
  sums[kSumExactKey] += exact_key_entry(row, e.a, e.z, e.to.u);
  sums[kSumExactJoint] += exact_joint_square(row, e.a, e.to).sum * norm * norm;
  sums[kSumExactRemove] += exact_remove_entry(e.a, e.to.u);
}

static_assert(kBlockRows == kScoredTokens, "");

/// Grid: blocks of tokens, segments, G.
template <template <int> class AnyTile, bool kFuture>
KVREPLAY_KERNEL void score_kernel(ColumnProblem in, FinishedRows finished, ScorePass pass) {
  using Tile = AnyTile<kStep>;
  using Product = BlockProduct<AnyTile, kThreads, kStep>;
  constexpr int kTokens = Tile::kRows, kSums = kFuture ? int{kFutureColumnSums} : int{kWindowColumnSums};
  Chunks& shared = *reinterpret_cast<Chunks*>(shared_memory());
  const int g = static_cast<int>(block_id().z), segment = static_cast<int>(block_id().y);
  const int first_token = static_cast<int>(block_id().x) * kBlockRows;
  const int range_begin = pass.ranges[2 * block_id().x], range_end = pass.ranges[2 * block_id().x + 1];
  const int range_steps = (range_end - range_begin + kStep - 1) / kStep;
  const int per_segment = (range_steps + pass.segments - 1) / pass.segments * kStep;
  const int begin = range_begin + segment * per_segment, end = smaller(begin + per_segment, range_end);
  const std::ptrdiff_t all_rows = static_cast<std::ptrdiff_t>(in.G) * in.rows;
  const std::ptrdiff_t head = static_cast<std::ptrdiff_t>(g) * in.rows;
  const float* q = in.q + g * in.head_rows * in.d;
  const float* outputs = pass.out_centred + head * in.d_v;

  double total[kTokens][kSums];
  int token[kTokens];
  EntryToken<float> value[kTokens];
  KVREPLAY_UNROLL
  for (int i = 0; i < kTokens; ++i) {
    token[i] = first_token + warp_id() * 16 + Tile::row(i);
    const int p = token[i] < in.candidates ? token[i] : 0;
    value[i] = {in.value_sq[p], in.value_centred_sq[p], in.centre_dot_value[p]};
    KVREPLAY_UNROLL
    for (int s = 0; s < kSums; ++s) total[i][s] = 0;
  }

  for (int first = begin; first < end; first += kStep) {
    Tile z, v_dot_o;
    z.fill(0);
    v_dot_o.fill(0);
    Product::add(in.k, first_token, in.tokens, q, first, in.rows, in.d, shared, z);
    Product::add(in.v_centred, first_token, in.tokens, outputs, first, in.rows, in.d_v, shared, v_dot_o);
    float sums[kTokens][kSums] = {};
    KVREPLAY_UNROLL
    for (int j = 0; j < Tile::kCols; ++j) {
      const int r = first + Tile::col(j);
      if (r >= end) continue;
      const EntryRow<float> row = row_at(finished.numbers, all_rows, head + r);
      const int from = in.first_visible[r], to = in.end_visible[r], apart = finished.top_at[head + r];
      KVREPLAY_UNROLL
      for (int i = 0; i < kTokens; ++i) {
        const int p = token[i];
        if (p < from || p >= to || p == apart || p >= in.candidates) continue;
        const EntryLogit<float> logit = entry_logit(in.scale * z.at[i][j], in.softcap);
        Entry e{fast_exp(logit.z - row.lse), logit.z, logit.taylor, {}};
        e.to = distances(row, value[i], v_dot_o.at[i][j], e.a,
                         in.v_centred + static_cast<std::ptrdiff_t>(p) * in.d_v,
                         outputs + static_cast<std::ptrdiff_t>(r) * in.d_v, in.centre, in.d_v);
        if (kFuture) {
          sums[i][kFutureRemove] += exact_remove_entry(e.a, e.to.u);
          sums[i][kFutureMaxAttn] = larger(sums[i][kFutureMaxAttn], e.a);
        } else {
          add_window(row, e, sums[i]);
        }
      }
    }
    KVREPLAY_UNROLL
    for (int i = 0; i < kTokens; ++i) {
      KVREPLAY_UNROLL
      for (int s = 0; s < kSums; ++s) {
        const double sum = static_cast<double>(sums[i][s]);
        total[i][s] = kFuture && s == kFutureMaxAttn ? larger(total[i][s], sum) : total[i][s] + sum;
      }
    }
  }

  KVREPLAY_UNROLL
  for (int i = 0; i < kTokens; ++i) {
    KVREPLAY_UNROLL
    for (int s = 0; s < kSums; ++s) {
      const double all =
          kFuture && s == kFutureMaxAttn
              ? over_columns<Tile>(total[i][s], [](double a, double b) { return larger(a, b); })
              : over_columns<Tile>(total[i][s], [](double a, double b) { return a + b; });
      if (token[i] < in.candidates && lane_id() % Tile::kLanesARow == 0)
        pass.sums[((static_cast<std::ptrdiff_t>(segment) * in.G + g) * kSums + s) * in.candidates +
                  token[i]] = all;
    }
  }
}

/// Adds the later segments to the first one, or takes the largest where s is kFutureMaxAttn of the future.
KVREPLAY_KERNEL void join_segments_kernel(ColumnProblem in, ScorePass pass) {
  const int n_sums = pass.future ? int{kFutureColumnSums} : int{kWindowColumnSums};
  const std::ptrdiff_t n = static_cast<std::ptrdiff_t>(in.G) * n_sums * in.candidates;
  const std::ptrdiff_t at = static_cast<std::ptrdiff_t>(block_id().x) * kThreads + thread_id();
  if (at >= n) return;
  const bool largest = pass.future && at / in.candidates % n_sums == kFutureMaxAttn;
  double all = pass.sums[at];
  for (int segment = 1; segment < pass.segments; ++segment) {
    const double more = pass.sums[segment * n + at];
    all = largest ? larger(all, more) : all + more;
  }
  pass.sums[at] = all;
}

}  // namespace

void softmax_pass(const ColumnProblem& problem, const SoftmaxStates& states, const Stream& stream) {
  launch(has_tf32() ? softmax_kernel<SplitTile> : softmax_kernel<WarpTile>,
         {blocks_of(problem.rows, kBlockRows), static_cast<unsigned>(states.segments),
          static_cast<unsigned>(problem.G) * blocks_of(problem.d_v, kOutColumns)},
         kThreads, sizeof(SoftmaxShared), stream, problem, states);
}

void finish_rows(const ColumnProblem& problem, const SoftmaxStates& states, const FinishedRows& rows,
                 const Stream& stream) {
  launch(finish_kernel, {blocks_of(problem.rows, kWarps), static_cast<unsigned>(problem.G)}, kThreads, 0,
         stream, problem, states, rows);
}

void score_pass(const ColumnProblem& problem, const FinishedRows& rows, const ScorePass& pass,
                const Stream& stream) {
  const Grid grid{blocks_of(problem.candidates, kScoredTokens), static_cast<unsigned>(pass.segments),
                  static_cast<unsigned>(problem.G)};
  auto* const kernel = has_tf32()
                           ? (pass.future ? score_kernel<SplitTile, true> : score_kernel<SplitTile, false>)
                           : (pass.future ? score_kernel<WarpTile, true> : score_kernel<WarpTile, false>);
  launch(kernel, grid, kThreads, sizeof(Chunks), stream, problem, rows, pass);
  if (pass.segments == 1) return;
  const std::ptrdiff_t n = static_cast<std::ptrdiff_t>(problem.G) *
                           (pass.future ? int{kFutureColumnSums} : int{kWindowColumnSums}) *
                           problem.candidates;
  launch(join_segments_kernel, {blocks_of(n, kThreads)}, kThreads, 0, stream, problem, pass);
}

}  // namespace kvreplay::cuda
