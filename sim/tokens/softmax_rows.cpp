#include "sim/tokens/softmax_rows.hpp"

#include <algorithm>
#include <array>
#include <new>

namespace kvreplay {
namespace {

template <class T>
hwy::AlignedFreeUniquePtr<T[]> aligned(Index n) {
  auto memory = hwy::AllocateAligned<T>(std::max<Index>(n, 1));
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}

/// What pass one needs of one query head while it lasts.
template <class T>
struct RunningRows {
  hwy::AlignedFreeUniquePtr<T[]> scalars;    // [segments][panels][4][W]
  hwy::AlignedFreeUniquePtr<T[]> later_out;  // [segments - 1][panels][d_v][W]

  /// rest_out of segment 0 lies where the outputs will.
  SoftmaxPanel<T> state(HeadRows<T>& head, Index segment, Index panel) {
    constexpr Index W = kPanelWidth<T>;
    T* s = scalars.get() + (segment * head.in.panels() + panel) * 4 * W;
    T* out = segment == 0 ? head.out_panels.get() + panel * head.in.d_v * W
                          : later_out.get() + ((segment - 1) * head.in.panels() + panel) * head.in.d_v * W;
    return {s, s + W, s + 2 * W, s + 3 * W, out};
  }
};

/// o' - centre of a panel; o' is 0 where a row sees one column alone.
template <class T>
void others_outputs(const PreparedValues<T>& values, Index d_v, const SoftmaxPanel<T>& state, T* out) {
  constexpr Index W = kPanelWidth<T>;
  for (Index c = 0; c < d_v; ++c)
    for (Index r = 0; r < W; ++r)
      out[c * W + r] =
          state.rest_sum[r] > 0 ? state.rest_out[c * W + r] / state.rest_sum[r] : -values.centre(c);
}

}  // namespace

template <class T>
std::vector<RowBatch> row_batches(const HeadGroup<T>& group, RowRange rows, Index most) {
  const Index bytes_of_column = group.G() * kPanelWidth<T> * static_cast<Index>(sizeof(T));
  const auto fits = [&](Index begin, Index end) {
    const Index columns = group.end_visible(end - 1) - first_scored(group, {begin, end});
    return panels_of<T>(end - begin) * columns * bytes_of_column <= most;
  };
  std::vector<RowBatch> batches;
  while (rows.begin < rows.end) {
    Index end = rows.begin;
    while (end < rows.end) {
      const Index next = std::min(end + kPanelWidth<T>, rows.end);
      if (!fits(rows.begin, next)) break;
      end = next;
    }
    const bool keep_logits = end > rows.begin;
    if (!keep_logits) end = rows.end;
    batches.push_back({{rows.begin, end}, keep_logits});
    rows.begin = end;
  }
  return batches;
}

template <class T>
std::vector<HeadRows<T>> softmax_rows(const HeadGroup<T>& group, const PreparedValues<T>& values,
                                      RowRange rows, const SoftmaxRowsOptions& options, Workers& workers) {
  constexpr Index W = kPanelWidth<T>;
  const Index G = group.G();
  TileInput<T> in = tile_input(group, values, rows);
  if (!options.outputs) in.d_v = 0;
  const Index panels = in.panels(), blocks = div_up(panels, kPanelsPerBlock);
  // Few rows: the tokens are split as well, at places that depend on the sizes alone.
  const Index begin = in.first_visible(rows.begin), end = in.end_visible(rows.end - 1);
  constexpr Index kEnoughItems = 128;
  const Index wanted = std::min(div_up(kEnoughItems, G * blocks), div_up(end - begin, 2 * kTokensPassOne));
  const Index per_segment =
      div_up(div_up(end - begin, std::max<Index>(wanted, 1)), kTokensPassOne) * kTokensPassOne;
  const Index segments = div_up(end - begin, per_segment);

  std::vector<HeadRows<T>> heads(G);
  std::vector<RunningRows<T>> running(G);
  for (Index g = 0; g < G; ++g) {
    HeadRows<T>& head = heads[g];
    head.in = in;
    head.q_panels = aligned<T>(panels * in.d * W);
    head.in.q_panels = head.q_panels.get();
    head.out_panels = aligned<T>(panels * in.d_v * W);
    head.row_constants = aligned<T>(panels * kRowConstants * W);
    if (options.keep_logits) {
      const Index first = first_scored(group, rows);
      head.logits = aligned<T>(panels * (end - first) * W);
      head.in.logits = {head.logits.get(), first, end - first};
    }
    if (options.others) head.others.resize(panels * in.d_v * W);
    head.largest.resize(rows.count());
    running[g] = {aligned<T>(segments * panels * 4 * W), aligned<T>((segments - 1) * panels * in.d_v * W)};
  }

  workers.parallel_for(G * panels, [&](Index item) {
    HeadRows<T>& head = heads[item / panels];
    const Index panel = item % panels;
    pack_query_panel(group, head.in, item / panels, panel, head.q_panels.get() + panel * in.d * W);
  });
  // The blocks that see the most tokens come first, so that a short item ends the queue; the query heads take
  // turns, so that they find each other's keys in the cache.
  workers.parallel_for(G * blocks * segments, [&](Index item) {
    const Index block = blocks - 1 - item / (G * segments), segment = item / G % segments, g = item % G;
    const Index first = block * kPanelsPerBlock, n = std::min(kPanelsPerBlock, panels - first);
    std::array<SoftmaxPanel<T>, kPanelsPerBlock> states;
    for (Index b = 0; b < n; ++b) {
      states[b] = running[g].state(heads[g], segment, first + b);
      start_state(group, values, g, in, segment == 0, states[b]);
    }
    const Index from = begin + segment * per_segment;
    tiles_simd<T>().softmax_tiles(heads[g].in, first, n, from, std::min(from + per_segment, end),
                                  states.data());
  });
  workers.parallel_for(G * panels, [&](Index item) {
    const Index g = item / panels, panel = item % panels;
    HeadRows<T>& head = heads[g];
    const SoftmaxPanel<T> state = running[g].state(head, 0, panel);
    for (Index segment = 1; segment < segments; ++segment)
      tiles_simd<T>().merge_states(head.in, running[g].state(head, segment, panel), state);
    if (options.others) others_outputs(values, in.d_v, state, head.others.data() + panel * in.d_v * W);
    finish_panel(group, values, g, head.in, panel, state,
                 head.row_constants.get() + panel * kRowConstants * W, head.largest.data() + panel * W);
  });
  return heads;
}

template decltype(row_batches<float>) row_batches<float>;
template decltype(row_batches<double>) row_batches<double>;
template decltype(softmax_rows<float>) softmax_rows<float>;
template decltype(softmax_rows<double>) softmax_rows<double>;

}  // namespace kvreplay
