#include "sim/cuda/chunks.hpp"
#include "sim/cuda/softmax.hpp"
#include "sim/tokens/cuda/operands.hpp"
#include "sim/tokens/cuda/stored_rows.hpp"

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

/// Of equal logits the one at the lower position is the first.
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

/// number() out of line: what a row's former largest column takes must not cost every step registers.
KVREPLAY_SELDOM float seldom_number(const void* data, NumberType type, std::ptrdiff_t at) {
  return number({data, type}, at);
}

/// A row's softmax with its largest column set apart.
struct RowState {
  float top;
  int top_at;
  float rest_max, rest_sum;
};

/// What becomes of the sums when a later tile joins.
struct Merge {
  float keep;   ///< factor of the sums so far
  float loser;  ///< weight of the column that was the largest so far and is no more; 0: none
  int loser_at;
  bool won;  ///< the tile has the new largest column
};

/// `first`, at `first_at`, is the tile's largest logit and `rest` the largest of its others. Leaves rest_sum
/// for the caller to finish.
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

/// Makes logits of a step's products, hidden where a row does not see the token, and finds each lane row's
/// largest.
template <bool kAllVisible, class Known>
KVREPLAY_DEVICE void take_logits(const Known& known, int first, const float* q_scale, const int* visible_from,
                                 const int* visible_to, Scores& z, TopTwo* tile) {
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
        const bool visible = kAllVisible || (p >= visible_from[i] && p < visible_to[i]);
        x = visible ? entry_logit(x * q_scale[i] * k_unit[n][e], known.softcap()).z : kHidden;
        tile[i].first = larger(tile[i].first, x);
      }
    }
  }
}

/// Grid: blocks of rows, segments, parts of d_v.
template <class Known, bool kResident>
KVREPLAY_KERNEL void softmax_kernel(ColumnProblem in, SoftmaxStates states) {
  constexpr int kStages = kResident ? kStagesWhereResident : 1;
  const Known known{in};
  const int first_out = Known::kKnown ? 0 : static_cast<int>(block_id().z) * kOutColumns;
  // The rows that see the most tokens come first.
  const int blocks = (in.packed_rows() + kBlockRows - 1) / kBlockRows;
  const int first_row = (blocks - 1 - static_cast<int>(block_id().x)) * kBlockRows;
  const int segment = static_cast<int>(block_id().y);
  const Span seen = visible_to_block(in, first_row);
  const int begin = larger(states.begin + segment * states.per_segment, seen.begin);
  const int end = smaller(states.begin + (segment + 1) * states.per_segment, seen.end);

  const int key_chunks = chunks_of(known.key_depth());
  const int out_chunks = smaller(chunks_of(known.value_depth()) - first_out / kChunk, kOutChunks);
  const int jobs_a_step = key_chunks + out_chunks;
  const int jobs = (end > begin ? end - begin + kSoftmaxStep - 1 : 0) / kSoftmaxStep * jobs_a_step;
  const bool q_low = known.queries_two(), k_low = known.keys_two(), v_low = known.values_two();
  auto* const queries = reinterpret_cast<HalfBits*>(shared_memory());
  const int query_halves = chunk_halves(kBlockRows) * (q_low ? 2 : 1);
  HalfBits* const stages = queries + query_halves * (kResident ? key_chunks : 1);
  const int stage_halves = chunk_halves(kSoftmaxStep) * (k_low || v_low ? 2 : 1);

  const auto query_chunk = [&](int chunk) {
    return ChunkAt<kBlockRows>{queries + (kResident ? chunk : 0) * query_halves, q_low};
  };
  const auto copy_queries = [&](int chunk) {
    query_chunk(chunk).template copy<kThreads>(in.q.high, in.q.low, known.key_depth(), chunk, [&](int r) {
      return first_row + r < in.packed_rows() ? first_row + r : -1;
    });
  };
  const auto token_chunk = [&](int job, bool low) {
    return ChunkAt<kSoftmaxStep>{stages + job % kStages * stage_halves, low};
  };
  const auto pipeline = copy_pipeline<kStages>([&](int job) {
    if (job < jobs) {
      const int first = begin + job / jobs_a_step * kSoftmaxStep, part = job % jobs_a_step;
      const auto token = [&](int r) { return first + r < end ? first + r : -1; };
      if (part < key_chunks) {
        if (!kResident) copy_queries(part);
        token_chunk(job, k_low).template copy<kThreads>(in.k.high, in.k.low, known.key_depth(), part, token);
      } else {
        token_chunk(job, v_low)
            .template copy<kThreads>(in.v.halves.high, in.v.halves.low, known.value_depth(),
                                     first_out / kChunk + part - key_chunks, token);
      }
    }
    end_copy_batch();
  });

  const int own_row = first_row + warp_id() * kWarpRows, head = own_row / in.padded_rows;
  const bool active = own_row < in.packed_rows();
  const float value_unit = in.v.halves.unit[0] * (1 / kWeightUnit), per_value_unit = per_unit_of(value_unit);
  const bool sink = active && segment == 0 && in.sink_logit != nullptr;
  RowState state[kRows];
  int visible_from[kRows], visible_to[kRows];
  float q_scale[kRows];
  float out[kOutColumns / 8][4];  // in units of value_unit
  KVREPLAY_UNROLL
  for (int i = 0; i < kRows; ++i) {
    const int row = own_row + Scores::row(0, 2 * i), r = row % in.padded_rows;
    const bool real = active && r < in.rows;
    visible_from[i] = real ? in.first_visible[r] : 0;
    visible_to[i] = real ? smaller(in.end_visible[r], end) : 0;
    q_scale[i] = real ? in.q.unit[row] * in.scale : 0.0F;
    state[i] = {kHidden, -1, sink ? in.sink_logit[head] : kHidden, sink ? 1.0F : 0.0F};
  }
  const auto larger_of = [](int a, int b) { return larger(a, b); };
  const int all_see_from = warp_of(larger(visible_from[0], visible_from[1]), larger_of);
  const int all_see_to = -warp_of(larger(-visible_to[0], -visible_to[1]), larger_of);
  KVREPLAY_UNROLL
  for (int n = 0; n < kOutColumns / 8; ++n) {
    KVREPLAY_UNROLL
    for (int i = 0; i < 4; ++i) {
      const int c = first_out + Scores::col(n, i);
      out[n][i] = sink && c < in.d_v ? -in.v.centre[c] * per_value_unit : 0.0F;
    }
  }

  if (kResident && jobs > 0)
    for (int chunk = 0; chunk < key_chunks; ++chunk) copy_queries(chunk);
  pipeline.start();
  for (int job = 0; job < jobs;) {
    const int first = begin + job / jobs_a_step * kSoftmaxStep;
    Scores z;
    z.fill(0);
    KVREPLAY_UNROLL_BY(Known::kChunks)
    for (int chunk = 0; chunk < key_chunks; ++chunk, ++job) {
      pipeline.wait_for(job);
      if (active)
        z.add_product_with_transpose(query_chunk(chunk).rows_from(warp_id() * kWarpRows),
                                     token_chunk(job, k_low).rows_from(0), kChunkStride,
                                     chunk_steps(known.key_depth(), chunk), chunk == 0);
    }

    // Inside the mask no entry is asked whether its row sees it.
    const bool inside = Known::kKnown && first >= all_see_from && first + kSoftmaxStep <= all_see_to;
    TopTwo tile[kRows];
    if (inside)
      take_logits<true>(known, first, q_scale, visible_from, visible_to, z, tile);
    else
      take_logits<false>(known, first, q_scale, visible_from, visible_to, z, tile);
    bool leads = false;
    KVREPLAY_UNROLL
    for (int i = 0; i < kRows; ++i) {
      tile[i].first = over_row(tile[i].first, [](float a, float b) { return larger(a, b); });
      leads = leads || tile[i].first > state[i].top;
    }
    if (any_lane(leads)) {  // rare after the first tokens
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

    Weights weights;
    float keep[kRows];
    KVREPLAY_UNROLL
    for (int i = 0; i < kRows; ++i) {
      const Merge merge = merge_maxima(tile[i].first, tile[i].at, tile[i].second, state[i]);
      keep[i] = merge.keep;
      if (merge.loser > 0) {
        const std::ptrdiff_t at = static_cast<std::ptrdiff_t>(merge.loser_at) * in.d_v;
        const float loser = merge.loser * per_value_unit;
        KVREPLAY_UNROLL
        for (int n = 0; n < kOutColumns / 8; ++n) {
          KVREPLAY_UNROLL
          for (int e = 0; e < 2; ++e) {
            const int c = first_out + Scores::col(n, e);
            if (c >= (Known::kKnown ? known.value_depth() : in.d_v)) continue;
            float& x = out[n][2 * i + e];
            x = x * merge.keep +
                loser * (seldom_number(in.v.values.data, in.v.values.type, at + c) - in.v.centre[c]);
          }
        }
        keep[i] = 1;
      }
      float sum = 0;
      KVREPLAY_UNROLL
      for (int n = 0; n < kColumnTiles; ++n) {
        float w[2];
        KVREPLAY_UNROLL
        for (int e = 0; e < 2; ++e) {
          const bool apart = merge.won && first + Scores::col(n, e) == tile[i].at;
          w[e] = apart ? 0.0F : weight(z.at[0][n][2 * i + e], state[i].rest_max);
          sum += w[e];
        }
        weights.put(n, i, w[0], w[1], known.exact());
      }
      state[i].rest_sum += over_row(sum, [](float a, float b) { return a + b; });
    }

    KVREPLAY_UNROLL
    for (int chunk = 0; chunk < kOutChunks; ++chunk) {
      if (chunk >= out_chunks) continue;
      pipeline.wait_for(job);
      const HalfRows values = token_chunk(job, v_low).rows_from(0);
      ++job;
      if (!active) continue;
      KVREPLAY_UNROLL
      for (int n = 0; n < kChunk / 8; n += 2) {
        HalfTile<1, 2> sum;
        sum.fill(0);
        KVREPLAY_UNROLL
        for (int step = 0; step < kSoftmaxStep / 16; ++step) {
          const int at = 16 * step * kChunkStride + 8 * n;
          const HalfB high = load_b(values.high + at, kChunkStride);
          if (v_low) sum.add(0, &weights.high[step], load_b(values.low + at, kChunkStride));
          if (known.exact()) sum.add(0, &weights.low[step], high);
          sum.add(0, &weights.high[step], high);
        }
        KVREPLAY_UNROLL
        for (int i = 0; i < 8; ++i) {
          float& x = out[chunk * kChunk / 8 + n + i / 4][i % 4];
          x = fused(x, keep[i % 4 / 2], sum.at[0][i / 4][i % 4]);
        }
      }
    }
  }
  wait_for_copies<0>();

  KVREPLAY_UNROLL
  for (int i = 0; i < kRows; ++i) {
    const int row = own_row + Scores::row(0, 2 * i);
    if (!active || row % in.padded_rows >= in.rows) continue;
    const std::ptrdiff_t at = static_cast<std::ptrdiff_t>(segment) * in.packed_rows() + row;
    if (first_out == 0 && lane_id() % 4 == 0) {
      states.top[at] = state[i].top;
      states.top_at[at] = state[i].top_at;
      states.rest_max[at] = state[i].rest_max;
      states.rest_sum[at] = state[i].rest_sum;
    }
    KVREPLAY_UNROLL
    for (int n = 0; n < kOutColumns / 8; ++n) {
      KVREPLAY_UNROLL
      for (int e = 0; e < 2; ++e) {
        const int c = first_out + Scores::col(n, e);
        if (c < in.d_v) states.rest_out[at * in.d_v + c] = out[n][2 * i + e] * value_unit;
      }
    }
  }
}

}  // namespace

void softmax_pass(const ColumnProblem& problem, const SoftmaxStates& states, const Stream& stream) {
  const auto planes = [](const HalfMatrix& m) { return std::size_t{m.low != nullptr ? 2U : 1U}; };
  const std::size_t query_chunk = planes(problem.q) * std::size_t{chunk_halves(kBlockRows)};
  const std::size_t token_chunk =
      larger(planes(problem.k), planes(problem.v.halves)) * std::size_t{chunk_halves(kSoftmaxStep)};
  const ChunkPlan plan = chunk_plan(query_chunk * static_cast<std::size_t>(chunks_of(problem.q.depth)),
                                    query_chunk, token_chunk);
  using Kernel = void (*)(ColumnProblem, SoftmaxStates);
  const Kernel kernel = !plan.resident ? softmax_kernel<AnyOperands, false>
                                       : with_operands(problem, [](const auto& known) -> Kernel {
                                           return softmax_kernel<std::decay_t<decltype(known)>, true>;
                                         });
  launch(kernel,
         {blocks_of(problem.packed_rows(), kBlockRows), static_cast<unsigned>(states.segments),
          blocks_of(problem.d_v, kOutColumns)},
         kThreads, plan.bytes, stream, problem, states);
}

}  // namespace kvreplay::cuda
