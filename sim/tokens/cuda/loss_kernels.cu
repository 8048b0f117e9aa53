#include "sim/cuda/product_tile.hpp"
#include "sim/cuda/softmax.hpp"
#include "sim/tokens/cuda/column_kernels.hpp"
#include "sim/tokens/cuda/stored_rows.hpp"

namespace kvreplay::cuda {
namespace {

using Tile = ProductTile<float>;
constexpr int kThreads = Tile::kThreads, kWarps = kThreads / 32, kSide = Tile::kSide;
static_assert(kSide == kLossTokens && kSide == kLossRows, "a block's tile of both");

/// Where a row of a head's own stands among all heads' without padding, and with it.
KVREPLAY_DEVICE std::ptrdiff_t own_row(const LossProblem& in, int head, int row) {
  return static_cast<std::ptrdiff_t>(head) * in.in.rows + row;
}
KVREPLAY_DEVICE std::ptrdiff_t padded_row(const LossProblem& in, int head, int row) {
  return static_cast<std::ptrdiff_t>(head) * in.in.padded_rows + row;
}
KVREPLAY_DEVICE std::ptrdiff_t sample_row(const LossProblem& in, int head, int sample, int row) {
  return (static_cast<std::ptrdiff_t>(head) * in.samples + sample) * in.in.rows + row;
}

/// One warp a row: its gradients against its output and against what its largest column differs by.
KVREPLAY_KERNEL void gradients_kernel(LossProblem in) {
  const int at = static_cast<int>(block_id().x) * kWarps + warp_id(), d_v = in.in.d_v;
  if (at >= in.in.G * in.in.rows) return;
  const int head = at / in.in.rows, row = at % in.in.rows;
  const float* const out = in.out_centred + padded_row(in, head, row) * d_v;
  const float* const diff = in.rows.top_diff + padded_row(in, head, row) * d_v;
  double output_sq = 0, top = 0;
  for (int s = 0; s < in.samples; ++s) {
    const float* const g = in.gradients + sample_row(in, head, s, row) * d_v;
    double of_output = 0, of_top = 0;
    for (int c = lane_id(); c < d_v; c += 32) {
      of_output += static_cast<double>(g[c]) * static_cast<double>(out[c]);
      of_top += static_cast<double>(g[c]) * static_cast<double>(diff[c]);
    }
    of_output = warp_sum(of_output);
    of_top = warp_sum(of_top);
    if (lane_id() == 0) in.of_output[sample_row(in, head, s, row)] = static_cast<float>(of_output);
    output_sq += of_output * of_output;
    top += of_top * of_top;
  }
  if (lane_id() != 0) return;
  in.of_output_sq[own_row(in, head, row)] = static_cast<float>(output_sq);
  in.of_top[own_row(in, head, row)] = top;
}

/// The sum over s of (g . (o - v))^2 from o - v itself, where g . o and g . v nearly cancel.
KVREPLAY_SELDOM float square_of_difference(const LossProblem& in, int head, int row, int token) {
  const CentredValue value(in.in.v, token, in.in.d_v);
  const float* const out = in.out_centred + padded_row(in, head, row) * in.in.d_v;
  float square = 0;
  for (int s = 0; s < in.samples; ++s) {
    const float* const g = in.gradients + sample_row(in, head, s, row) * in.in.d_v;
    float dot = 0;
    for (int c = 0; c < in.in.d_v; ++c) dot += g[c] * (out[c] - value[c]);
    square += dot * dot;
  }
  return square;
}

/// A block's tokens and rows.
struct Corner {
  int head, token, row;
};

/// tile := products over `channels` of tokens and rows: of_token(t, c) and of_row(r, c) are their numbers.
template <class OfToken, class OfRow>
KVREPLAY_DEVICE void form_products(const LossProblem& in, const Corner& at, int channels,
                                   const OfToken& of_token, const OfRow& of_row, Tile& tile) {
  auto& shared = *reinterpret_cast<Tile::Shared*>(shared_memory());
  for (int step = 0; step < channels; step += Tile::kStep) {
    sync_block();
    Tile::load_channels(shared.left, [&](int t, int c) {
      const bool there = at.token + t < in.in.candidates && step + c < channels;
      return there ? of_token(at.token + t, step + c) : 0.0F;
    });
    Tile::load_channels(shared.right, [&](int r, int c) {
      const bool there = at.row + r < in.in.rows && step + c < channels;
      return there ? of_row(at.row + r, step + c) : 0.0F;
    });
    sync_block();
    tile.add(shared.left, shared.right);
  }
}

/// The weights that rows give tokens; 0 where hidden, and for a row's largest column.
KVREPLAY_DEVICE void form_weights(const LossProblem& in, const Corner& at,
                                  float (&weights)[Tile::kRows][Tile::kCols]) {
  Tile logits;
  form_products(
      in, at, in.in.d,
      [&](int p, int c) { return number(in.keys, static_cast<std::ptrdiff_t>(p) * in.in.d + c); },
      [&](int r, int c) { return in.in.scale * number(in.queries, own_row(in, at.head, r) * in.in.d + c); },
      logits);
  for (int j = 0; j < Tile::kCols; ++j) {
    const int row = at.row + Tile::col(j);
    const bool there = row < in.in.rows;
    const RowConstants& own = in.rows.constants[padded_row(in, at.head, there ? row : 0)];
    for (int i = 0; i < Tile::kRows; ++i) {
      const int p = at.token + Tile::row(i);
      const bool seen =
          there && own.first_visible <= p && p < own.end_visible && p < in.in.candidates && p != own.apart;
      weights[i][j] = seen ? fast_exp(entry_logit(logits.sum[i][j], in.in.softcap).z - own.entry.lse) : 0.0F;
    }
  }
}

/// The sums over s of (g . (o - v))^2.
KVREPLAY_DEVICE void form_squares(const LossProblem& in, const Corner& at,
                                  float (&squares)[Tile::kRows][Tile::kCols]) {
  for (int s = 0; s < in.samples; ++s) {
    Tile products;
    form_products(
        in, at, in.in.d_v, [&](int p, int c) { return CentredValue(in.in.v, p, in.in.d_v)[c]; },
        [&](int r, int c) { return in.gradients[sample_row(in, at.head, s, r) * in.in.d_v + c]; }, products);
    for (int j = 0; j < Tile::kCols; ++j) {
      const int row = at.row + Tile::col(j);
      if (row >= in.in.rows) continue;
      const float of_output = in.of_output[sample_row(in, at.head, s, row)];
      for (int i = 0; i < Tile::kRows; ++i) {
        const float off = of_output - products.sum[i][j];
        squares[i][j] += off * off;
      }
    }
  }
}

/// Grid: blocks of tokens, segments, heads.
KVREPLAY_KERNEL void loss_kernel(LossProblem in) {
  Corner at{static_cast<int>(block_id().z), static_cast<int>(block_id().x) * kSide, 0};
  double loss[Tile::kRows] = {}, most[Tile::kRows] = {};
  for (int block = static_cast<int>(block_id().y); block * kSide < in.in.rows; block += in.segments) {
    at.row = block * kSide;
    const int last = smaller(at.row + kSide, in.in.rows) - 1;
    if (in.in.first_visible[at.row] >= at.token + kSide || in.in.end_visible[last] <= at.token) continue;
    float weights[Tile::kRows][Tile::kCols], squares[Tile::kRows][Tile::kCols] = {};
    form_weights(in, at, weights);
    form_squares(in, at, squares);
    for (int j = 0; j < Tile::kCols; ++j) {
      const int row = at.row + Tile::col(j);
      if (row >= in.in.rows) continue;
      const float output_sq = in.of_output_sq[own_row(in, at.head, row)];
      for (int i = 0; i < Tile::kRows; ++i) {
        const float a = weights[i][j], left = a / (1 - a);
        constexpr float kLightest = 1.0F / 8192;  // below that weight it does not matter
        float square = squares[i][j];
        if (a > kLightest && square < kCancelled<float> * output_sq)
          square = square_of_difference(in, at.head, row, at.token + Tile::row(i));
        loss[i] += static_cast<double>(left * left * square);
        most[i] = larger(most[i], static_cast<double>(a));
      }
    }
  }
  const std::ptrdiff_t first =
      (static_cast<std::ptrdiff_t>(block_id().y) * 2 * in.in.G + at.head) * in.in.candidates + at.token;
  const auto into = [&](std::ptrdiff_t begin) {
    return [&in, &at, begin](int token, double total) {
      if (at.token + token < in.in.candidates) in.parts[begin + token] = total;
    };
  };
  Tile::join_columns(
      loss, [](double a, double b) { return a + b; }, into(first));
  Tile::join_columns(
      most, [](double a, double b) { return larger(a, b); },
      into(first + static_cast<std::ptrdiff_t>(in.in.G) * in.in.candidates));
}

/// A thread a number of a head's, of both.
KVREPLAY_KERNEL void join_segments_kernel(LossProblem in) {
  const std::ptrdiff_t at = static_cast<std::ptrdiff_t>(block_id().x) * kThreads + thread_id();
  const std::ptrdiff_t each = static_cast<std::ptrdiff_t>(in.in.G) * in.in.candidates;
  if (at >= each) return;
  double sum = 0, most = 0;
  for (int segment = 0; segment < in.segments; ++segment) {
    sum += in.parts[2 * segment * each + at];
    most = larger(most, in.parts[(2 * segment + 1) * each + at]);
  }
  in.totals[at] = sum;
  in.totals[each + at] = most;
}

}  // namespace

void loss_pass(const LossProblem& problem, const Stream& stream) {
  const auto heads = static_cast<unsigned>(problem.in.G);
  launch(gradients_kernel, {blocks_of(static_cast<std::ptrdiff_t>(heads) * problem.in.rows, kWarps)},
         kThreads, 0, stream, problem);
  launch(loss_kernel,
         {blocks_of(problem.in.candidates, kSide), static_cast<unsigned>(problem.segments), heads}, kThreads,
         sizeof(Tile::Shared), stream, problem);
  launch(join_segments_kernel,
         {blocks_of(static_cast<std::ptrdiff_t>(heads) * problem.in.candidates, kThreads)}, kThreads, 0,
         stream, problem);
}

}  // namespace kvreplay::cuda
