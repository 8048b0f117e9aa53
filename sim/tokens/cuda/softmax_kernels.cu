#include "sim/cuda/chunks.hpp"
#include "sim/cuda/softmax.hpp"
#include "sim/tokens/cuda/operands.hpp"

namespace kvreplay::cuda {
namespace {

constexpr int kWarpRows = 16, kWarps = kBlockRows / kWarpRows, kThreads = 32 * kWarps;
constexpr int kRows = 2;          // each lane's
constexpr int kOutColumns = 128;  // of o, for each block
constexpr int kOutChunks = kOutColumns / kChunk;
constexpr float kWeightUnit = 16384;  // a half's whole range serves weights up to 1
constexpr int kColumnTiles = kSoftmaxStep / 8;

/// Lane row i has the entries 2 i and 2 i + 1 of every column tile.
using Scores = HalfTile<1, kColumnTiles>;

struct TopTwo {
  float first;
  int at;
  float second;
};

/// Among equal logits the one at the lower position is the first.
KVREPLAY_DEVICE TopTwo joined(const TopTwo& a, const TopTwo& b) {
  const bool a_leads = a.first > b.first || (a.first == b.first && a.at < b.at);
  const TopTwo& lead = a_leads ? a : b;
  const TopTwo& other = a_leads ? b : a;
  return {lead.first, lead.at, larger(lead.second, other.first)};
}

/// Over the four lanes that share a row, in a fixed order.
template <class T, class Join>
KVREPLAY_DEVICE T over_row(T value, Join join) {
  value = join(value, shuffle_xor(value, 1));
  return join(value, shuffle_xor(value, 2));
}
KVREPLAY_DEVICE TopTwo over_row(TopTwo value) {
  KVREPLAY_UNROLL
  for (int mask = 1; mask < 4; mask *= 2)
    value = joined(value, {shuffle_xor(value.first, mask), shuffle_xor(value.at, mask),
                           shuffle_xor(value.second, mask)});
  return value;
}

/// A row's softmax with its largest column set apart.
struct RowState {
  float top;
  int top_at;
  float rest_max, rest_sum;
};

/// Merge of the sums so far with a later tile.
struct Merge {
  float keep;   ///< factor of the sums so far
  float loser;  ///< weight of the column that was the largest so far and is no more; 0: none
  float loser_z;
  int loser_at;
  bool won;  ///< the tile has the new largest column
};

/// `first`, at `first_at`, is the tile's largest logit and `rest` the largest
/// of its others. Leaves rest_sum for the caller to finish.
KVREPLAY_DEVICE Merge merge_maxima(float first, int first_at, float rest, RowState& state) {
  Merge merge{1, 0, kHidden, -1, first > state.top};
  float new_max = larger(state.rest_max, rest);
  if (merge.won) {
    merge.loser_z = state.top;
    merge.loser_at = state.top_at;
    state.top = first;
    state.top_at = first_at;
    new_max = larger(new_max, merge.loser_z);
  } else {
    new_max = larger(new_max, first);
  }
  merge.keep = state.rest_max > kHidden ? fast_exp(state.rest_max - new_max) : 0.0F;
  merge.loser = weight(merge.loser_z, new_max);
  state.rest_max = new_max;
  state.rest_sum = state.rest_sum * merge.keep + merge.loser;
  return merge;
}

/// The tokens that some row of the block sees.
struct Span {
  int begin, end;
};
KVREPLAY_DEVICE Span visible_to_block(const ColumnProblem& in, int first_row) {
  Span seen{in.tokens, 0};
  for (int slab = 0; slab < kBlockRows / kSlab; ++slab) {
    const int row = first_row + slab * kSlab, r = row % in.padded_rows;
    if (row >= in.packed_rows()) break;
    seen.begin = smaller(seen.begin, in.first_visible[r]);
    seen.end = larger(seen.end, in.end_visible[smaller(r + kSlab, in.rows) - 1]);
  }
  return seen;
}

/// A warp's weights of a step as the A of a product: their halves.
struct Weights {
  HalfA high[kSoftmaxStep / 16], low[kSoftmaxStep / 16];

  KVREPLAY_DEVICE void put(int n, int row, float first, float second, bool exact) {
    const HalfPair a = split(first * kWeightUnit), b = split(second * kWeightUnit);
    high[n / 2].at[n % 2 * 2 + row] = packed(a.high, b.high);
    if (exact) low[n / 2].at[n % 2 * 2 + row] = packed(a.low, b.low);
  }
};

/// Part of a block: its rows, the tokens of a segment, channels of o.
struct Share {
  int first_row, segment, begin, end, first_out;

  KVREPLAY_DEVICE Share(const ColumnProblem& in, const SoftmaxStates& states, bool whole_outputs) {
    first_out = whole_outputs ? 0 : static_cast<int>(block_id().z) * kOutColumns;
    // The rows that see the most tokens come first.
    const int blocks = (in.packed_rows() + kBlockRows - 1) / kBlockRows;
    first_row = (blocks - 1 - static_cast<int>(block_id().x)) * kBlockRows;
    segment = static_cast<int>(block_id().y);
    const Span seen = visible_to_block(in, first_row);
    begin = larger(states.begin + segment * states.per_segment, seen.begin);
    end = smaller(states.begin + (segment + 1) * states.per_segment, seen.end);
  }
};

/// Chunks that pass through shared memory: a job is a chunk of a step's keys or, after these, a chunk of its
/// values.
template <class Known, bool kResident>
struct Chunks {
  static constexpr int kStages = kResident ? kStagesWhereResident : 1;

  const Known& known;
  const Share& share;
  int keys, outs, a_step, jobs;
  HalfBits *queries, *stages;
  int query_halves, stage_halves;

  KVREPLAY_DEVICE Chunks(const Known& operands, const Share& own) : known(operands), share(own) {
    keys = chunks_of(known.key_depth());
    outs = smaller(chunks_of(known.value_depth()) - share.first_out / kChunk, kOutChunks);
    a_step = keys + outs;
    const int tokens = share.end > share.begin ? share.end - share.begin + kSoftmaxStep - 1 : 0;
    jobs = tokens / kSoftmaxStep * a_step;
    queries = reinterpret_cast<HalfBits*>(shared_memory());
    query_halves = chunk_halves(kBlockRows) * (known.queries_two() ? 2 : 1);
    stages = queries + query_halves * (kResident ? keys : 1);
    stage_halves = chunk_halves(kSoftmaxStep) * (known.keys_two() || known.values_two() ? 2 : 1);
  }

  /// The first token of a job's step.
  KVREPLAY_DEVICE int first_token(int job) const { return share.begin + job / a_step * kSoftmaxStep; }
  KVREPLAY_DEVICE ChunkAt<kBlockRows> query_chunk(int chunk) const {
    return {queries + (kResident ? chunk : 0) * query_halves, known.queries_two()};
  }
  KVREPLAY_DEVICE ChunkAt<kSoftmaxStep> token_chunk(int job, bool low) const {
    return {stages + job % kStages * stage_halves, low};
  }
  KVREPLAY_DEVICE void copy_queries(int chunk) const {
    const ColumnProblem& in = known.in;
    const int first_row = share.first_row;
    query_chunk(chunk).template copy<kThreads>(in.q.high, in.q.low, known.key_depth(), chunk, [&](int r) {
      return first_row + r < in.packed_rows() ? first_row + r : -1;
    });
  }
  /// Starts a job's copies.
  KVREPLAY_DEVICE void issue(int job) const {
    const ColumnProblem& in = known.in;
    if (job < jobs) {
      const int first = first_token(job), part = job % a_step, end = share.end;
      const auto token = [&](int r) { return first + r < end ? first + r : -1; };
      if (!Known::kValues || part < keys) {
        if (!kResident) copy_queries(part);
        token_chunk(job, known.keys_two())
            .template copy<kThreads, 4>(in.k.high, in.k.low, known.key_depth(), part, token);
      } else {
        token_chunk(job, known.values_two())
            .template copy<kThreads, 4>(in.v.halves.high, in.v.halves.low, known.value_depth(),
                                        share.first_out / kChunk + part - keys, token);
      }
    }
    end_copy_batch();
  }
};

/// A lane's part of the block's outputs, in units of `unit`.
struct Outputs {
  float unit;
  float of[kOutColumns / 8][4];

  /// After a row's sink, whose value is 0, that is, -centre; 0 without.
  KVREPLAY_DEVICE void start(const ColumnProblem& in, int first_out, bool sink) {
    unit = in.v.halves.unit[0] * (1 / kWeightUnit);
    const float per_unit = per_unit_of(unit);
    KVREPLAY_UNROLL
    for (int n = 0; n < kOutColumns / 8; ++n) {
      KVREPLAY_UNROLL
      for (int i = 0; i < 4; ++i) {
        const int c = first_out + Scores::col(n, i);
        of[n][i] = sink && c < in.d_v ? -in.v.centre[c] * per_unit : 0.0F;
      }
    }
  }
};

/// A lane's rows, from `first` of its warp's on.
struct LaneRows {
  int first;
  bool active;  ///< the warp has rows
  bool sink;    ///< which they have seen before any token
  RowState state[kRows];
  int losers[kRows];  ///< set aside
  int visible_from[kRows], visible_to[kRows];
  float q_scale[kRows];

  KVREPLAY_DEVICE LaneRows(const ColumnProblem& in, const Share& share) {
    first = share.first_row + warp_id() * kWarpRows;
    active = first < in.packed_rows();
    const int head = first / in.padded_rows;
    sink = active && share.segment == 0 && in.sink_logit != nullptr;
    KVREPLAY_UNROLL
    for (int i = 0; i < kRows; ++i) {
      const int r = row(i) % in.padded_rows;
      const bool real = active && r < in.rows;
      visible_from[i] = real ? in.first_visible[r] : 0;
      visible_to[i] = real ? smaller(in.end_visible[r], share.end) : 0;
      q_scale[i] = real ? in.q.unit[row(i)] * in.scale : 0.0F;
      losers[i] = 0;
      state[i] = {kHidden, -1, sink ? in.sink_logit[head] : kHidden, sink ? 1.0F : 0.0F};
    }
  }
  /// Row i among the packed ones.
  KVREPLAY_DEVICE int row(int i) const { return first + Scores::row(0, 2 * i); }
};

/// Makes logits of a step's products, hidden where a row does not see the
/// token, and finds each lane row's largest.
template <bool kAllVisible, class Known>
KVREPLAY_DEVICE void take_logits(const Known& known, int first, const LaneRows& rows, Scores& z,
                                 TopTwo (&tile)[kRows]) {
  const ColumnProblem& in = known.in;
  float k_unit[kColumnTiles][2];
  KVREPLAY_UNROLL
  for (int n = 0; n < kColumnTiles; ++n) {
    KVREPLAY_UNROLL
    for (int e = 0; e < 2; ++e) {
      const int p = first + Scores::col(n, e);
      k_unit[n][e] = in.k.unit[kAllVisible ? p : smaller(p, in.tokens - 1)];
    }
  }
  KVREPLAY_UNROLL
  for (int i = 0; i < kRows; ++i) {
    tile[i] = {kHidden, 0x7fffffff, kHidden};
    KVREPLAY_UNROLL
    for (int n = 0; n < kColumnTiles; ++n) {
      KVREPLAY_UNROLL
      for (int e = 0; e < 2; ++e) {
        const int p = first + Scores::col(n, e);
        float& x = z.at[0][n][2 * i + e];
        const bool visible = kAllVisible || (p >= rows.visible_from[i] && p < rows.visible_to[i]);
        x = visible ? entry_logit(x * rows.q_scale[i] * k_unit[n][e], known.softcap()).z : kHidden;
        tile[i].first = larger(tile[i].first, x);
      }
    }
  }
}

/// Joins each row's largest logit of a step over its lanes; where some row has
/// a new largest column, where that is and what is second too.
KVREPLAY_DEVICE void find_leaders(const Scores& z, int first, const LaneRows& rows, TopTwo (&tile)[kRows]) {
  bool leads = false;
  KVREPLAY_UNROLL
  for (int i = 0; i < kRows; ++i) {
    tile[i].first = over_row(tile[i].first, [](float a, float b) { return larger(a, b); });
    leads = leads || tile[i].first > rows.state[i].top;
  }
  if (!any_lane(leads)) return;  // leaders are rare after the first tokens
  KVREPLAY_UNROLL
  for (int i = 0; i < kRows; ++i) {
    TopTwo two{kHidden, 0x7fffffff, kHidden};
    KVREPLAY_UNROLL
    for (int n = 0; n < kColumnTiles; ++n) {
      KVREPLAY_UNROLL
      for (int e = 0; e < 2; ++e)
        two = joined(two, {z.at[0][n][2 * i + e], first + Scores::col(n, e), kHidden});
    }
    tile[i] = over_row(two);
  }
}

/// Row i's former largest column waits for the end; false where there is no room.
KVREPLAY_DEVICE bool set_aside(const ColumnProblem& in, const Share& share, const Merge& merge, int i,
                               const SoftmaxStates& states, LaneRows& rows) {
  if (rows.losers[i] == kLosers) return false;
  const std::ptrdiff_t at = in.state_at(share.segment, rows.row(i)) * kLosers + rows.losers[i]++;
  if (share.first_out == 0 && lane_id() % 4 == 0) {
    states.loser[at] = merge.loser_z;
    states.loser_at[at] = merge.loser_at;
  }
  return true;
}

/// Adds two halves that lie side by side.
KVREPLAY_DEVICE void add_pair(const HalfBits* halves, float (&to)[2]) {
  const auto both = *reinterpret_cast<const std::uint32_t*>(halves);
  to[0] += from_half(static_cast<HalfBits>(both & 0xffffU));
  to[1] += from_half(static_cast<HalfBits>(both >> 16U));
}

/// Row i's former largest column joins its outputs.
template <class Known>
KVREPLAY_DEVICE void add_loser(const Known& known, int first_out, const Merge& merge, int i, Outputs& out) {
  const HalfMatrix& values = known.in.v.halves;
  const std::ptrdiff_t own = static_cast<std::ptrdiff_t>(merge.loser_at) * known.value_depth() + first_out;
  const float loser = merge.loser * kWeightUnit;
  KVREPLAY_UNROLL
  for (int n = 0; n < kOutColumns / 8; ++n) {
    if (first_out + 8 * n >= known.value_depth()) continue;
    float v[2] = {};
    add_pair(values.high + own + Scores::col(n, 0), v);
    if (known.values_two()) add_pair(values.low + own + Scores::col(n, 0), v);
    KVREPLAY_UNROLL
    for (int e = 0; e < 2; ++e) {
      float& x = out.of[n][2 * i + e];
      x = x * merge.keep + loser * v[e];
    }
  }
}

/// Takes a step's logits into the rows' states; leaves its weights, and what
/// the outputs are to be kept of.
template <class Known>
KVREPLAY_DEVICE void weigh(const Known& known, const Share& share, int first, const Scores& z,
                           const TopTwo (&tile)[kRows], const SoftmaxStates& states, LaneRows& rows,
                           Outputs& out, Weights& weights, float (&keep)[kRows]) {
  KVREPLAY_UNROLL
  for (int i = 0; i < kRows; ++i) {
    RowState& state = rows.state[i];
    const Merge merge = merge_maxima(tile[i].first, tile[i].at, tile[i].second, state);
    keep[i] = merge.keep;
    if (Known::kValues && merge.loser > 0 && !set_aside(known.in, share, merge, i, states, rows)) {
      add_loser(known, share.first_out, merge, i, out);
      keep[i] = 1;
    }
    float sum = 0;
    KVREPLAY_UNROLL
    for (int n = 0; n < kColumnTiles; ++n) {
      float w[2];
      KVREPLAY_UNROLL
      for (int e = 0; e < 2; ++e) {
        const bool apart = merge.won && first + Scores::col(n, e) == tile[i].at;
        w[e] = apart ? 0.0F : weight(z.at[0][n][2 * i + e], state.rest_max);
        sum += w[e];
      }
      if (Known::kValues) weights.put(n, i, w[0], w[1], known.exact());
    }
    state.rest_sum += over_row(sum, [](float a, float b) { return a + b; });
  }
}

/// A chunk of the outputs := keep of it + the weights times the step's values. Products that add up to the
/// same sums are as far apart as registers allow: one waits for the one before.
template <class Known>
KVREPLAY_DEVICE void add_values(const Known& known, const HalfRows& values, const Weights& weights,
                                const float (&keep)[kRows], int chunk, Outputs& out) {
  constexpr int kPairs = kChunk / 16;
  HalfTile<1, 2> sum[kPairs];
  KVREPLAY_UNROLL
  for (int pair = 0; pair < kPairs; ++pair) sum[pair].fill(0);
  KVREPLAY_UNROLL
  for (int step = 0; step < kSoftmaxStep / 16; ++step) {
    const int at = 16 * step * kChunkStride;
    HalfB high[kPairs];
    KVREPLAY_UNROLL
    for (int pair = 0; pair < kPairs; ++pair) {
      high[pair] = load_b(values.high + at + 16 * pair, kChunkStride);
      if (known.values_two())
        sum[pair].add(0, &weights.high[step], load_b(values.low + at + 16 * pair, kChunkStride));
    }
    KVREPLAY_UNROLL
    for (int pair = 0; known.exact() && pair < kPairs; ++pair)
      sum[pair].add(0, &weights.low[step], high[pair]);
    KVREPLAY_UNROLL
    for (int pair = 0; pair < kPairs; ++pair) sum[pair].add(0, &weights.high[step], high[pair]);
  }
  KVREPLAY_UNROLL
  for (int i = 0; i < kChunk / 2; ++i) {
    float& x = out.of[chunk * kChunk / 8 + i / 4][i % 4];
    x = fused(x, keep[i % 4 / 2], sum[i / 8].at[0][i / 4 % 2][i % 4]);
  }
}

template <class Known>
KVREPLAY_DEVICE void store_states(const Known& known, const Share& share, const LaneRows& rows,
                                  const Outputs& out, const SoftmaxStates& states) {
  const ColumnProblem& in = known.in;
  KVREPLAY_UNROLL
  for (int i = 0; i < kRows; ++i) {
    const int row = rows.row(i);
    if (!rows.active || row % in.padded_rows >= in.rows) continue;
    const std::ptrdiff_t at = in.state_at(share.segment, row);
    if (share.first_out == 0 && lane_id() % 4 == 0) {
      states.top[at] = rows.state[i].top;
      states.top_at[at] = rows.state[i].top_at;
      states.rest_max[at] = rows.state[i].rest_max;
      states.rest_sum[at] = rows.state[i].rest_sum;
      if (Known::kValues) states.losers[at] = rows.losers[i];
    }
    KVREPLAY_UNROLL
    for (int n = 0; n < kOutColumns / 8 && Known::kValues; ++n) {
      KVREPLAY_UNROLL
      for (int e = 0; e < 2; ++e) {
        const int c = share.first_out + Scores::col(n, e);
        if (c < in.d_v) states.rest_out[at * in.d_v + c] = out.of[n][2 * i + e] * out.unit;
      }
    }
  }
}

/// Grid: blocks of rows, segments, parts of d_v.
template <class Known, bool kResident>
KVREPLAY_KERNEL void softmax_kernel(ColumnProblem in, SoftmaxStates states) {
  const Known known{in};
  const Share share(in, states, Known::kKnown);
  const Chunks<Known, kResident> chunks(known, share);
  const auto pipeline = copy_pipeline<decltype(chunks)::kStages>([&](int job) { chunks.issue(job); });
  LaneRows rows(in, share);
  Outputs out;
  if (Known::kValues) out.start(in, share.first_out, rows.sink);
  const auto larger_of = [](int a, int b) { return larger(a, b); };
  const int all_see_from = warp_of(larger(rows.visible_from[0], rows.visible_from[1]), larger_of);
  const int all_see_to = -warp_of(larger(-rows.visible_to[0], -rows.visible_to[1]), larger_of);

  if (kResident && chunks.jobs > 0)
    for (int chunk = 0; chunk < chunks.keys; ++chunk) chunks.copy_queries(chunk);
  pipeline.start();
  for (int job = 0; job < chunks.jobs;) {
    const int first = chunks.first_token(job);
    Scores z;
    z.fill(0);
    KVREPLAY_UNROLL_BY(Known::kChunks)
    for (int chunk = 0; chunk < chunks.keys; ++chunk, ++job) {
      pipeline.wait_for(job);
      if (rows.active)
        z.add_product_with_transpose(chunks.query_chunk(chunk).rows_from(warp_id() * kWarpRows),
                                     chunks.token_chunk(job, known.keys_two()).rows_from(0), kChunkStride,
                                     chunk_steps(known.key_depth(), chunk), chunk == 0);
    }
    // Inside the mask no entry is asked whether its row sees it.
    const bool inside = Known::kKnown && first >= all_see_from && first + kSoftmaxStep <= all_see_to;
    TopTwo tile[kRows];
    if (inside)
      take_logits<true>(known, first, rows, z, tile);
    else
      take_logits<false>(known, first, rows, z, tile);
    find_leaders(z, first, rows, tile);
    Weights weights;
    float keep[kRows];
    weigh(known, share, first, z, tile, states, rows, out, weights, keep);
    KVREPLAY_UNROLL
    for (int chunk = 0; chunk < kOutChunks && Known::kValues; ++chunk) {
      if (chunk >= chunks.outs) continue;
      pipeline.wait_for(job);
      const HalfRows values = chunks.token_chunk(job, known.values_two()).rows_from(0);
      ++job;
      if (rows.active) add_values(known, values, weights, keep, chunk, out);
    }
  }
  wait_for_copies<0>();
  store_states(known, share, rows, out, states);
}

using SoftmaxKernel = void (*)(ColumnProblem, SoftmaxStates);

template <bool kValues>
SoftmaxKernel kernel_for(const ColumnProblem& problem, bool resident) {
  if (!resident) return softmax_kernel<AnyOperands<kValues>, false>;
  return with_operands<kValues>(problem, [](const auto& known) -> SoftmaxKernel {
    return softmax_kernel<std::decay_t<decltype(known)>, true>;
  });
}

}  // namespace

void softmax_pass(const ColumnProblem& problem, const SoftmaxStates& states, const Stream& stream) {
  const auto planes = [](const HalfMatrix& m) { return std::size_t{m.low != nullptr ? 2U : 1U}; };
  const std::size_t query_chunk = planes(problem.q) * std::size_t{chunk_halves(kBlockRows)};
  const std::size_t token_chunk =
      larger(planes(problem.k), planes(problem.v.halves)) * std::size_t{chunk_halves(kSoftmaxStep)};
  const ChunkPlan plan = chunk_plan(query_chunk * static_cast<std::size_t>(chunks_of(problem.q.depth)),
                                    query_chunk, token_chunk);
  const SoftmaxKernel kernel =
      problem.d_v > 0 ? kernel_for<true>(problem, plan.resident) : kernel_for<false>(problem, plan.resident);
  launch(kernel,
         {blocks_of(problem.packed_rows(), kBlockRows), static_cast<unsigned>(states.segments),
          larger(blocks_of(problem.d_v, kOutColumns), 1U)},
         kThreads, plan.bytes, stream, problem, states);
}

}  // namespace kvreplay::cuda
