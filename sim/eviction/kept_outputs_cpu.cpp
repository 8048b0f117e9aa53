#include "sim/eviction/kept_outputs.hpp"
#include "sim/eviction/kept_tiles.hpp"
#include "sim/eviction/vanishing_outputs.hpp"
#include "sim/overflow.hpp"
#include "sim/tokens/column_totals.hpp"
#include "sim/tokens/value_rows.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <string>

namespace kvreplay {
namespace {

/// What an item (query head, panel) leaves for the sums, which are then added in order of the items.
struct ItemSums {
  double full_sq = 0;
  std::vector<double> change_sq;
};

/// A slice of W_O is copied out, for its rows lie a power of two apart, which a cache holds few of, and
/// serves so many panels while their outputs stay in a core's cache.
constexpr Index kOutputsAtOnce = 96, kPanelsAtOnce = 48;

/// The columns of [begin, end) that a cache holds, relative to `begin`: kept prompt positions and all decoded
/// ones.
std::vector<Index> columns_of(const KeptSet& kept, Index begin, Index end) {
  std::vector<Index> columns;
  const Index l = std::ssize(kept);
  for (Index p = begin; p < end; ++p)
    if (p >= l || kept[p] != 0) columns.push_back(p - begin);
  return columns;
}

/// Throws where a row sees a logit beyond T: such logits pass for hidden ones, or for all there is.
template <class T>
void require_finite_logits(const HeadGroup<T>& group, const TileInput<T>& in, Index g, Index panel,
                           Index begin, const T* z) {
  for (Index i = in.panel_first(panel); i <= in.panel_last(panel); ++i)
    for (Index p = in.first_visible(i); p < in.end_visible(i); ++p)
      if (!std::isfinite(z[(p - begin) * kPanelWidth<T> + i - in.panel_first(panel)]))
        report_overflow(group, g, "position " + std::to_string(i));
}

template <class T>
void require_finite_outputs(const HeadGroup<T>& group, const ItemSums& sums, Index g, Index panel_first) {
  double all = sums.full_sq;
  for (const double change : sums.change_sq) all += change;
  if (!std::isfinite(all)) report_overflow(group, g, "positions from " + std::to_string(panel_first));
}

/// A panel of rows of one query head.
template <class T>
struct HeadPanel {
  std::vector<T> z;
  AttendedOutput<T> full, kept;
};

/// At most so many numbers of logits to a work item.
template <class T>
constexpr Index kLogitsAtOnce = (Index{32} << 20) / static_cast<Index>(sizeof(T));

/// The outputs over the n columns `columns` of every panel's z, whose values v_centred [..][d_v] has.
template <class T>
void attend(std::span<const T* const> z, std::vector<AttendedPanel<T>>& panels, const Index* columns, Index n,
            const T* v_centred, Index d_v) {
  std::vector<T> values(kTokensPassOne * d_v);
  for (Index first = 0; first < n; first += kTokensPassOne) {
    const Index tokens = std::min(kTokensPassOne, n - first);
    for (Index t = 0; t < tokens; ++t)
      std::copy_n(v_centred + columns[first + t] * d_v, d_v, values.data() + t * d_v);
    for (std::size_t h = 0; h < panels.size(); ++h)
      kept_tiles_simd<T>().attend_tile(z[h], columns + first, tokens, values.data(), d_v, panels[h]);
  }
  for (AttendedPanel<T>& panel : panels) finish_attending(panel);
}

/// output_changes() with the values taken about values.centre.
template <class T>
OutputChanges<T> changes_about(const PreparedValues<T>& values, const HeadGroup<T>& group, RowRange rows,
                               std::span<const KeptSet> sets, bool with_vectors, Workers& workers) {
  constexpr Index W = kPanelWidth<T>;
  const Index G = group.G(), d_v = group.d_v();
  const TileInput<T> in = tile_input(group, values, rows);
  const Index panels = in.panels();
  const Index panel_size = d_v * W;

  OutputChanges<T> result;
  if (with_vectors) {
    const std::vector<T> empty(panels * panel_size);
    result.full.assign(G, empty);
    result.change.assign(sets.size(), result.full);
  }
  const Index together = heads_together(G, panels, workers.threads(), kLogitsAtOnce<T> / (group.T_all() * W));
  const Index chunks = div_up(G, together);
  std::vector<ItemSums> items(G * panels);
  // The later panels see the most: they come first, so that a short item ends the queue.
  workers.parallel_for(chunks * panels, [&](Index item) {
    const Index first_head = item % chunks * together, panel = panels - 1 - item / chunks;
    const Index heads = std::min(together, G - first_head);
    const Index n = in.panel_last(panel) - in.panel_first(panel) + 1;
    const Index begin = in.first_visible(in.panel_first(panel)), end = in.end_visible(in.panel_last(panel));

    std::vector<HeadPanel<T>> of_heads(heads);
    std::vector<T> q(in.d * W);
    TileInput<T> mine = in;
    mine.q_panels = q.data() - panel * in.d * W;
    for (Index h = 0; h < heads; ++h) {
      const Index g = first_head + h;
      pack_query_panel(group, in, g, panel, q.data());
      std::vector<T>& z = of_heads[h].z;
      z.resize((end - begin) * W);
      if (!kept_tiles_simd<T>().logit_panel(mine, panel, begin, end, z.data()))
        require_finite_logits(group, in, g, panel, begin, z.data());
    }
    std::vector<const T*> z;
    for (const HeadPanel<T>& head : of_heads) z.push_back(head.z.data());
    const auto attend_kept = [&](const KeptSet& kept, AttendedOutput<T> HeadPanel<T>::*into) {
      const std::vector<Index> columns = columns_of(kept, begin, end);
      std::vector<AttendedPanel<T>> attended;
      for (Index h = 0; h < heads; ++h)
        attended.emplace_back(sink_logit(group, first_head + h), d_v, of_heads[h].*into);
      attend<T>(z, attended, columns.data(), std::ssize(columns), in.v_centred + begin * d_v, d_v);
    };
    attend_kept(KeptSet(group.l, 1), &HeadPanel<T>::full);
    for (Index h = 0; h < heads; ++h) {
      T* full = with_vectors ? result.full[first_head + h].data() + panel * panel_size : nullptr;
      items[(first_head + h) * panels + panel].full_sq =
          kept_tiles_simd<T>().output_change(of_heads[h].full, nullptr, values.centre.data(), n, full);
    }
    for (std::size_t s = 0; s < sets.size(); ++s) {
      attend_kept(sets[s], &HeadPanel<T>::kept);
      for (Index h = 0; h < heads; ++h) {
        T* change = with_vectors ? result.change[s][first_head + h].data() + panel * panel_size : nullptr;
        items[(first_head + h) * panels + panel].change_sq.push_back(kept_tiles_simd<T>().output_change(
            of_heads[h].kept, &of_heads[h].full, values.centre.data(), n, change));
      }
    }
    for (Index h = 0; h < heads; ++h) {
      const Index g = first_head + h;
      require_finite_outputs(group, items[g * panels + panel], g, in.panel_first(panel));
    }
  });

  result.change_sq.assign(sets.size(), 0.0);
  for (const ItemSums& item : items) {
    result.full_sq += item.full_sq;
    for (std::size_t s = 0; s < sets.size(); ++s) result.change_sq[s] += item.change_sq[s];
  }
  return result;
}

}  // namespace

template <class T>
OutputChanges<T> output_changes(const HeadGroup<T>& group, RowRange rows, std::span<const KeptSet> sets,
                                bool with_vectors, Workers& workers) {
  const PreparedValues<T> values = prepare_values(group, workers);
  return settled(changes_about(values, group, rows, sets, with_vectors, workers), values.centre, group, rows,
                 sets, with_vectors, workers);
}

template <class T>
OutputChanges<T> vanishing_output_changes(const HeadGroup<T>& group, RowRange rows,
                                          std::span<const KeptSet> sets, bool with_vectors,
                                          Workers& workers) {
  const auto wide = converted<double>(group);
  PreparedValues<double> values;
  values.centre = Vector<double>::Zero(group.d_v());
  values.centred = wide.v;
  const OutputChanges<double> found = changes_about(values, wide, rows, sets, with_vectors, workers);
  OutputChanges<T> result{found.full_sq, found.change_sq, {}, {}};
  const bool lost = found.full_sq < std::numeric_limits<double>::min() && !wide.v.isZero(0);
  for (std::size_t s = 0; s < sets.size(); ++s)
    if (lost && count(sets[s]) < group.l) result.change_sq[s] = at_least_some(found.change_sq[s]);
  if (!with_vectors) return result;
  result.full = in_panels_of<T>(found.full, rows.count(), group.d_v());
  for (const PanelRows<double>& change : found.change)
    result.change.push_back(in_panels_of<T>(change, rows.count(), group.d_v()));
  return result;
}

template <class T>
std::vector<double> projected_sq(std::span<const LayerRows<T>> cases, const std::vector<Matrix<T>>& wo,
                                 Workers& workers) {
  constexpr Index W = kPanelWidth<T>;
  const Index d_v = wo.front().rows(), d_model = wo.front().cols(), n_cases = std::ssize(cases);
  if (n_cases == 0) return {};
  const Index panels = std::ssize(*cases.front().front()) / (d_v * W), all = n_cases * panels;
  const Index slices = div_up(d_model, kOutputsAtOnce), groups = div_up(all, kPanelsAtOnce);
  std::vector<double> squares(slices * all);
  workers.parallel_for(slices * groups, [&](Index item) {
    const Index slice = item / groups, first = slice * kOutputsAtOnce,
                n = std::min(kOutputsAtOnce, d_model - first);
    const Index from = item % groups * kPanelsAtOnce, to = std::min(from + kPanelsAtOnce, all);
    Matrix<T> weights(d_v, n);
    std::vector<T> out((to - from) * n * W);
    for (std::size_t h = 0; h < wo.size(); ++h) {
      weights = wo[h].middleCols(first, n);
      for (Index p = from; p < to; ++p)
        kept_tiles_simd<T>().project_panel(weights.data(), d_v, n,
                                           cases[p / panels][h]->data() + p % panels * d_v * W,
                                           out.data() + (p - from) * n * W);
    }
    value_rows_simd<T>().row_squares(out.data(), to - from, n * W, squares.data() + slice * all + from);
  });
  std::vector<double> sums(n_cases, 0.0);
  for (Index slice = 0; slice < slices; ++slice)
    for (Index p = 0; p < all; ++p) sums[p / panels] += squares[slice * all + p];
  return sums;
}

template decltype(output_changes<float>) output_changes<float>;
template decltype(output_changes<double>) output_changes<double>;
template decltype(vanishing_output_changes<float>) vanishing_output_changes<float>;
template decltype(vanishing_output_changes<double>) vanishing_output_changes<double>;
template decltype(projected_sq<float>) projected_sq<float>;
template decltype(projected_sq<double>) projected_sq<double>;

}  // namespace kvreplay
