#include "sim/channels/gram_device.hpp"
#include "sim/cuda/kernel.hpp"

#include <algorithm>
#include <type_traits>

namespace kvreplay::cuda {
namespace {

constexpr int kThreads = 128;
constexpr int kTile = 64;                      // channels: each of 4 warps has 32 x 32 of the products
constexpr int kLaneRows = 8, kLaneCols = 4;    // of its warp's, a lane's
constexpr int kStep = 32;                      // rows in shared memory
constexpr std::ptrdiff_t kRowsPerSum = 128;    // in float32
constexpr std::ptrdiff_t kEnoughBlocks = 512;  // for a large device
constexpr std::ptrdiff_t kTileSize = kTile * kTile;

/// What a lane reads of shared memory at once.
template <class T>
struct alignas(16) Pack {
  static constexpr int kWidth = 16 / static_cast<int>(sizeof(T));
  T at[kWidth];
};

template <class T>
struct GramShared {
  static constexpr int kPacks = kTile / Pack<T>::kWidth;
  Pack<T> left[kStep][kPacks], right[kStep][kPacks];
};

/// Tile (i, j), i <= j, of the product: (0, 0), (0, 1), (1, 1), (0, 2), ...
struct TilePlace {
  int i, j;
};
KVREPLAY_DEVICE TilePlace tile_place(int tile) {
  int j = 0;
  for (; tile > j; ++j) tile -= j + 1;
  return {tile, j};
}

/// The warp's 32 channels of either side, dealt out so that lanes side by side read packs side by side.
template <class T>
KVREPLAY_DEVICE int left_pack(int n) {
  return warp_id() / 2 * (32 / Pack<T>::kWidth) + n * 4 + lane_id() / 8;
}
template <class T>
KVREPLAY_DEVICE int right_pack(int n) {
  return warp_id() % 2 * (32 / Pack<T>::kWidth) + n * 8 + lane_id() % 8;
}

/// Channels [channel, channel + kTile) of rows [first, end), as many as there are of kStep; 0 beyond.
template <class T>
KVREPLAY_DEVICE void load_rows(const GramRows& x, std::ptrdiff_t first, std::ptrdiff_t end, int channel,
                               Pack<T> (*shared)[GramShared<T>::kPacks]) {
  constexpr int kWidth = Pack<T>::kWidth;
  for (int at = thread_id(); at < kStep * kTile; at += kThreads) {
    const int r = at / kTile, c = at % kTile;
    float number = 0;
    if (first + r < end && channel + c < x.d) {
      const std::ptrdiff_t row = x.rows != nullptr ? x.rows[first + r] : first + r;
      number = x.x[row * x.d + channel + c];
    }
    shared[r][c / kWidth].at[c % kWidth] = static_cast<T>(number);
  }
}

KVREPLAY_DEVICE float multiplied_added(float a, float b, float sum) { return fused(a, b, sum); }
// The product is exact: rounded once, fused or not.
KVREPLAY_DEVICE double multiplied_added(double a, double b, double sum) { return a * b + sum; }

template <class T>
KVREPLAY_DEVICE void add_products(const Pack<T> (*left)[GramShared<T>::kPacks],
                                  const Pack<T> (*right)[GramShared<T>::kPacks],
                                  T (&sums)[kLaneRows][kLaneCols]) {
  constexpr int kWidth = Pack<T>::kWidth;
  for (int r = 0; r < kStep; ++r) {
    Pack<T> a[kLaneRows / kWidth], b[kLaneCols / kWidth];
    KVREPLAY_UNROLL
    for (int n = 0; n < kLaneRows / kWidth; ++n) a[n] = left[r][left_pack<T>(n)];
    KVREPLAY_UNROLL
    for (int n = 0; n < kLaneCols / kWidth; ++n) b[n] = right[r][right_pack<T>(n)];
    KVREPLAY_UNROLL
    for (int i = 0; i < kLaneRows; ++i) {
      KVREPLAY_UNROLL
      for (int j = 0; j < kLaneCols; ++j)
        sums[i][j] = multiplied_added(a[i / kWidth].at[i % kWidth], b[j / kWidth].at[j % kWidth], sums[i][j]);
    }
  }
}

template <class T>
KVREPLAY_DEVICE void move_sums(T (&from)[kLaneRows][kLaneCols], double (&to)[kLaneRows][kLaneCols]) {
  KVREPLAY_UNROLL
  for (int i = 0; i < kLaneRows; ++i) {
    KVREPLAY_UNROLL
    for (int j = 0; j < kLaneCols; ++j) {
      to[i][j] += static_cast<double>(from[i][j]);
      from[i][j] = 0;
    }
  }
}

/// Grid: tiles, parts of the rows. parts [parts][tiles][kTile][kTile].
template <class T>
KVREPLAY_KERNEL void tiles_kernel(GramRows x, GramPlan plan, double* parts) {
  constexpr int kWidth = Pack<T>::kWidth;
  GramShared<T>& shared = *reinterpret_cast<GramShared<T>*>(shared_memory());
  const TilePlace tile = tile_place(static_cast<int>(block_id().x));
  const bool diagonal = tile.i == tile.j;
  const std::ptrdiff_t begin = block_id().y * plan.per_part, end = smaller(begin + plan.per_part, x.n);

  T sums[kLaneRows][kLaneCols] = {};
  double total[kLaneRows][kLaneCols] = {};
  for (std::ptrdiff_t first = begin; first < end; first += kStep) {
    if (std::is_same<T, float>::value && (first - begin) % kRowsPerSum == 0) move_sums(sums, total);
    sync_block();
    load_rows(x, first, end, tile.i * kTile, shared.left);
    if (!diagonal) load_rows(x, first, end, tile.j * kTile, shared.right);
    sync_block();
    add_products<T>(shared.left, diagonal ? shared.left : shared.right, sums);
  }
  move_sums(sums, total);

  double* out = parts + (static_cast<std::ptrdiff_t>(block_id().y) * plan.tiles + block_id().x) * kTileSize;
  KVREPLAY_UNROLL
  for (int i = 0; i < kLaneRows; ++i) {
    KVREPLAY_UNROLL
    for (int j = 0; j < kLaneCols; ++j)
      out[(left_pack<T>(i / kWidth) * kWidth + i % kWidth) * kTile + right_pack<T>(j / kWidth) * kWidth +
          j % kWidth] = total[i][j];
  }
}

/// Grid: tiles, kTileSize / kThreads.
KVREPLAY_KERNEL void join_parts_kernel(GramPlan plan, const double* parts, int d, double* gram) {
  const TilePlace tile = tile_place(static_cast<int>(block_id().x));
  const int entry = static_cast<int>(block_id().y) * kThreads + thread_id();
  const int m = tile.i * kTile + entry / kTile, n = tile.j * kTile + entry % kTile;
  if (m > n || n >= d) return;
  double sum = 0;
  for (int part = 0; part < plan.parts; ++part)
    sum += parts[(static_cast<std::ptrdiff_t>(part) * plan.tiles + block_id().x) * kTileSize + entry];
  gram[static_cast<std::ptrdiff_t>(m) * d + n] = sum;
  gram[static_cast<std::ptrdiff_t>(n) * d + m] = sum;
}

constexpr std::ptrdiff_t div_up(std::ptrdiff_t a, std::ptrdiff_t b) { return (a + b - 1) / b; }

}  // namespace

GramPlan gram_plan(std::ptrdiff_t n, int d) {
  const std::ptrdiff_t side = div_up(d, kTile), tiles = side * (side + 1) / 2;
  const std::ptrdiff_t per_part =
      div_up(std::max<std::ptrdiff_t>(div_up(n * tiles, kEnoughBlocks), 1), kRowsPerSum) * kRowsPerSum;
  return {static_cast<int>(tiles), static_cast<int>(div_up(n, per_part)), per_part};
}

std::size_t gram_parts_size(const GramPlan& plan) {
  return static_cast<std::size_t>(plan.parts) * static_cast<std::size_t>(plan.tiles) * kTileSize;
}

void gram_pass(const GramRows& x, GramProducts products, const GramPlan& plan, double* parts, double* gram,
               const Stream& stream) {
  const auto tiles = static_cast<unsigned>(plan.tiles);
  const Grid grid{tiles, static_cast<unsigned>(plan.parts)};
  if (plan.parts > 0 && products == GramProducts::exact)
    launch(tiles_kernel<double>, grid, kThreads, sizeof(GramShared<double>), stream, x, plan, parts);
  else if (plan.parts > 0)
    launch(tiles_kernel<float>, grid, kThreads, sizeof(GramShared<float>), stream, x, plan, parts);
  launch(join_parts_kernel, {tiles, static_cast<unsigned>(kTileSize / kThreads)}, kThreads, 0, stream, plan,
         static_cast<const double*>(parts), x.d, gram);
}

}  // namespace kvreplay::cuda
