#include "sim/cuda/gram_kernels.hpp"
#include "sim/cuda/product_tile.hpp"

#include <algorithm>
#include <type_traits>

namespace kvreplay::cuda {
namespace {

constexpr int kThreads = ProductTile<float>::kThreads;
constexpr int kTile = ProductTile<float>::kSide;
constexpr std::ptrdiff_t kRowsPerSum = 128;    // in float32
constexpr std::ptrdiff_t kEnoughBlocks = 512;  // for a large device
constexpr std::ptrdiff_t kTileSize = kTile * kTile;

/// Tile (i, j), i <= j, of the product: (0, 0), (0, 1), (1, 1), (0, 2), ...
struct TilePlace {
  int i, j;
};
KVREPLAY_DEVICE TilePlace tile_place(int tile) {
  int j = 0;
  for (; tile > j; ++j) tile -= j + 1;
  return {tile, j};
}

/// Channels [channel, channel + kTile) of rows [first, end), as many as there are of a step; 0 beyond.
template <class Panel>
KVREPLAY_DEVICE void load_rows(const GramRows& x, std::ptrdiff_t first, std::ptrdiff_t end, int channel,
                               Panel& panel) {
  for (int at = thread_id(); at < ProductTile<float>::kStep * kTile; at += kThreads) {
    const int r = at / kTile, c = at % kTile;
    float number = 0;
    if (first + r < end && channel + c < x.d) {
      const std::ptrdiff_t row = first + r;
      number = x.x[x.column_step > 0 ? (channel + c) * x.column_step + row : row * x.d + channel + c];
      if (x.centre != nullptr) number -= x.centre[channel + c];
    }
    panel.put(r, c, number);
  }
}

/// Grid: tiles, parts of the rows. parts [parts][tiles][kTile][kTile].
template <class T>
KVREPLAY_KERNEL void tiles_kernel(GramRows x, GramPlan plan, double* parts) {
  using Tile = ProductTile<T>;
  auto& shared = *reinterpret_cast<typename Tile::Shared*>(shared_memory());
  const TilePlace place = tile_place(static_cast<int>(block_id().x));
  const bool diagonal = place.i == place.j;
  const std::ptrdiff_t begin = block_id().y * plan.per_part, end = smaller(begin + plan.per_part, x.n);

  Tile tile;
  for (std::ptrdiff_t first = begin; first < end; first += Tile::kStep) {
    if (std::is_same<T, float>::value && (first - begin) % kRowsPerSum == 0) tile.move_to_total();
    sync_block();
    load_rows(x, first, end, place.i * kTile, shared.left);
    if (!diagonal) load_rows(x, first, end, place.j * kTile, shared.right);
    sync_block();
    tile.add(shared.left, diagonal ? shared.left : shared.right);
  }
  tile.move_to_total();

  double* out = parts + (static_cast<std::ptrdiff_t>(block_id().y) * plan.tiles + block_id().x) * kTileSize;
  KVREPLAY_UNROLL
  for (int i = 0; i < Tile::kRows; ++i) {
    KVREPLAY_UNROLL
    for (int j = 0; j < Tile::kCols; ++j) out[Tile::row(i) * kTile + Tile::col(j)] = tile.total[i][j];
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
    launch(tiles_kernel<double>, grid, kThreads, sizeof(ProductTile<double>::Shared), stream, x, plan, parts);
  else if (plan.parts > 0)
    launch(tiles_kernel<float>, grid, kThreads, sizeof(ProductTile<float>::Shared), stream, x, plan, parts);
  launch(join_parts_kernel, {tiles, static_cast<unsigned>(kTileSize / kThreads)}, kThreads, 0, stream, plan,
         static_cast<const double*>(parts), x.d, gram);
}

}  // namespace kvreplay::cuda
