#include "sim/eviction/exact/cuda/exact_error_block.hpp"

#include <algorithm>

namespace kvreplay::cuda {
namespace {

constexpr int kMostScanWarps = 8;
constexpr int kMostChooseThreads = 512, kTakeThreads = 64;
constexpr int kMostCompareBlocks = 16, kMostCompareWarps = 4;
constexpr int kRowsAtOnce = 4;  // of a warp of scan: enough reads under way

struct ScanShared {
  double x_dot[kErrorTile];
  double change[kMostScanWarps][kErrorTile], extent[kMostScanWarps][kErrorTile];
  double sums[kMostScanWarps];
};

/// Grid: tiles of columns. A lane has a column, warps share the rows.
KVREPLAY_KERNEL void scan_kernel(ErrorTable t, int warps, ErrorToken token, bool store, double* error) {
  auto& shared = *reinterpret_cast<ScanShared*>(shared_memory());
  const int first = static_cast<int>(block_id().x) * kErrorTile, column = first + lane_id();
  const int moved = column_of(t, token);
  for (int j = warp_id(); j < kErrorTile; j += warps) {
    double dot = 0;
    if (moved >= 0 && first + j < t.l)
      dot = warp_dot(row_of(t.values, first + j, t.width), row_of(t.values, moved, t.width), t.width);
    if (lane_id() == 0) shared.x_dot[j] = dot;
  }
  sync_block();
  const double x_dot = shared.x_dot[lane_id()], value_sq = column < t.l ? t.value_sq[column] : 0.0;

  double change = 0, extent = 0;
  double* entries = t.rows > 0 ? &entry(t, 0, first, kWeight) + lane_id() : nullptr;
  constexpr int kStride = kErrorEntries * kErrorTile;
  for (int begin = warp_id() * kRowsAtOnce; begin < t.rows; begin += warps * kRowsAtOnce) {
    double weight[kRowsAtOnce], out[kRowsAtOnce], sum[kRowsAtOnce];
    KVREPLAY_UNROLL
    for (int i = 0; i < kRowsAtOnce; ++i) {
      if (begin + i >= t.rows) continue;
      const double* of_row = entries + static_cast<std::ptrdiff_t>(begin + i) * kStride;
      weight[i] = of_row[kWeight * kErrorTile];
      out[i] = of_row[kOut * kErrorTile];
      sum[i] = of_row[kSum * kErrorTile];
    }
    KVREPLAY_UNROLL
    for (int i = 0; i < kRowsAtOnce; ++i) {
      const int row = begin + i;
      if (row >= t.rows) continue;
      const ErrorRow& r = t.scan[row];
      const double u = r.add * x_dot + sum[i];
      if (store) entries[static_cast<std::ptrdiff_t>(row) * kStride + kSum * kErrorTile] = u;
      const double su = r.s * u, linear = r.d_out + su - r.by_out * out[i];
      const double squares = r.out_sq + value_sq;
      const double square = larger(0.0, squares + su - r.cur_out * out[i]);
      const double a = weight[i] * r.weight, c = a / (1 - a);
      change += t.top_column[row] == column ? t.terms[row].top_error : c * (c * square + linear);
      extent += c * c * squares;
    }
  }
  shared.change[warp_id()][lane_id()] = change;
  shared.extent[warp_id()][lane_id()] = extent;
  sync_block();
  if (warp_id() == 0) {
    for (int w = 1; w < warps; ++w) {
      change += shared.change[w][lane_id()];
      extent += shared.extent[w][lane_id()];
    }
    t.change[column] = change;
    t.extent[column] = extent;
  }

  if (first > 0) return;
  double sum = 0;
  for (int row = thread_id(); row < t.rows; row += 32 * warps) sum += t.terms[row].change_sq;
  sum = over_block(sum, warps, shared.sums, Plus{});
  if (thread_id() == 0) *error = sum;
}

/// A candidate for removal, column -1: none.
struct Candidate {
  double change;
  int position, column;

  /// The smaller change; of equals the higher position.
  KVREPLAY_DEVICE bool before(const Candidate& other) const {
    return change < other.change || (change == other.change && position > other.position);
  }
};
KVREPLAY_DEVICE Candidate shuffle_xor(const Candidate& c, int mask) {
  return {cuda::shuffle_xor(c.change, mask), cuda::shuffle_xor(c.position, mask),
          cuda::shuffle_xor(c.column, mask)};
}
struct Before {
  KVREPLAY_DEVICE Candidate operator()(const Candidate& a, const Candidate& b) const {
    return a.column < 0 || (b.column >= 0 && b.before(a)) ? b : a;
  }
};
struct Smaller {
  KVREPLAY_DEVICE double operator()(double a, double b) const { return smaller(a, b); }
};

struct ChooseShared {
  double sums[kMostChooseThreads / 32];
  Candidate candidates[kMostChooseThreads / 32];
};

/// One block of `threads`: the columns of M whose removal may be the best one, as far as `change` is known;
/// those that promise most where there are more than kLookedAt.
KVREPLAY_KERNEL void choose_kernel(ErrorTable t, int kept, int threads, const double* error) {
  auto& shared = *reinterpret_cast<ChooseShared*>(shared_memory());
  const int warps = threads / 32;
  const double e = *error;
  double least = INFINITY;
  for (int c = thread_id(); c < kept; c += threads)
    least = smaller(least, t.change[c] + exact_error::doubt(e, t.extent[c]));
  least = over_block(least, warps, shared.sums, Smaller{});

  Candidate last{-INFINITY, 0, -1};
  int found = 0;
  while (found < static_cast<int>(exact_error::kLookedAt)) {
    Candidate next{0, 0, -1};
    for (int c = thread_id(); c < kept; c += threads) {
      const Candidate candidate{t.change[c], t.position[c], c};
      if (candidate.change - exact_error::doubt(e, t.extent[c]) <= least && last.before(candidate))
        next = Before{}(next, candidate);
    }
    next = over_block(next, warps, shared.candidates, Before{});
    if (next.column < 0) break;
    if (thread_id() == 0) {
      t.near_column[found] = next.column;
      t.near_change[found] = next.change;
    }
    last = next;
    ++found;
  }
  if (thread_id() != 0) return;
  if (found == 0) {  // nothing but NaN
    t.near_column[0] = kept - 1;
    t.near_change[0] = t.change[kept - 1];
  }
  *t.near_count = larger(found, 1);
}

/// A removal's change from the difference of o^M and v itself, as ExactError::precise_change() has it, to one
/// thread. Warps share the rows.
KVREPLAY_DEVICE double precise_change(const ErrorTable& t, int warps, int column, double* shared) {
  const double* value = row_of(t.values, column, t.width);
  double sum = 0;
  for (int row = warp_id(); row < t.rows; row += warps) {
    if (t.top_column[row] == column) {
      sum += t.terms[row].top_error;
      continue;
    }
    const double a = t.scan[row].weight * entry(t, row, column, kWeight), c = a / (1 - a);
    const double *current = row_of(t.current, row, t.width), *moved = row_of(t.moved, row, t.width);
    double dot = 0, square = 0;
    for (int k = lane_id(); k < t.width; k += 32) {
      const double difference = current[k] - value[k];
      dot += moved[k] * difference;
      square += difference * difference;
    }
    sum += c * (2 * warp_sum(dot) + c * warp_sum(square));
  }
  sync_block();
  if (lane_id() == 0) shared[warp_id()] = sum;
  sync_block();
  for (int w = 1; w < warps && thread_id() == 0; ++w) sum += shared[w];
  return sum;
}

/// Blocks share the candidates.
KVREPLAY_KERNEL void compare_kernel(ErrorTable t, int warps, int blocks) {
  const int near = *t.near_count;
  if (near < 2) return;
  for (int n = static_cast<int>(block_id().x); n < near; n += blocks) {
    const int column = t.near_column[n];
    if (!(t.extent[column] > 0)) continue;
    const double change = precise_change(t, warps, column, reinterpret_cast<double*>(shared_memory()));
    if (thread_id() == 0) t.near_change[n] = change;
  }
}

KVREPLAY_DEVICE void exchange(double* a, double* b) {
  const double other = *a;
  *a = *b;
  *b = other;
}

/// The best of the candidates: its place among them. Tokens alike in every way may still differ by rounding.
KVREPLAY_DEVICE int best_candidate(const ErrorTable& t, double error) {
  const int near = *t.near_count;
  double least = INFINITY;
  for (int n = 0; n < near; ++n) least = smaller(least, t.near_change[n]);
  int best = 0, highest = -1;
  for (int n = 0; n < near; ++n) {
    const int column = t.near_column[n], position = t.position[column];
    if (!(t.near_change[n] <= least + exact_error::rounding(error, least, t.extent[column]))) continue;
    if (position < highest) continue;
    best = n;
    highest = position;
  }
  return best;
}

/// One block. position -1: the best candidate's.
KVREPLAY_KERNEL void take_kernel(ErrorTable t, const double* error, int position, int to, int* evicted) {
  if (position < 0) {
    const int best = best_candidate(t, *error);
    position = t.position[t.near_column[best]];
    if (thread_id() == 0) {
      t.report[kBestPosition] = position;
      t.report[kBestError] = larger(*error + t.near_change[best], 0.0);
      if (evicted != nullptr) *evicted = position;
    }
  }
  if (to < 0) return;
  const int from = t.column[position];
  sync_block();
  if (thread_id() == 0) {
    t.swapped[0] = from;
    t.swapped[1] = to;
  }
  if (from == to) return;
  double *keys = row_of(t.keys, from, t.key_width), *other_keys = row_of(t.keys, to, t.key_width);
  double *values = row_of(t.values, from, t.width), *other_values = row_of(t.values, to, t.width);
  for (int k = thread_id(); k < t.key_width; k += kTakeThreads) exchange(keys + k, other_keys + k);
  for (int k = thread_id(); k < t.width; k += kTakeThreads) exchange(values + k, other_values + k);
  if (thread_id() != 0) return;
  exchange(t.value_sq + from, t.value_sq + to);
  const int other = t.position[to];
  t.position[to] = position;
  t.position[from] = other;
  t.column[position] = to;
  t.column[other] = from;
}

/// As many as have something to do.
int warps_for_rows(const ErrorTable& table, int most) {
  return std::min(most, std::max(1, (table.rows + kRowsAtOnce - 1) / kRowsAtOnce));
}

}  // namespace

void scan_columns(const ErrorTable& table, ErrorToken token, int columns, bool store, double* error,
                  const Stream& stream) {
  const int warps = warps_for_rows(table, kMostScanWarps);
  const Grid tiles{std::max(blocks_of(columns, kErrorTile), 1U)};  // the error is wanted of no columns too
  launch(scan_kernel, tiles, 32 * warps, sizeof(ScanShared), stream, table, warps, token, store, error);
}

void choose_removal(const ErrorTable& table, int kept, const double* error, const Stream& stream) {
  const int threads = std::min(kMostChooseThreads, (kept + 31) / 32 * 32);
  launch(choose_kernel, {}, threads, sizeof(ChooseShared), stream, table, kept, threads, error);
  const int warps = warps_for_rows(table, kMostCompareWarps),
            blocks = std::min(kMostCompareBlocks, (kept + 7) / 8);
  launch(compare_kernel, {static_cast<unsigned>(blocks)}, 32 * warps, kMostCompareWarps * sizeof(double),
         stream, table, warps, blocks);
}

void take_removal(const ErrorTable& table, const double* error, int to, int* evicted, const Stream& stream) {
  launch(take_kernel, {}, kTakeThreads, 0, stream, table, error, -1, to, evicted);
}

void take_position(const ErrorTable& table, int position, int to, const Stream& stream) {
  int* const evicted = nullptr;
  const double* const error = nullptr;
  launch(take_kernel, {}, kTakeThreads, 0, stream, table, error, position, to, evicted);
}

}  // namespace kvreplay::cuda
