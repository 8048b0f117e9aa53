#include "sim/cuda/chunks.hpp"
#include "sim/cuda/softmax.hpp"
#include "sim/tokens/cuda/column_kernels.hpp"

namespace kvreplay::cuda {
namespace {

constexpr int kTokenWarps = kScoredTokens / 32, kThreads = 32 * kTokenWarps * kScoredSlabs;
constexpr int kStepRows = kSlab * kScoredSlabs;
constexpr int kTiles = 2, kColumnTiles = kSlab / 8;
constexpr int kTokens = 4;  // each lane's
/// Steps that are summed in float32 before float64 takes over.
constexpr int kStepsAtOnce = 8;

using Tile = HalfTile<kTiles, kColumnTiles>;

/// One row against one token that it sees and that is not its largest column.
struct Entry {
  float a, z, taylor;
  EntryDistances<float> to;
};

/// What pass two needs of a token.
struct Token {
  int at;
  float k_unit;
  EntryToken<float> value;
};

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

/// The slabs that see something of a block's tokens, head by head.
struct Slabs {
  int first, a_head, padded_rows;

  KVREPLAY_DEVICE int head(int slab) const { return slab / a_head; }
  /// The slab's first row among the packed ones.
  KVREPLAY_DEVICE int row(int slab) const {
    return head(slab) * padded_rows + (first + slab % a_head) * kSlab;
  }
};

/// Grid: blocks of tokens, segments. Warp (s, t) has the s-th slab of each step and 32 tokens.
template <bool kResident, bool kFuture>
KVREPLAY_KERNEL void score_kernel(ColumnProblem in, FinishedRows finished, ScorePass pass) {
  constexpr int kStages = kResident ? kStagesWhereResident : 1;
  constexpr int kSums = kFuture ? int{kFutureColumnSums} : int{kWindowColumnSums};
  const int first_token = static_cast<int>(block_id().x) * kScoredTokens;
  const int segment = static_cast<int>(block_id().y);
  const int token_warp = warp_id() % kTokenWarps, own_slab = warp_id() / kTokenWarps;

  const int first_slab = pass.ranges[2 * block_id().x] / kSlab;
  const int end_slab = (pass.ranges[2 * block_id().x + 1] + kSlab - 1) / kSlab;
  const Slabs slabs{first_slab, end_slab - first_slab, in.padded_rows};
  const int all_slabs = in.G * slabs.a_head;
  const int all_steps = (all_slabs + kScoredSlabs - 1) / kScoredSlabs;
  const int steps_a_segment = (all_steps + pass.segments - 1) / pass.segments;
  const int first_step = segment * steps_a_segment;
  const int steps = smaller(steps_a_segment, all_steps - first_step);

  const int key_chunks = chunks_of(in.k.depth), value_chunks = chunks_of(in.v.halves.depth);
  const int jobs_a_step = key_chunks + value_chunks, jobs = larger(steps, 0) * jobs_a_step;
  const bool q_low = in.q.low != nullptr, k_low = in.k.low != nullptr;
  const bool out_low = finished.out.low != nullptr, v_low = in.v.halves.low != nullptr;
  auto* const keys = reinterpret_cast<HalfBits*>(shared_memory());
  const int key_halves = chunk_halves(kScoredTokens) * (k_low ? 2 : 1);
  const int value_halves = chunk_halves(kScoredTokens) * (v_low ? 2 : 1);
  HalfBits* const values = keys + (kResident ? key_chunks * key_halves : 0);
  HalfBits* const stages = keys + (kResident ? key_chunks * key_halves + value_chunks * value_halves
                                             : larger(key_halves, value_halves));
  const int stage_halves = chunk_halves(kStepRows) * (q_low || out_low ? 2 : 1);

  // Where there is one chunk of tokens at a time, keys and values take the same place.
  const auto token_chunk = [&](int part) {
    if (part < key_chunks) return ChunkAt<kScoredTokens>{keys + (kResident ? part * key_halves : 0), k_low};
    return ChunkAt<kScoredTokens>{values + (kResident ? (part - key_chunks) * value_halves : 0), v_low};
  };
  const auto copy_tokens = [&](int part) {
    const auto token = [&](int t) { return first_token + t < in.tokens ? first_token + t : -1; };
    if (part < key_chunks)
      token_chunk(part).template copy<kThreads>(in.k.high, in.k.low, in.k.depth, part, token);
    else
      token_chunk(part).template copy<kThreads>(in.v.halves.high, in.v.halves.low, in.v.halves.depth,
                                                part - key_chunks, token);
  };
  const auto row_chunk = [&](int job, bool low) {
    return ChunkAt<kStepRows>{stages + job % kStages * stage_halves, low};
  };
  const auto pipeline = copy_pipeline<kStages>([&](int job) {
    if (job < jobs) {
      const int step = first_step + job / jobs_a_step, part = job % jobs_a_step;
      const auto row = [&](int r) {
        const int slab = step * kScoredSlabs + r / kSlab;
        return slab < all_slabs ? slabs.row(slab) + r % kSlab : -1;
      };
      if (!kResident) copy_tokens(part);
      if (part < key_chunks)
        row_chunk(job, q_low).template copy<kThreads>(in.q.high, in.q.low, in.q.depth, part, row);
      else
        row_chunk(job, out_low)
            .template copy<kThreads>(finished.out.high, finished.out.low, finished.out.depth,
                                     part - key_chunks, row);
    }
    end_copy_batch();
  });

  Token token[kTokens];
  KVREPLAY_UNROLL
  for (int i = 0; i < kTokens; ++i) {
    token[i].at = first_token + token_warp * 32 + Tile::row(i / 2, i % 2 * 2);
    const int p = token[i].at < in.candidates ? token[i].at : 0;
    token[i].k_unit = in.k.unit[p];
    token[i].value = {in.v.value_sq[p], in.v.value_centred_sq[p], in.v.centre_dot_value[p]};
  }
  double* const sums_of_part = pass.sums + static_cast<std::ptrdiff_t>(segment * kScoredSlabs + own_slab) *
                                               in.G * kSums * in.candidates;
  float sums[kTokens][kSums] = {};
  const auto flush = [&](int head) {
    KVREPLAY_UNROLL
    for (int i = 0; i < kTokens; ++i) {
      KVREPLAY_UNROLL
      for (int s = 0; s < kSums; ++s) {
        const bool largest = kFuture && s == kFutureMaxAttn;
        double all = static_cast<double>(sums[i][s]);
        sums[i][s] = 0;
        KVREPLAY_UNROLL
        for (int mask = 1; mask < 4; mask *= 2) {
          const double other = shuffle_xor(all, mask);
          all = largest ? larger(all, other) : all + other;
        }
        if (lane_id() % 4 != 0 || token[i].at >= in.candidates) continue;
        double& sum =
            sums_of_part[static_cast<std::ptrdiff_t>(head * kSums + s) * in.candidates + token[i].at];
        sum = largest ? larger(sum, all) : sum + all;
      }
    }
  };

  if (kResident && jobs > 0)
    for (int part = 0; part < jobs_a_step; ++part) copy_tokens(part);
  pipeline.start();
  int job = 0;
  for (int step = 0; step < steps; ++step) {
    const int slab = (first_step + step) * kScoredSlabs + own_slab;
    const bool active = slab < all_slabs;
    Tile z, v_dot_o;
    z.fill(0);
    v_dot_o.fill(0);
    for (int part = 0; part < jobs_a_step; ++part, ++job) {
      pipeline.wait_for(job);
      if (!active) continue;
      const HalfRows own = token_chunk(part).rows_from(token_warp * 32);
      if (part < key_chunks)
        z.add_product_with_transpose(own, row_chunk(job, q_low).rows_from(own_slab * kSlab), kChunkStride,
                                     chunk_steps(in.k.depth, part));
      else
        v_dot_o.add_product_with_transpose(own, row_chunk(job, out_low).rows_from(own_slab * kSlab),
                                           kChunkStride, chunk_steps(in.v.halves.depth, part - key_chunks));
    }
    if (!active) continue;

    const int first_row = slabs.row(slab), head = slabs.head(slab);
    KVREPLAY_UNROLL
    for (int n = 0; n < kColumnTiles; ++n) {
      KVREPLAY_UNROLL
      for (int e = 0; e < 2; ++e) {
        const int row_at = first_row + Tile::col(n, e);
        const RowConstants row = finished.constants[row_at];
        KVREPLAY_UNROLL
        for (int i = 0; i < kTokens; ++i) {
          const int p = token[i].at;
          if (p < row.first_visible || p >= row.end_visible || p == row.apart || p >= in.candidates) continue;
          const EntryLogit<float> logit =
              entry_logit(z.at[i / 2][n][i % 2 * 2 + e] * row.q_scale * token[i].k_unit, in.softcap);
          Entry entry{fast_exp(logit.z - row.entry.lse), logit.z, logit.taylor, {}};
          entry.to =
              distances(row.entry, token[i].value, v_dot_o.at[i / 2][n][i % 2 * 2 + e] * row.o_scale, entry.a,
                        in.v.centred + static_cast<std::ptrdiff_t>(p) * in.d_v,
                        pass.out_centred + static_cast<std::ptrdiff_t>(row_at) * in.d_v, in.v.centre, in.d_v);
          if (kFuture) {
            sums[i][kFutureRemove] += exact_remove_entry(entry.a, entry.to.u);
            sums[i][kFutureMaxAttn] = larger(sums[i][kFutureMaxAttn], entry.a);
          } else {
            add_window(row.entry, entry, sums[i]);
          }
        }
      }
    }
    const int next = slab + kScoredSlabs;
    const bool last = step + 1 == steps || next >= all_slabs;
    if (last || slabs.head(next) != head || step % kStepsAtOnce == kStepsAtOnce - 1) flush(head);
  }
  wait_for_copies<0>();
}

/// Adds the later parts to the first one, or takes the largest where s is kFutureMaxAttn of the future.
KVREPLAY_KERNEL void join_kernel(ColumnProblem in, ScorePass pass) {
  const int n_sums = pass.future ? int{kFutureColumnSums} : int{kWindowColumnSums};
  const std::ptrdiff_t n = static_cast<std::ptrdiff_t>(in.G) * n_sums * in.candidates;
  const std::ptrdiff_t at = static_cast<std::ptrdiff_t>(block_id().x) * kThreads + thread_id();
  if (at >= n) return;
  const bool largest = pass.future && at / in.candidates % n_sums == kFutureMaxAttn;
  double all = pass.sums[at];
  for (int part = 1; part < pass.segments * kScoredSlabs; ++part) {
    const double more = pass.sums[part * n + at];
    all = largest ? larger(all, more) : all + more;
  }
  pass.sums[at] = all;
}

}  // namespace

void score_pass(const ColumnProblem& problem, const FinishedRows& rows, const ScorePass& pass,
                const Stream& stream) {
  const auto planes = [](const HalfMatrix& m) { return std::size_t{m.low != nullptr ? 2U : 1U}; };
  const auto chunks = [](const HalfMatrix& m) { return static_cast<std::size_t>(chunks_of(m.depth)); };
  const std::size_t a_plane = chunk_halves(kScoredTokens);
  const HalfMatrix &k = problem.k, &v = problem.v.halves;
  const ChunkPlan plan = chunk_plan(
      (planes(k) * chunks(k) + planes(v) * chunks(v)) * a_plane, larger(planes(k), planes(v)) * a_plane,
      larger(planes(problem.q), planes(rows.out)) * std::size_t{chunk_halves(kStepRows)});
  auto* const kernel = plan.resident ? (pass.future ? score_kernel<true, true> : score_kernel<true, false>)
                                     : (pass.future ? score_kernel<false, true> : score_kernel<false, false>);
  launch(kernel, {blocks_of(problem.candidates, kScoredTokens), static_cast<unsigned>(pass.segments)},
         kThreads, plan.bytes, stream, problem, rows, pass);
  const std::ptrdiff_t n = static_cast<std::ptrdiff_t>(problem.G) *
                           (pass.future ? int{kFutureColumnSums} : int{kWindowColumnSums}) *
                           problem.candidates;
  launch(join_kernel, {blocks_of(n, kThreads)}, kThreads, 0, stream, problem, pass);
}

}  // namespace kvreplay::cuda
