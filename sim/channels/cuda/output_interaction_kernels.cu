#include "sim/channels/cuda/output_interaction_kernels.hpp"
#include "sim/cuda/product_tile.hpp"
#include "sim/tokens/entry_formulas.hpp"

namespace kvreplay::cuda {
namespace {

using Tile = ProductTile<float>;
constexpr int kRowThreads = 128;
constexpr int kTermsPerSum = 128;  // in float32
constexpr float kNone = -INFINITY;

/// Grid: blocks of tokens, blocks of rows. changed := logits before the soft cap, -inf outside the cache, NaN
/// where beyond float32; what a row does not see is left as it is.
KVREPLAY_KERNEL void logits_kernel(DerivativeRows in, Derivatives out) {
  auto& shared = *reinterpret_cast<Tile::Shared*>(shared_memory());
  const int first_row = static_cast<int>(block_id().y) * Tile::kSide;
  const int first_token = static_cast<int>(block_id().x) * Tile::kSide;
  bool seen = false;
  for (int row = first_row; row < smaller(first_row + Tile::kSide, in.rows); ++row)
    seen = seen || (in.first_visible[row] < first_token + Tile::kSide && in.end_visible[row] > first_token);
  if (!seen) return;

  Tile tile;
  for (int channel = 0; channel < in.d; channel += Tile::kStep) {
    sync_block();
    for (int at = thread_id(); at < Tile::kStep * Tile::kSide; at += Tile::kThreads) {
      const int r = at / Tile::kStep, c = at % Tile::kStep;
      const int row = first_row + r, token = first_token + r;
      const bool inside = channel + c < in.d;
      const auto number = [&](const float* x, int i) {
        return x[static_cast<std::ptrdiff_t>(i) * in.d + channel + c];
      };
      shared.left.put(c, r, inside && row < in.rows ? in.scale * number(in.q, row) : 0.0F);
      shared.right.put(c, r, inside && token < in.tokens ? number(in.k, token) : 0.0F);
    }
    sync_block();
    tile.add(shared.left, shared.right);
  }
  KVREPLAY_UNROLL
  for (int i = 0; i < Tile::kRows; ++i) {
    const int row = first_row + Tile::row(i);
    if (row >= in.rows) continue;
    KVREPLAY_UNROLL
    for (int j = 0; j < Tile::kCols; ++j) {
      const int token = first_token + Tile::col(j);
      if (token < in.first_visible[row] || token >= in.end_visible[row]) continue;
      const float z = tile.sum[i][j];
      const float known = z - z == 0 ? z : NAN;
      out.changed[static_cast<std::ptrdiff_t>(row) * in.tokens + token] =
          in.cached[token] != 0 ? known : kNone;
    }
  }
}

struct TopColumn {
  float z;
  int at;
  bool overflow;
};

struct WeightsShared {
  TopColumn top[kRowThreads];
  double sums[2][kRowThreads];
};

KVREPLAY_DEVICE float capped(float raw, float softcap) {
  return raw > kNone ? entry_logit(raw, softcap).z : kNone;
}

/// dz/dz_raw = 1 / cosh^2(z_raw / cap), which near the cap z no longer tells.
KVREPLAY_DEVICE float cap_slope(float raw, float softcap) {
  const float e = std::exp(-2 * std::abs(raw / softcap));
  return 4 * e / ((1 + e) * (1 + e));
}

/// The sum of all threads' numbers, in the order of the threads; twice in a row needs different `shared`.
KVREPLAY_DEVICE double over_threads(double mine, double* shared) {
  shared[thread_id()] = mine;
  sync_block();
  double sum = 0;
  for (int t = 0; t < kRowThreads; ++t) sum += shared[t];
  return sum;
}

/// Grid: rows.
KVREPLAY_KERNEL void weights_kernel(DerivativeRows in, Derivatives out) {
  WeightsShared& shared = *reinterpret_cast<WeightsShared*>(shared_memory());
  const int row = static_cast<int>(block_id().x);
  const int begin = in.first_visible[row] + thread_id(), end = in.end_visible[row];
  float* changed = out.changed + static_cast<std::ptrdiff_t>(row) * in.tokens;
  float* rest = out.rest + static_cast<std::ptrdiff_t>(row) * in.tokens;
  const float sink = in.sink_logit[row];

  // Among equal logits the one at the lower position is the largest; the sink comes before all.
  TopColumn top{kNone, -1, false};
  for (int t = begin; t < end; t += kRowThreads) {
    const float z = capped(changed[t], in.softcap);
    if (z > top.z) top = {z, t, top.overflow};
    top.overflow = top.overflow || changed[t] != changed[t];
  }
  shared.top[thread_id()] = top;
  sync_block();
  top = {sink, -1, false};
  for (int n = 0; n < kRowThreads; ++n) {
    const TopColumn other = shared.top[n];
    if (other.z > top.z || (other.z == top.z && top.at >= 0 && other.at >= 0 && other.at < top.at))
      top = {other.z, other.at, top.overflow};
    top.overflow = top.overflow || other.overflow;
  }
  const bool live = top.z > kNone;

  double others = 0;
  for (int t = begin; t < end && live; t += kRowThreads)
    if (t != top.at) others += static_cast<double>(std::exp(capped(changed[t], in.softcap) - top.z));
  const float sink_exp = top.at >= 0 ? std::exp(sink - top.z) : 0.0F;
  others = over_threads(others, shared.sums[0]) + static_cast<double>(sink_exp);
  const float per_sum = live ? static_cast<float>(1 / (1 + others)) : 0.0F;
  sync_block();

  RowSoftmax& softmax = out.softmax[row];
  double changed_sum = 0, rest_sum = 0;
  for (int t = begin; t < end; t += kRowThreads) {
    const float raw = changed[t], z = capped(raw, in.softcap);
    const float a = live && z > kNone ? std::exp(z - top.z) * per_sum : 0.0F;
    float of_changed = 0, of_rest = a;
    if (in.prunable[t] != 0 && a > 0) {
      const float part = z / in.softcap;  // 1 - dz/dz_raw = (z / cap)^2
      of_changed = in.softcap > 0 ? a * cap_slope(raw, in.softcap) : a;
      of_rest = in.softcap > 0 ? a * part * part : 0.0F;
    }
    changed[t] = of_changed;
    rest[t] = of_rest;
    if (t == top.at) {
      softmax.top_changed = of_changed;
      softmax.top_rest = of_rest;
    } else {
      changed_sum += static_cast<double>(of_changed);
      rest_sum += static_cast<double>(of_rest);
    }
  }
  changed_sum = over_threads(changed_sum, shared.sums[0]);
  rest_sum = over_threads(rest_sum, shared.sums[1]);
  if (thread_id() != 0) return;
  const float in_sink = sink_exp * per_sum;
  softmax.top_at = top.at;
  softmax.overflow = top.overflow ? 1 : 0;
  softmax.sink = in_sink;
  softmax.changed_sum = static_cast<float>(changed_sum);
  softmax.rest_sum = static_cast<float>(rest_sum + static_cast<double>(in_sink));
  if (top.at < 0) {
    softmax.top_changed = 0;
    softmax.top_rest = per_sum;
  }
}

/// The value of a row's largest column, less the centre; the sink's value is 0.
KVREPLAY_DEVICE float top_value(const DerivativeRows& in, int top_at, int e) {
  return top_at < 0 ? -in.centre[e] : in.v_centred[static_cast<std::ptrdiff_t>(top_at) * in.d_v + e];
}

/// Grid: parts of d_v, rows.
KVREPLAY_KERNEL void means_kernel(DerivativeRows in, Derivatives out) {
  const int row = static_cast<int>(block_id().y);
  const int e = static_cast<int>(block_id().x) * kRowThreads + thread_id();
  if (e >= in.d_v) return;
  const RowSoftmax softmax = out.softmax[row];
  const float* changed = out.changed + static_cast<std::ptrdiff_t>(row) * in.tokens;
  const float* rest = out.rest + static_cast<std::ptrdiff_t>(row) * in.tokens;
  const float origin = top_value(in, softmax.top_at, e);
  const int end = in.end_visible[row];
  // The largest column adds exactly 0: its difference is.
  double of_changed = 0, of_rest = static_cast<double>(softmax.sink * (-in.centre[e] - origin));
  for (int first = in.first_visible[row]; first < end; first += kTermsPerSum) {
    float changed_part = 0, rest_part = 0;
    for (int t = first; t < smaller(first + kTermsPerSum, end); ++t) {
      const float u = in.v_centred[static_cast<std::ptrdiff_t>(t) * in.d_v + e] - origin;
      changed_part = fused(changed[t], u, changed_part);
      rest_part = fused(rest[t], u, rest_part);
    }
    of_changed += static_cast<double>(changed_part);
    of_rest += static_cast<double>(rest_part);
  }
  const auto wide = [](float x) { return static_cast<double>(x); };
  const double mean = of_changed + of_rest, others = wide(softmax.changed_sum) + wide(softmax.rest_sum);
  const double all_changed = wide(softmax.changed_sum) + wide(softmax.top_changed),
               all_rest = wide(softmax.rest_sum) + wide(softmax.top_rest);
  // Over all columns a (v - o) adds up to 0: the shift comes from the part that cancels less.
  const bool direct = wide(softmax.changed_sum) + wide(softmax.top_changed) * others <=
                      wide(softmax.rest_sum) + wide(softmax.top_rest) * others;
  const std::ptrdiff_t at = static_cast<std::ptrdiff_t>(row) * in.d_v + e;
  out.mean[at] = static_cast<float>(mean);
  out.shift[at] = static_cast<float>(direct ? of_changed - all_changed * mean : all_rest * mean - of_rest);
}

/// Grid: blocks of channels, blocks of d_v, rows.
KVREPLAY_KERNEL void products_kernel(DerivativeRows in, Derivatives out) {
  auto& shared = *reinterpret_cast<Tile::Shared*>(shared_memory());
  const int row = static_cast<int>(block_id().z);
  const int first_c = static_cast<int>(block_id().x) * Tile::kSide,
            first_e = static_cast<int>(block_id().y) * Tile::kSide;
  const int top_at = out.softmax[row].top_at, begin = in.first_key[row], end = in.end_key[row];
  const float* weights = out.changed + static_cast<std::ptrdiff_t>(row) * in.tokens;
  const std::ptrdiff_t of_row = static_cast<std::ptrdiff_t>(row) * in.d_v;

  // A thread's column of the panels is the same throughout.
  static_assert(Tile::kThreads % Tile::kSide == 0, "");
  const int own = thread_id() % Tile::kSide, e = first_e + own, c = first_c + own;
  const float origin = e < in.d_v ? top_value(in, top_at, e) : 0.0F,
              mean = e < in.d_v ? out.mean[of_row + e] : 0;
  Tile tile;
  for (int first = begin; first < end; first += Tile::kStep) {
    if ((first - begin) % kTermsPerSum == 0) tile.move_to_total();
    sync_block();
    for (int r = thread_id() / Tile::kSide; r < Tile::kStep; r += Tile::kThreads / Tile::kSide) {
      const int key = first + r;
      float deviation = 0, k = 0;
      if (key < end && e < in.d_v) {
        const int p = in.key_positions[key];
        const float u = in.v_centred[static_cast<std::ptrdiff_t>(p) * in.d_v + e] - origin;
        deviation = weights[p] * (u - mean);
      }
      if (key < end && c < in.d) k = in.keys_centred[static_cast<std::ptrdiff_t>(key) * in.d + c];
      shared.left.put(r, own, deviation);
      shared.right.put(r, own, k);
    }
    sync_block();
    tile.add(shared.left, shared.right);
  }
  tile.move_to_total();

  KVREPLAY_UNROLL
  for (int i = 0; i < Tile::kRows; ++i) {
    const int value = first_e + Tile::row(i);
    if (value >= in.d_v) continue;
    KVREPLAY_UNROLL
    for (int j = 0; j < Tile::kCols; ++j) {
      const int channel = first_c + Tile::col(j);
      if (channel >= in.d) continue;
      const double common =
          static_cast<double>(in.key_mean[channel]) * static_cast<double>(out.shift[of_row + value]);
      const double factor = static_cast<double>(-in.scale) *
                            static_cast<double>(in.q[static_cast<std::ptrdiff_t>(row) * in.d + channel]);
      out.D[(of_row + value) * in.d + channel] = static_cast<float>(factor * (tile.total[i][j] + common));
    }
  }
}

unsigned blocks(int n, int size) { return static_cast<unsigned>((n + size - 1) / size); }

}  // namespace

void derivatives_pass(const DerivativeRows& in, const Derivatives& out, const Stream& stream) {
  const auto rows = static_cast<unsigned>(in.rows);
  launch(logits_kernel, {blocks(in.tokens, Tile::kSide), blocks(in.rows, Tile::kSide)}, Tile::kThreads,
         sizeof(Tile::Shared), stream, in, out);
  launch(weights_kernel, {rows}, kRowThreads, sizeof(WeightsShared), stream, in, out);
  launch(means_kernel, {blocks(in.d_v, kRowThreads), rows}, kRowThreads, 0, stream, in, out);
  launch(products_kernel, {blocks(in.d, Tile::kSide), blocks(in.d_v, Tile::kSide), rows}, Tile::kThreads,
         sizeof(Tile::Shared), stream, in, out);
}

}  // namespace kvreplay::cuda
