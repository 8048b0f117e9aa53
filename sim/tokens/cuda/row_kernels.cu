#include "sim/cuda/product_tile.hpp"
#include "sim/cuda/softmax.hpp"
#include "sim/tokens/cuda/row_kernels.hpp"
#include "sim/tokens/cuda/stored_rows.hpp"

#include <algorithm>

namespace kvreplay::cuda {
namespace {

constexpr int kThreads = 128, kWarps = kThreads / 32;

/// The row of a warp.
KVREPLAY_DEVICE int row_of_warp() { return static_cast<int>(block_id().x) * kWarps + warp_id(); }
KVREPLAY_DEVICE double entry(const RowsOf& x, int row, int channel) {
  return static_cast<double>(number(x.stored, static_cast<std::ptrdiff_t>(row) * x.width + channel));
}

KVREPLAY_KERNEL void norms_kernel(RowsOf x, double* norms) {
  const int p = row_of_warp();
  if (p >= x.n) return;
  double sum = 0;
  for (int c = lane_id(); c < x.width; c += 32) sum += entry(x, p, c) * entry(x, p, c);
  sum = warp_sum(sum);
  if (lane_id() == 0) norms[p] = sqrt(sum);
}

/// Grid: parts, channels by kThreads, m.
KVREPLAY_KERNEL void sum_parts_kernel(RowSums in) {
  const int c = static_cast<int>(block_id().y) * kThreads + thread_id(), m = static_cast<int>(block_id().z);
  if (c >= in.x.width) return;
  const int begin = static_cast<int>(block_id().x) * in.plan.per_part,
            end = smaller(begin + in.plan.per_part, in.x.n);
  const double centre = in.centre != nullptr ? static_cast<double>(in.centre[c]) : 0;
  const std::ptrdiff_t first = static_cast<std::ptrdiff_t>(m) * in.x.n;
  double sum = 0;
  for (int p = begin; p < end; ++p) {
    double weight = in.weights != nullptr ? in.weights[first + p] : 1;
    if (in.divisors != nullptr) weight = in.divisors[first + p] > 0 ? weight / in.divisors[first + p] : 0;
    sum += weight * (entry(in.x, p, c) - centre);
  }
  in.parts[(static_cast<std::ptrdiff_t>(block_id().x) * in.m + m) * in.x.width + c] = sum;
}

/// A thread a sum.
KVREPLAY_KERNEL void join_sums_kernel(RowSums in) {
  const int at = static_cast<int>(block_id().x) * kThreads + thread_id(), numbers = in.m * in.x.width;
  if (at >= numbers) return;
  double sum = 0;
  for (int part = 0; part < in.plan.parts; ++part)
    sum += in.parts[static_cast<std::ptrdiff_t>(part) * numbers + at];
  in.sums[at] = sum;
  if (in.means != nullptr) in.means[at] = static_cast<float>(sum / in.x.n);
}

KVREPLAY_KERNEL void cosines_kernel(RowsOf x, const double* norms, const double* w, double* cosines) {
  const int p = row_of_warp();
  if (p >= x.n) return;
  double dot = 0, square = 0;
  for (int c = lane_id(); c < x.width; c += 32) {
    dot += entry(x, p, c) * w[c];
    square += w[c] * w[c];
  }
  dot = warp_sum(dot);
  const double both = norms[p] * sqrt(warp_sum(square));
  if (lane_id() == 0) cosines[p] = both == 0 ? 0 : dot / both;
}

KVREPLAY_KERNEL void distances_kernel(RowsOf x, const float* centre, const double* points, int m,
                                      double* squares) {
  const int p = row_of_warp();
  if (p >= x.n) return;
  for (int i = 0; i < m; ++i) {
    double sum = 0;
    for (int c = lane_id(); c < x.width; c += 32) {
      const double off = points[i * x.width + c] - (entry(x, p, c) - static_cast<double>(centre[c]));
      sum += off * off;
    }
    sum = warp_sum(sum);
    if (lane_id() == 0) squares[static_cast<std::ptrdiff_t>(i) * x.n + p] = sum;
  }
}

/// A thread a pair of a position, or a channel that does not rotate, of all heads.
KVREPLAY_KERNEL void unrotate_kernel(StoredRows x, int heads, int n, int d, int first, DeviceRope rope,
                                     float* out) {
  const int units = d - rope.pairs;
  const std::ptrdiff_t at = static_cast<std::ptrdiff_t>(block_id().x) * kThreads + thread_id();
  if (at >= static_cast<std::ptrdiff_t>(n) * units) return;
  const int row = static_cast<int>(at / units), unit = static_cast<int>(at % units);
  const std::ptrdiff_t head_size = static_cast<std::ptrdiff_t>(n) * d;
  std::ptrdiff_t a = static_cast<std::ptrdiff_t>(row) * d;
  if (unit >= rope.pairs) {
    a += rope.pairs + unit;
    for (int g = 0; g < heads; ++g) out[g * head_size + a] = number(x, g * head_size + a);
    return;
  }
  const std::ptrdiff_t b = a + (rope.halves ? unit + rope.pairs : 2 * unit + 1);
  a += rope.halves ? unit : 2 * unit;
  const double angle = static_cast<double>(first + row) * rope.inv_freq[unit];
  const float c = static_cast<float>(cos(angle) / rope.attention_factor),
              s = static_cast<float>(sin(angle) / rope.attention_factor);
  for (int g = 0; g < heads; ++g) {
    const float xa = number(x, g * head_size + a), xb = number(x, g * head_size + b);
    out[g * head_size + a] = xa * c + xb * s;
    out[g * head_size + b] = xb * c - xa * s;
  }
}

/// Grid: blocks of kSide rows, m.
KVREPLAY_KERNEL void forms_kernel(RowsOf x, RowForm form, const float* matrices, const float* b,
                                  double* forms) {
  using Tile = ProductTile<float>;
  auto& shared = *reinterpret_cast<Tile::Shared*>(shared_memory());
  const int first = static_cast<int>(block_id().x) * Tile::kSide, width = x.width;
  const std::ptrdiff_t m = block_id().y;
  const float* const matrix = matrices + m * width * width;
  double total[Tile::kRows] = {};
  for (int channel = 0; channel < width; channel += Tile::kSide) {
    Tile tile;
    for (int step = 0; step < width; step += Tile::kStep) {
      sync_block();
      Tile::load_channels(shared.left, [&](int r, int c) {
        return first + r < x.n && step + c < width
                   ? number(x.stored, static_cast<std::ptrdiff_t>(first + r) * width + step + c)
                   : 0.0F;
      });
      for (int at = thread_id(); at < Tile::kStep * Tile::kSide; at += kThreads) {
        const int r = at / Tile::kSide, c = at % Tile::kSide;
        const bool there = step + r < width && channel + c < width;
        shared.right.put(r, c, there ? matrix[(step + r) * width + channel + c] : 0.0F);
      }
      sync_block();
      tile.add(shared.left, shared.right);
    }
    for (int i = 0; i < Tile::kRows; ++i) {
      const int row = first + Tile::row(i);
      float sum = 0;
      for (int j = 0; j < Tile::kCols; ++j) {
        const int c = channel + Tile::col(j);
        if (row >= x.n || c >= width) continue;
        const float y = tile.sum[i][j];
        const float other =
            form == RowForm::squares ? y : number(x.stored, static_cast<std::ptrdiff_t>(row) * width + c);
        sum += (form == RowForm::squares ? y : y + b[m * width + c]) * other;
      }
      total[i] += static_cast<double>(sum);
    }
  }
  Tile::join_columns(
      total, [](double one, double other) { return one + other; },
      [&](int row, double sum) {
        if (first + row < x.n) forms[m * x.n + first + row] = sum;
      });
}

}  // namespace

void norms_pass(const RowsOf& x, double* norms, const Stream& stream) {
  launch(norms_kernel, {blocks_of(x.n, kWarps)}, kThreads, 0, stream, x, norms);
}

SumPlan sum_plan(int n) {
  constexpr int kLeastRows = 64, kEnoughParts = 512;
  const int per_part = std::max(kLeastRows, (n + kEnoughParts - 1) / kEnoughParts);
  return {(n + per_part - 1) / per_part, per_part};
}

void sums_pass(const RowSums& sums, const Stream& stream) {
  const Grid grid{static_cast<unsigned>(sums.plan.parts), blocks_of(sums.x.width, kThreads),
                  static_cast<unsigned>(sums.m)};
  launch(sum_parts_kernel, grid, kThreads, 0, stream, sums);
  launch(join_sums_kernel, {blocks_of(static_cast<std::ptrdiff_t>(sums.m) * sums.x.width, kThreads)},
         kThreads, 0, stream, sums);
}

void cosines_pass(const RowsOf& x, const double* norms, const double* w, double* cosines,
                  const Stream& stream) {
  launch(cosines_kernel, {blocks_of(x.n, kWarps)}, kThreads, 0, stream, x, norms, w, cosines);
}

void distances_pass(const RowsOf& x, const float* centre, const double* points, int m, double* squares,
                    const Stream& stream) {
  launch(distances_kernel, {blocks_of(x.n, kWarps)}, kThreads, 0, stream, x, centre, points, m, squares);
}

void unrotate_pass(const StoredRows& x, int heads, int n, int d, int first, const DeviceRope& rope,
                   float* out, const Stream& stream) {
  launch(unrotate_kernel, {blocks_of(static_cast<std::ptrdiff_t>(n) * (d - rope.pairs), kThreads)}, kThreads,
         0, stream, x, heads, n, d, first, rope, out);
}

void forms_pass(const RowsOf& x, RowForm form, const float* matrices, const float* b, int m, double* forms,
                const Stream& stream) {
  using Tile = ProductTile<float>;
  static_assert(Tile::kThreads == kThreads, "a tile's");
  launch(forms_kernel, {blocks_of(x.n, Tile::kSide), static_cast<unsigned>(m)}, kThreads,
         sizeof(Tile::Shared), stream, x, form, matrices, b, forms);
}

}  // namespace kvreplay::cuda
