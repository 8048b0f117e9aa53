#include "sim/cuda/chunks.hpp"
#include "sim/cuda/softmax.hpp"
#include "sim/tokens/cuda/operands.hpp"
#include "sim/tokens/cuda/stored_rows.hpp"

namespace kvreplay::cuda {
namespace {

KVREPLAY_HOST_DEVICE constexpr int threads_of(ScoreBlock block) {
  return scored_tokens(block) * kScoredSlabs;
}
constexpr int kJoinThreads = 256;
constexpr int kStepRows = kSlab * kScoredSlabs;
constexpr int kTiles = 2, kColumnTiles = kSlab / 8;
constexpr int kTokens = 4;  // each lane's
/// Squared distances and units below these never leave float32, whatever weights and logits they meet: a
/// product of halves is at most 2^30 d.
constexpr float kOrdinary = 1e12F, kOrdinaryUnit = 2.0F;
/// Steps that are summed in float32 before float64 takes over.
constexpr int kStepsAtOnce = 8;

using Tile = HalfTile<kTiles, kColumnTiles>;

/// Constants of a token for pass two.
struct Token {
  int at;
  float k_unit;
  EntryToken<float> value;
};

/// Lighter entries are too small for what is lost to be seen.
constexpr float kLightest = 1.0F / 8192;

/// True if the closed form of the distances of a token with weight a from the row has cancelled. Tokens of
/// equal value (a repeated word, padding) that hold a row together are as near to its output as a sink, but
/// none of them is its largest column alone.
KVREPLAY_DEVICE bool cancelled(const EntryRow<float>& row, const EntryToken<float>& token, float u, float a) {
  return a > kLightest && distances_cancelled(row, token, u);
}

/// The distances from the vectors, where the closed form has cancelled.
KVREPLAY_SELDOM EntryDistances<float> distances_apart(const PreparedRows& v, int token, const float* output,
                                                      int d_v) {
  return entry_differences(CentredValue(v, token, d_v), output, 1, v.centre, d_v);
}

template <ColumnSet kColumns, Range kRange>
KVREPLAY_DEVICE void add_entry(const EntryRow<float>& row, const RowEntry<float>& e, float* sums) {
  each_row_sum([&](auto formula) {
    using Formula = decltype(formula);
    if constexpr (has_sum(kColumns, Formula::kScore)) {
      float& sum = sums[sum_at(kColumns, Formula::kScore)];
      if constexpr (Formula::kSumApart)
        sum += Formula::part(e);
      else
        sum += Formula::template term<kRange>(row, e);
    }
  });
  if constexpr (has_max_attn(kColumns)) {
    float& most = sums[sums_of(kColumns)];
    most = larger(most, e.a);
  }
}

/// The slabs that see something of a block's tokens, head by head.
struct Slabs {
  int first, a_head, all, padded_rows;
};

/// Goes from one of them to a later one; there is no division on the way.
struct SlabWalk {
  int number, head, in_head;

  KVREPLAY_DEVICE static SlabWalk at(const Slabs& slabs, int number) {
    const int a_head = larger(slabs.a_head, 1);
    return {number, number / a_head, number % a_head};
  }
  KVREPLAY_DEVICE void go_on(const Slabs& slabs) {
    ++number;
    if (++in_head < slabs.a_head) return;
    in_head = 0;
    ++head;
  }
  KVREPLAY_DEVICE void go_on_by_step(const Slabs& slabs) {
    KVREPLAY_UNROLL
    for (int i = 0; i < kScoredSlabs; ++i) go_on(slabs);
  }
  /// The slab's first row among the packed ones; -1 behind the last slab.
  KVREPLAY_DEVICE int row(const Slabs& slabs) const {
    return number < slabs.all ? head * slabs.padded_rows + (slabs.first + in_head) * kSlab : -1;
  }
};

/// A warp's rows of a slab against its tokens.
template <class Known, ColumnSet kColumns>
struct SlabEntries {
  static constexpr int kSums = columns_of(kColumns);
  const Known& known;
  const FinishedRows& finished;
  const ScorePass& pass;
  const Token* token;  // [kTokens]
  int first_row;

  /// True if all rows see all 32 tokens from `first` on and none of these tokens is the largest column of a
  /// row. Where more than weights is computed, all numbers must be ordinary, too.
  KVREPLAY_DEVICE bool all_inside(int first) const {
    const RowConstants& row = finished.constants[first_row + lane_id()];
    const bool inside = first >= row.first_visible && first + 32 <= row.end_visible &&
                        (row.apart < first || row.apart >= first + 32);
    bool ordinary = !Known::kValues || (row.entry.out_centred_sq < kOrdinary && row.q_scale < kOrdinaryUnit);
    KVREPLAY_UNROLL
    for (int i = 0; i < kTokens && Known::kValues; ++i)
      ordinary = ordinary && token[i].value.value_centred_sq < kOrdinary && token[i].k_unit < kOrdinaryUnit;
    return first + 32 <= known.in.candidates && !any_lane(!(inside && ordinary));
  }

  /// For all_inside(); v_dot_o is of use where there are values.
  KVREPLAY_DEVICE void add_inside(const Tile& z, const Tile& v_dot_o, float (&sums)[kTokens][kSums]) const {
    KVREPLAY_UNROLL
    for (int n = 0; n < kColumnTiles; ++n) {
      const Column of_z = column_of(z, n), of_v = Known::kValues ? column_of(v_dot_o, n) : Column{};
      KVREPLAY_UNROLL
      for (int e = 0; e < 2; ++e) add_row<true>(n, e, of_z, of_v, sums);
    }
  }
  /// For what is seldom, borders of the mask and operands that are not known: a loop whose column tiles go
  /// through memory, for unrolled it would take as long to compile as all the rest.
  template <bool kAllInside>
  KVREPLAY_DEVICE void add_in_loop(const Tile& z, const Tile& v_dot_o, float (&sums)[kTokens][kSums]) const {
    Column of_z[kColumnTiles], of_v[kColumnTiles];
    KVREPLAY_UNROLL
    for (int n = 0; n < kColumnTiles; ++n) {
      of_z[n] = column_of(z, n);
      of_v[n] = Known::kValues ? column_of(v_dot_o, n) : Column{};
    }
    KVREPLAY_UNROLL_BY(1)
    for (int n = 0; n < kColumnTiles; ++n) {
      KVREPLAY_UNROLL
      for (int e = 0; e < 2; ++e) add_row<kAllInside>(n, e, of_z[n], of_v[n], sums);
    }
  }

 private:
  /// One column tile of products.
  struct Column {
    float at[kTiles][4];
  };
  KVREPLAY_DEVICE static Column column_of(const Tile& tile, int n) {
    Column column;
    KVREPLAY_UNROLL
    for (int m = 0; m < kTiles; ++m) {
      KVREPLAY_UNROLL
      for (int i = 0; i < 4; ++i) column.at[m][i] = tile.at[m][n][i];
    }
    return column;
  }

  template <bool kAllInside>
  KVREPLAY_DEVICE void add_row(int n, int e, const Column& z, const Column& v_dot_o,
                               float (&sums)[kTokens][kSums]) const {
    constexpr Range kRange = kAllInside ? Range::finite : Range::any;
    const int row_at = first_row + Tile::col(n, e);
    const RowConstants row = finished.constants[row_at];
    RowEntry<float> entry[kTokens];
    bool counts[kTokens];
    KVREPLAY_UNROLL
    for (int i = 0; i < kTokens; ++i) {
      const int p = token[i].at;
      counts[i] = kAllInside || (p >= row.first_visible && p < row.end_visible && p != row.apart &&
                                 p < known.in.candidates);
      const EntryLogit<float> logit =
          entry_logit(z.at[i / 2][i % 2 * 2 + e] * row.q_scale * token[i].k_unit, known.softcap());
      const float a = fast_exp(logit.z - row.entry.lse);
      entry[i] = {a, logit.z, logit.taylor, token[i].value.value_sq, {}};
    }
    if constexpr (Known::kValues) {
      KVREPLAY_UNROLL
      for (int i = 0; i < kTokens; ++i)
        entry[i].to =
            entry_distances(row.entry, token[i].value, v_dot_o.at[i / 2][i % 2 * 2 + e], row.o_scale);
      take_differences(row, row_at, counts, entry);
    }
    KVREPLAY_UNROLL
    for (int i = 0; i < kTokens; ++i)
      if (counts[i]) add_entry<kColumns, kRange>(row.entry, entry[i], sums[i]);
  }

  /// Takes the distances that have cancelled from the vectors.
  KVREPLAY_DEVICE void take_differences(const RowConstants& row, int row_at, const bool (&counts)[kTokens],
                                        RowEntry<float> (&entry)[kTokens]) const {
    // Below this a distance of one of the tokens may have cancelled.
    float least = token[0].value.value_centred_sq;
    KVREPLAY_UNROLL
    for (int i = 1; i < kTokens; ++i) least = larger(least, token[i].value.value_centred_sq);
    least = kCancelled<float> * (least + row.entry.out_centred_sq);
    bool apart = false;
    KVREPLAY_UNROLL
    for (int i = 0; i < kTokens; ++i) apart = apart | (counts[i] & !(entry[i].to.u >= least));
    if (!any_lane(apart)) return;
    const ColumnProblem& in = known.in;
    KVREPLAY_UNROLL
    for (int i = 0; i < kTokens; ++i)
      if (counts[i] && cancelled(row.entry, token[i].value, entry[i].to.u, entry[i].a))
        entry[i].to = distances_apart(
            in.v, token[i].at, pass.out_centred + static_cast<std::ptrdiff_t>(row_at) * in.d_v, in.d_v);
  }
};

/// Chunks that pass through shared memory. A step has kScoredSlabs slabs. A job is a chunk of the step's
/// rows, first of the queries, then of the outputs; it meets one chunk of the block's tokens.
template <class Known, ScoreBlock kBlock>
struct Chunks {
  static constexpr bool kResident = kBlock != ScoreBlock::streamed;
  static constexpr int kStages = score_stages(kBlock), kScoredTokens = scored_tokens(kBlock);
  static constexpr int kThreads = threads_of(kBlock);

  const Known& known;
  const FinishedRows& finished;
  const Slabs& slabs;
  int first_token, keys, values, a_step, jobs;
  HalfBits *key_place, *value_place, *stages;
  int key_halves, value_halves, stage_halves;
  // The slabs whose rows are copied next.
  SlabWalk first_copied, second_copied;

  KVREPLAY_DEVICE Chunks(const Known& operands, const FinishedRows& rows, const Slabs& all,
                         int first_of_tokens, int first_step, int steps)
      : known(operands), finished(rows), slabs(all), first_token(first_of_tokens) {
    keys = chunks_of(known.key_depth());
    values = chunks_of(known.value_depth());
    a_step = keys + values;
    jobs = larger(steps, 0) * a_step;
    key_halves = chunk_halves(kScoredTokens) * (known.keys_two() ? 2 : 1);
    value_halves = chunk_halves(kScoredTokens) * (known.values_two() ? 2 : 1);
    stage_halves = chunk_halves(kStepRows) * (known.queries_two() || known.exact() ? 2 : 1);
    // Where there is one chunk of tokens at a time, keys and values take the same place.
    key_place = reinterpret_cast<HalfBits*>(shared_memory());
    value_place = key_place + (kResident ? keys * key_halves : 0);
    stages = key_place +
             (kResident ? keys * key_halves + values * value_halves : larger(key_halves, value_halves));
    static_assert(kScoredSlabs == 2, "");
    first_copied = second_copied = SlabWalk::at(slabs, first_step * kScoredSlabs);
    second_copied.go_on(slabs);
  }

  /// True if a part of a step is a chunk of the keys; else it is a chunk of the values.
  KVREPLAY_DEVICE bool is_of_keys(int part) const { return !Known::kValues || part < keys; }
  KVREPLAY_DEVICE ChunkAt<kScoredTokens> token_chunk(int part) const {
    if (is_of_keys(part)) return {key_place + (kResident ? part * key_halves : 0), known.keys_two()};
    return {value_place + (kResident ? (part - keys) * value_halves : 0), known.values_two()};
  }
  KVREPLAY_DEVICE ChunkAt<kStepRows> row_chunk(int job, bool low) const {
    return {stages + job % kStages * stage_halves, low};
  }
  KVREPLAY_DEVICE void copy_tokens(int part) const {
    const ColumnProblem& in = known.in;
    const int first = first_token;
    const auto token = [&](int t) { return first + t < in.tokens ? first + t : -1; };
    if (is_of_keys(part))
      token_chunk(part).template copy<kThreads>(in.k.high, in.k.low, known.key_depth(), part, token);
    else
      token_chunk(part).template copy<kThreads>(in.v.halves.high, in.v.halves.low, known.value_depth(),
                                                part - keys, token);
  }
  /// Starts a job's copies.
  KVREPLAY_DEVICE void issue(int job) {
    const ColumnProblem& in = known.in;
    if (job < jobs) {
      const int part = job % a_step;
      if (part == 0 && job > 0) {
        first_copied.go_on_by_step(slabs);
        second_copied.go_on_by_step(slabs);
      }
      const int first_row = first_copied.row(slabs), second_row = second_copied.row(slabs);
      const auto row = [&](int r) {
        const int slab_row = r < kSlab ? first_row : second_row;
        return slab_row >= 0 ? slab_row + r % kSlab : -1;
      };
      if (!kResident) copy_tokens(part);
      if (is_of_keys(part))
        row_chunk(job, known.queries_two())
            .template copy<kThreads, 4>(in.q.high, in.q.low, known.key_depth(), part, row);
      else
        row_chunk(job, known.exact())
            .template copy<kThreads, 4>(finished.out.high, finished.out.low, known.value_depth(), part - keys,
                                        row);
    }
    end_copy_batch();
  }
};

/// A lane's tokens among the 32 from `first` on.
template <class Known>
KVREPLAY_DEVICE void take_tokens(const ColumnProblem& in, int first, Token (&token)[kTokens]) {
  KVREPLAY_UNROLL
  for (int i = 0; i < kTokens; ++i) {
    token[i].at = first + Tile::row(i / 2, i % 2 * 2);
    const int p = token[i].at < in.candidates ? token[i].at : 0;
    token[i].k_unit = in.k.unit[p];
    token[i].value = {};
    if constexpr (Known::kValues)
      token[i].value = {in.v.value_sq[p], in.v.value_centred_sq[p], in.v.centre_dot_value[p]};
  }
}

/// One part of the sums, [G][kSums][candidates].
template <ColumnSet kColumns>
struct PartOfSums {
  static constexpr int kSums = columns_of(kColumns);

  const ColumnProblem& in;
  double* first;

  KVREPLAY_DEVICE PartOfSums(const ColumnProblem& problem, const ScorePass& pass, int part)
      : in(problem), first(pass.sums + static_cast<std::ptrdiff_t>(part) * in.G * kSums * in.candidates) {}

  KVREPLAY_DEVICE double& at(int head, int s, int p) const {
    return first[static_cast<std::ptrdiff_t>(head * kSums + s) * in.candidates + p];
  }
  /// No row sees the block's tokens: nobody else stores anything. The warps of one slab call.
  KVREPLAY_DEVICE void clear(int first_token) const {
    for (int number = 0; number < in.G * kSums; ++number)
      if (first_token + thread_id() < in.candidates) at(0, number, first_token + thread_id()) = 0;
  }
  /// Brings a head's sums in float32 to those in float64.
  KVREPLAY_DEVICE void flush(int head, const Token (&token)[kTokens], float (&sums)[kTokens][kSums]) const {
    KVREPLAY_UNROLL
    for (int i = 0; i < kTokens; ++i) {
      KVREPLAY_UNROLL
      for (int s = 0; s < kSums; ++s) {
        const bool largest = s == sums_of(kColumns);
        double all = static_cast<double>(sums[i][s]);
        if (has_sum(kColumns, RowScore::joint) && s == sum_at(kColumns, RowScore::joint))
          all = RowFormula<RowScore::joint>::whole(
              sums[i][s], sums[i][sum_at(kColumns, RowScore::attention_sq)],
              sums[i][sum_at(kColumns, RowScore::key)], token[i].value.value_sq);
        KVREPLAY_UNROLL
        for (int mask = 1; mask < 4; mask *= 2) {
          const double other = shuffle_xor(all, mask);
          all = largest ? larger(all, other) : all + other;
        }
        if (lane_id() % 4 != 0 || token[i].at >= in.candidates) continue;
        double& sum = at(head, s, token[i].at);
        sum = in.one_slab() ? all : largest ? larger(sum, all) : sum + all;
      }
      KVREPLAY_UNROLL
      for (int s = 0; s < kSums; ++s) sums[i][s] = 0;
    }
  }
};

/// Grid: blocks of tokens, segments. Warp (s, t) has the s-th slab of each step and 32 tokens.
template <class Known, ScoreBlock kBlock, ColumnSet kColumns>
KVREPLAY_KERNEL void score_kernel(ColumnProblem in, FinishedRows finished, ScorePass pass) {
  constexpr int kTokenWarps = scored_tokens(kBlock) / 32;
  const Known known{in};
  const int first_token = static_cast<int>(block_id().x) * scored_tokens(kBlock);
  const int segment = static_cast<int>(block_id().y);
  const int token_warp = warp_id() % kTokenWarps, own_slab = warp_id() / kTokenWarps;
  const int first_slab = pass.ranges[2 * block_id().x] / kSlab;
  const int end_slab = (pass.ranges[2 * block_id().x + 1] + kSlab - 1) / kSlab;
  const Slabs slabs{first_slab, end_slab - first_slab, in.G * (end_slab - first_slab), in.padded_rows};
  const int all_steps = (slabs.all + kScoredSlabs - 1) / kScoredSlabs;
  const int steps_a_segment = (all_steps + pass.segments - 1) / pass.segments;
  const int first_step = segment * steps_a_segment;
  const int steps = smaller(steps_a_segment, all_steps - first_step);
  Chunks<Known, kBlock> chunks(known, finished, slabs, first_token, first_step, steps);
  const auto pipeline = copy_pipeline<decltype(chunks)::kStages>([&](int job) { chunks.issue(job); });
  Token token[kTokens];
  take_tokens<Known>(in, first_token + token_warp * 32, token);
  const PartOfSums<kColumns> part_of_sums(in, pass, in.one_slab() ? 0 : segment * kScoredSlabs + own_slab);
  if (in.one_slab() && slabs.all == 0 && segment == 0 && own_slab == 0) part_of_sums.clear(first_token);

  float sums[kTokens][PartOfSums<kColumns>::kSums] = {};
  SlabWalk own = SlabWalk::at(slabs, first_step * kScoredSlabs + own_slab);
  if (chunks.kResident && chunks.jobs > 0)
    for (int part = 0; part < chunks.a_step; ++part) chunks.copy_tokens(part);
  pipeline.start();
  int job = 0;
  for (int step = 0; step < steps; ++step) {
    const bool active = own.number < slabs.all;
    Tile z, v_dot_o;
    KVREPLAY_UNROLL_BY(Known::kAllChunks)
    for (int part = 0; part < chunks.a_step; ++part, ++job) {
      pipeline.wait_for(job);
      if (!active) continue;
      const HalfRows tokens = chunks.token_chunk(part).rows_from(token_warp * 32);
      if (chunks.is_of_keys(part))
        z.add_product_with_transpose(tokens,
                                     chunks.row_chunk(job, known.queries_two()).rows_from(own_slab * kSlab),
                                     kChunkStride, chunk_steps(known.key_depth(), part), part == 0);
      else
        v_dot_o.add_product_with_transpose(
            tokens, chunks.row_chunk(job, known.exact()).rows_from(own_slab * kSlab), kChunkStride,
            chunk_steps(known.value_depth(), part - chunks.keys), part == chunks.keys);
    }
    if (!active) continue;
    const int first_row = own.row(slabs), head = own.head;
    const SlabEntries<Known, kColumns> entries{known, finished, pass, token, first_row};
    if (!entries.all_inside(first_token + token_warp * 32))
      entries.template add_in_loop<false>(z, v_dot_o, sums);
    else if constexpr (Known::kKnown)
      entries.add_inside(z, v_dot_o, sums);
    else
      entries.template add_in_loop<true>(z, v_dot_o, sums);
    own.go_on_by_step(slabs);
    const bool last = step + 1 == steps || own.number >= slabs.all;
    if (last || own.head != head || step % kStepsAtOnce == kStepsAtOnce - 1)
      part_of_sums.flush(head, token, sums);
  }
  wait_for_copies<0>();
}

/// Adds the later parts to the first one, or takes the largest of max_attn.
KVREPLAY_KERNEL void join_kernel(ColumnProblem in, ScorePass pass) {
  const int n_sums = columns_of(pass.columns);
  const std::ptrdiff_t n = static_cast<std::ptrdiff_t>(in.G) * n_sums * in.candidates;
  const std::ptrdiff_t at = static_cast<std::ptrdiff_t>(block_id().x) * kJoinThreads + thread_id();
  if (at >= n) return;
  const bool largest = at / in.candidates % n_sums == sums_of(pass.columns);
  double all = pass.sums[at];
  for (int part = 1; part < pass.segments * kScoredSlabs; ++part) {
    const double more = pass.sums[part * n + at];
    all = largest ? larger(all, more) : all + more;
  }
  pass.sums[at] = all;
}

using ScoreKernel = void (*)(ColumnProblem, FinishedRows, ScorePass);

/// True if a kernel for these known operands is worth its compile time. Rare cases use the kernel that reads
/// the operands' properties at run time: decoding steps (few rows) in tensor products or in narrow blocks;
/// and narrow blocks of problems for which 99 KB of shared memory hold a wide one.
template <class Known, ScoreBlock kBlock, ColumnSet kColumns>
constexpr bool worth_knowing() {
  constexpr bool kTensor = Known::kPlanes == Planes::none;
  if (kBlock == ScoreBlock::wide) return !kTensor || kColumns != ColumnSet::future;
  return kBlock == ScoreBlock::narrow && !kTensor &&
         (kColumns == ColumnSet::window || (kColumns == ColumnSet::weights && Known::kChunks > 1));
}

template <ScoreBlock kBlock, ColumnSet kColumns>
ScoreKernel kernel_of(const ColumnProblem& problem) {
  constexpr bool kValues = needs_outputs(kColumns);
  return with_operands<kValues>(problem, [](const auto& operands) -> ScoreKernel {
    using Known = std::decay_t<decltype(operands)>;
    constexpr bool kKnown = worth_knowing<Known, kBlock, kColumns>();
    return score_kernel<std::conditional_t<kKnown, Known, AnyOperands<kValues>>, kBlock, kColumns>;
  });
}

template <ColumnSet kColumns>
ScoreKernel kernel_for(const ColumnProblem& problem, ScoreBlock block) {
  switch (block) {
    case ScoreBlock::wide:
      return kernel_of<ScoreBlock::wide, kColumns>(problem);
    case ScoreBlock::narrow:
      return kernel_of<ScoreBlock::narrow, kColumns>(problem);
    case ScoreBlock::streamed:
      return kernel_of<ScoreBlock::streamed, kColumns>(problem);
  }
  return nullptr;
}
ScoreKernel kernel_for(const ColumnProblem& problem, ColumnSet columns, ScoreBlock block) {
  switch (columns) {
    case ColumnSet::window:
      return kernel_for<ColumnSet::window>(problem, block);
    case ColumnSet::future:
      return kernel_for<ColumnSet::future>(problem, block);
    case ColumnSet::weights:
      return kernel_for<ColumnSet::weights>(problem, block);
    case ColumnSet::max_attn:
      return kernel_for<ColumnSet::max_attn>(problem, block);
  }
  return nullptr;
}

}  // namespace

ScorePlan score_plan(const ColumnProblem& problem) {
  const auto planes = [](const HalfMatrix& m) { return std::size_t{m.low != nullptr ? 2U : 1U}; };
  const auto chunks = [](const HalfMatrix& m) { return static_cast<std::size_t>(chunks_of(m.depth)); };
  const HalfMatrix &k = problem.k, &v = problem.v.halves;
  const std::size_t row_planes = larger(planes(problem.q), std::size_t{problem.exact ? 2U : 1U});
  const auto a_chunk = [](int n) { return static_cast<std::size_t>(chunk_halves(n)) * sizeof(HalfBits); };
  const std::size_t rows = row_planes * a_chunk(kStepRows);
  const auto plan = [&](ScoreBlock block, std::size_t token_planes) {
    const std::size_t a_plane = a_chunk(scored_tokens(block));
    return ScorePlan{block, token_planes * a_plane + static_cast<std::size_t>(score_stages(block)) * rows};
  };
  for (const ScoreBlock block : {ScoreBlock::wide, ScoreBlock::narrow}) {
    const ScorePlan resident = plan(block, planes(k) * chunks(k) + planes(v) * chunks(v));
    if (resident.bytes <= shared_memory_limit()) return resident;
  }
  return plan(ScoreBlock::streamed, larger(planes(k), planes(v)));
}

void score_pass(const ColumnProblem& problem, const FinishedRows& rows, const ScorePass& pass,
                const Stream& stream) {
  const auto [block, bytes] = score_plan(problem);
  launch(kernel_for(problem, pass.columns, block),
         {blocks_of(problem.candidates, scored_tokens(block)), static_cast<unsigned>(pass.segments)},
         threads_of(block), bytes, stream, problem, rows, pass);
  if (problem.one_slab()) return;
  const std::ptrdiff_t n =
      static_cast<std::ptrdiff_t>(problem.G) * columns_of(pass.columns) * problem.candidates;
  launch(join_kernel, {blocks_of(n, kJoinThreads)}, kJoinThreads, 0, stream, problem, pass);
}

}  // namespace kvreplay::cuda
