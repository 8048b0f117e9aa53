#include "sim/cache/cuda/kept_kernels.hpp"
#include "sim/cuda/mma.hpp"
#include "sim/cuda/softmax.hpp"
#include "sim/tokens/entry_formulas.hpp"

namespace kvreplay::cuda {
namespace {

constexpr int kThreads = 128, kWarps = 4;
constexpr int kLogitColumns = 128;  // tokens of a block's logits
constexpr int kMostOut = 128;       // of d_v, for each block of attend
constexpr int kPad = 4;             // keeps rows of shared memory in different banks

using LogitProduct = BlockProduct<kThreads, kLogitColumns>;
static_assert(LogitProduct::kRows == kAttendRows, "");

KVREPLAY_DEVICE double exact_weight(float x, float max) {
  return x > kHidden ? exp(static_cast<double>(x) - static_cast<double>(max)) : 0.0;
}

KVREPLAY_DEVICE float dot(const float* a, const float* b, int n) {
  float sum = 0;
  for (int c = 0; c < n; ++c) sum = fused(a[c], b[c], sum);
  return sum;
}

/// Grid: tiles of tokens, blocks of rows, G.
KVREPLAY_KERNEL void logit_kernel(KeptRows in) {
  using Tile = LogitProduct::Tile;
  auto& shared = *reinterpret_cast<LogitProduct::Chunks*>(shared_memory());
  const int g = static_cast<int>(block_id().z);
  const int first_row = static_cast<int>(block_id().y) * kAttendRows;
  const int last_row = smaller(first_row + kAttendRows, in.rows) - 1;
  const int begin = in.begin + static_cast<int>(block_id().x) * kLogitColumns;
  const int end = smaller(begin + kLogitColumns, in.begin + in.width);
  if (end <= in.first_visible[first_row] || begin >= in.end_visible[last_row]) return;

  const std::ptrdiff_t head = g * in.head_rows;
  Tile z;
  z.fill(0);
  LogitProduct::add(in.q + head * in.d, first_row, in.rows, in.k, begin, end, in.d, shared, z);
  KVREPLAY_UNROLL
  for (int i = 0; i < Tile::kRows; ++i) {
    const int row = first_row + warp_id() * 16 + Tile::row(i);
    if (row >= in.rows) continue;
    const int from = in.first_visible[row], to = in.end_visible[row];
    float* out = in.z + (static_cast<std::ptrdiff_t>(g) * in.rows + row) * in.width;
    KVREPLAY_UNROLL
    for (int j = 0; j < Tile::kCols; ++j) {
      const int p = begin + Tile::col(j);
      if (p >= end) continue;
      const bool visible = p >= from && p < to;
      float raw = z.at[i][j];
      // Beyond float32 the parts of a product may leave NaN, or what they were cut to.
      if (visible && !(std::fabs(raw) < 1e37F))
        raw = dot(in.q + (head + row) * in.d, in.k + static_cast<std::ptrdiff_t>(p) * in.d, in.d);
      const float logit = visible ? entry_logit(in.scale * raw, in.softcap).z : kHidden;
      if (visible && !finite(logit)) set_flag(in.bad + head + row);
      out[p - in.begin] = logit;
    }
  }
}

/// Number of the n ascending positions that lie before `position`.
KVREPLAY_DEVICE int count_before(const int* positions, int n, int position) {
  int from = 0;
  while (from < n) {
    const int middle = from + (n - from) / 2;
    if (positions[middle] < position)
      from = middle + 1;
    else
      n = middle;
  }
  return from;
}

template <int kOutColumns>
struct AttendShared {
  float weights[kAttendRows * (kAttendColumns + kPad)];
  float values[kAttendColumns * kOutColumns];
};

/// Grid: blocks of rows, segments, sets x G x parts of d_v.
template <int kOutColumns>
KVREPLAY_KERNEL void attend_kernel(KeptRows in, KeptColumns sets, KeptStates states) {
  using Scores = SplitTile<kAttendColumns>;
  using Out = SplitTile<kOutColumns>;
  constexpr int kRows = Scores::kRows, kStride = kAttendColumns + kPad;
  auto& shared = *reinterpret_cast<AttendShared<kOutColumns>*>(shared_memory());
  const int parts = (in.d_v + kOutColumns - 1) / kOutColumns;
  const int set = static_cast<int>(block_id().z) / (in.G * parts);
  const int g = static_cast<int>(block_id().z) / parts % in.G;
  const int first_out = static_cast<int>(block_id().z) % parts * kOutColumns;
  const int segment = static_cast<int>(block_id().y);
  // The rows that see the most tokens come first.
  const int blocks = (in.rows + kAttendRows - 1) / kAttendRows;
  const int first_row = (blocks - 1 - static_cast<int>(block_id().x)) * kAttendRows;
  const int last_row = smaller(first_row + kAttendRows, in.rows) - 1;
  const int* columns = sets.columns + sets.starts[set];
  const int n_columns = static_cast<int>(sets.starts[set + 1] - sets.starts[set]);
  const int seen_end = count_before(columns, n_columns, in.end_visible[last_row]);
  const int begin =
      count_before(columns, n_columns, in.first_visible[first_row]) + segment * states.per_segment;
  const int end = smaller(begin + states.per_segment, seen_end);

  float max[kRows], sum[kRows];
  int row[kRows];
  Out out;
  out.fill(0);
  KVREPLAY_UNROLL
  for (int i = 0; i < kRows; ++i) {
    row[i] = first_row + warp_id() * 16 + Scores::row(i);
    max[i] = kHidden;
    sum[i] = 0;
  }
  const bool idle = first_row + warp_id() * 16 >= in.rows;
  float* weights = shared.weights + warp_id() * 16 * kStride;

  for (int first = begin; first < end; first += kAttendColumns) {
    int column[Scores::kCols];
    KVREPLAY_UNROLL
    for (int j = 0; j < Scores::kCols; ++j) {
      const int at = first + Scores::col(j);
      column[j] = at < end ? columns[at] - in.begin : -1;
    }
    sync_block();
    KVREPLAY_UNROLL
    for (int i = 0; i < kRows; ++i) {
      const float* logits = in.z + (static_cast<std::ptrdiff_t>(g) * in.rows + row[i]) * in.width;
      float z[Scores::kCols], tile_max = kHidden;
      KVREPLAY_UNROLL
      for (int j = 0; j < Scores::kCols; ++j) {
        z[j] = row[i] < in.rows && column[j] >= 0 ? logits[column[j]] : kHidden;
        tile_max = larger(tile_max, z[j]);
      }
      const float new_max =
          larger(max[i], over_columns<Scores>(tile_max, [](float a, float b) { return larger(a, b); }));
      const float keep = weight(max[i], new_max);
      float tile_sum = 0;
      KVREPLAY_UNROLL
      for (int j = 0; j < Scores::kCols; ++j) {
        const float w = weight(z[j], new_max);
        tile_sum += w;
        weights[Scores::row(i) * kStride + Scores::col(j)] = w;
      }
      max[i] = new_max;
      sum[i] = fused(sum[i], keep, over_columns<Scores>(tile_sum, [](float a, float b) { return a + b; }));
      KVREPLAY_UNROLL
      for (int j = 0; j < Out::kCols; ++j) out.at[i][j] *= keep;
    }
    for (int at = thread_id(); at < kAttendColumns * kOutColumns; at += kThreads) {
      const int t = first + at / kOutColumns, c = first_out + at % kOutColumns;
      shared.values[at] =
          t < end && c < in.d_v ? in.v_centred[static_cast<std::ptrdiff_t>(columns[t]) * in.d_v + c] : 0.0F;
    }
    sync_block();
    if (!idle) out.add_product(weights, kStride, shared.values, kOutColumns, kAttendColumns);
  }

  KVREPLAY_UNROLL
  for (int i = 0; i < kRows; ++i) {
    if (row[i] >= in.rows) continue;
    const std::ptrdiff_t at =
        ((static_cast<std::ptrdiff_t>(set) * states.segments + segment) * in.G + g) * in.rows + row[i];
    if (first_out == 0 && lane_id() % Scores::kLanesARow == 0) {
      states.max[at] = max[i];
      states.sum[at] = sum[i];
    }
    KVREPLAY_UNROLL
    for (int j = 0; j < Out::kCols; ++j) {
      const int c = first_out + Out::col(j);
      if (c < in.d_v) states.out[at * in.d_v + c] = out.at[i][j];
    }
  }
}

/// Grid: rows by the warp, G, sets. Lanes share the channels.
KVREPLAY_KERNEL void finish_kernel(KeptRows in, KeptStates states, KeptOutputs outputs) {
  constexpr int kChannels = 4;  // of a lane, for each look at the segments
  const int row = static_cast<int>(block_id().x) * kWarps + warp_id();
  if (row >= in.rows) return;
  const int g = static_cast<int>(block_id().y);
  const std::ptrdiff_t all_rows = static_cast<std::ptrdiff_t>(in.G) * in.rows;
  const std::ptrdiff_t in_set = static_cast<std::ptrdiff_t>(g) * in.rows + row, set = block_id().z;
  const std::ptrdiff_t first_state = set * states.segments * all_rows + in_set;
  const float sink = in.sink_logit[g];

  float max = sink;
  for (int s = 0; s < states.segments; ++s) max = larger(max, states.max[first_state + s * all_rows]);
  double sum = 0;
  for (int s = 0; s < states.segments; ++s) {
    const std::ptrdiff_t at = first_state + s * all_rows;
    sum += exact_weight(states.max[at], max) * static_cast<double>(states.sum[at]);
  }
  const double in_sink = exact_weight(sink, max), total = sum + in_sink;
  const double per_total = total > 0 ? 1 / total : 0;

  const std::ptrdiff_t to = set * all_rows + in_set;
  for (int first = lane_id(); first < in.d_v; first += 32 * kChannels) {
    double out[kChannels] = {};
    for (int s = 0; s < states.segments; ++s) {
      const std::ptrdiff_t at = first_state + s * all_rows;
      const double factor = exact_weight(states.max[at], max);
      if (!(factor != 0)) continue;
      KVREPLAY_UNROLL
      for (int j = 0; j < kChannels; ++j) {
        const int c = first + 32 * j;
        if (c < in.d_v) out[j] += factor * static_cast<double>(states.out[at * in.d_v + c]);
      }
    }
    KVREPLAY_UNROLL
    for (int j = 0; j < kChannels; ++j) {
      const int c = first + 32 * j;
      if (c < in.d_v) outputs.out[to * in.d_v + c] = static_cast<float>(out[j] * per_total);
    }
  }
  if (lane_id() == 0) outputs.share[to] = in_sink > 0 ? sum * per_total : (sum > 0 ? 1.0 : 0.0);
}

/// Grid: panels of rows, G, sets. A lane has a row; warps share the channels.
KVREPLAY_KERNEL void compare_kernel(KeptRows in, KeptChanges changes) {
  double* warp_sums = reinterpret_cast<double*>(shared_memory());
  const int panel = static_cast<int>(block_id().x), g = static_cast<int>(block_id().y);
  const int row = panel * kCompareRows + lane_id();
  const std::ptrdiff_t set = block_id().z, panels = (in.rows + kCompareRows - 1) / kCompareRows;
  const bool real = row < in.rows, change = changes.full.out != nullptr;
  const std::ptrdiff_t full_at = static_cast<std::ptrdiff_t>(g) * in.rows + row;
  const std::ptrdiff_t kept_at = set * in.G * in.rows + full_at;
  double share = 0;
  if (real) share = changes.kept.share[kept_at] - (change ? changes.full.share[full_at] : 0.0);

  double sum = 0;
  for (int c = warp_id(); c < in.d_v; c += kWarps) {
    float x = 0;
    if (real) {
      const double kept = static_cast<double>(changes.kept.out[kept_at * in.d_v + c]);
      const double full = change ? static_cast<double>(changes.full.out[full_at * in.d_v + c]) : 0.0;
      x = static_cast<float>(kept - full + share * static_cast<double>(in.centre[c]));
    }
    sum += static_cast<double>(x) * static_cast<double>(x);
    if (changes.vectors != nullptr)
      changes.vectors[(((set * in.G + g) * panels + panel) * in.d_v + c) * kCompareRows + lane_id()] = x;
  }
  sum = warp_sum(sum);
  if (lane_id() == 0) warp_sums[warp_id()] = sum;
  sync_block();
  if (thread_id() != 0) return;
  for (int w = 1; w < kWarps; ++w) sum += warp_sums[w];
  changes.sums[(set * in.G + g) * changes.stride + panel] = sum;
}

template <int kOutColumns>
void attend(const KeptRows& in, const KeptColumns& sets, const KeptStates& states, const Stream& stream) {
  const Grid grid{
      blocks_of(in.rows, kAttendRows), static_cast<unsigned>(states.segments),
      static_cast<unsigned>(sets.sets) * static_cast<unsigned>(in.G) * blocks_of(in.d_v, kOutColumns)};
  launch(attend_kernel<kOutColumns>, grid, kThreads, sizeof(AttendShared<kOutColumns>), stream, in, sets,
         states);
}

}  // namespace

void kept_logits(const KeptRows& in, const Stream& stream) {
  launch(logit_kernel,
         {blocks_of(in.width, kLogitColumns), blocks_of(in.rows, kAttendRows), static_cast<unsigned>(in.G)},
         kThreads, sizeof(LogitProduct::Chunks), stream, in);
}

void kept_outputs(const KeptRows& in, const KeptColumns& sets, const KeptStates& states,
                  const KeptOutputs& outputs, const Stream& stream) {
  if (in.d_v <= kMostOut / 2)
    attend<kMostOut / 2>(in, sets, states, stream);
  else
    attend<kMostOut>(in, sets, states, stream);
  const unsigned G = static_cast<unsigned>(in.G), n = static_cast<unsigned>(sets.sets);
  launch(finish_kernel, {blocks_of(in.rows, kWarps), G, n}, kThreads, 0, stream, in, states, outputs);
}

void kept_changes(const KeptRows& in, const KeptChanges& changes, const Stream& stream) {
  launch(compare_kernel,
         {blocks_of(in.rows, kCompareRows), static_cast<unsigned>(in.G), static_cast<unsigned>(changes.sets)},
         kThreads, kWarps * sizeof(double), stream, in, changes);
}

}  // namespace kvreplay::cuda
