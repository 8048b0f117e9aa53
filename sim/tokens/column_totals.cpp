#include "sim/tokens/column_totals.hpp"

#include "sim/tokens/softmax_rows.hpp"
#include "sim/tokens/value_rows.hpp"

#include <algorithm>

namespace kvreplay {

ColumnTotals empty_totals(Index l, ColumnSet columns) {
  ColumnTotals totals;
  const Vector<double> zero = Vector<double>::Zero(l);
  for (int s = 0; s < kRowSums; ++s)
    if (has_sum(columns, static_cast<RowScore>(s))) totals.sums[s] = zero;
  if (columns == ColumnSet::future) totals.max_attn = zero;
  return totals;
}

void add_largest(std::span<const LargestScores> rows, ColumnSet columns, Index l, ColumnTotals& totals) {
  for (const LargestScores& s : rows) {
    if (s.at >= l) continue;  // a decoded position is no candidate
    for (int k = 0; k < kRowSums; ++k)
      if (has_sum(columns, static_cast<RowScore>(k))) totals.sums[k](s.at) += s.sums[k];
    if (columns == ColumnSet::future)
      totals.max_attn(s.at) = std::max(totals.max_attn(s.at), s[RowScore::attention]);
  }
}

template <class T>
TileInput<T> tile_input(const HeadGroup<T>& group, const PreparedValues<T>& values, RowRange rows) {
  TileInput<T> in{};
  in.k = group.k.data();
  in.v_centred = values.centred.data();
  in.d = group.d();
  in.d_v = group.d_v();
  in.first_row = rows.begin;
  in.n_rows = rows.count();
  in.total = group.T_all();
  in.causal = group.rule.causal;
  in.sliding_window = group.rule.sliding_window.value_or(0);
  in.softcap = static_cast<T>(group.rule.softcap.value_or(0));
  in.position = group.position.empty() ? nullptr : group.position.data();
  return in;
}

template <class T>
void pack_query_panel(const HeadGroup<T>& group, const TileInput<T>& in, Index g, Index panel, T* out) {
  constexpr Index W = kPanelWidth<T>;
  const T scale = static_cast<T>(group.rule.scale);
  const Index first = in.panel_first(panel) - group.first_query();
  const Index n = in.panel_rows(panel);
  for (Index r = 0; r < n; ++r) {
    const T* q = group.q[g].data() + (first + r * in.row_step) * in.d;
    for (Index c = 0; c < in.d; ++c) out[c * W + r] = scale * q[c];
  }
  if (n < W)
    for (Index c = 0; c < in.d; ++c) std::fill(out + c * W + n, out + (c + 1) * W, T{0});
}

template <class T>
std::vector<ColumnTotals> column_totals(const HeadGroup<T>& group, const PreparedValues<T>& values,
                                        RowRange rows, ColumnSet columns, Workers& workers,
                                        Index most_logits) {
  if (columns == ColumnSet::weights && rows.count() == 1) return row_weights(group, rows.begin, workers);
  const Index G = group.G(), l = group.l;
  std::vector<ColumnTotals> totals(G, empty_totals(l, columns));
  const TokenConstants<T> tokens{values.centre.data(), values.value_sq.data(), values.value_centred_sq.data(),
                                 values.centre_dot_value.data()};
  for (const RowBatch& batch : row_batches(group, rows, most_logits)) {
    std::vector<HeadRows<T>> heads =
        softmax_rows(group, values, batch.rows,
                     {.outputs = columns != ColumnSet::weights, .keep_logits = batch.keep_logits}, workers);

    // Pass two. An item owns its columns, so that every sum is added up by one thread in order of the rows.
    const Index first = first_scored(group, batch.rows);
    const Index scored = std::min(l, group.end_visible(batch.rows.end - 1));
    const Index chunks = div_up(std::max<Index>(scored - first, 0), kTokensPassTwo);
    workers.parallel_for(G * chunks, [&](Index item) {
      const Index begin = first + item / G * kTokensPassTwo, g = item % G;
      ColumnTotals& t = totals[g];
      ColumnSums sums{{}, t.max_attn.data()};
      for (int s = 0; s < kRowSums; ++s) sums.of[s] = t.sums[s].data();
      tiles_simd<T>().score_tiles(heads[g].in, heads[g].row_constants.get(), heads[g].out_panels.get(),
                                  tokens, columns, begin, std::min(begin + kTokensPassTwo, scored), sums);
    });
    for (Index g = 0; g < G; ++g) add_largest(heads[g].largest, columns, l, totals[g]);
  }
  return totals;
}

template <class T>
PreparedValues<T> prepare_values(const HeadGroup<T>& group, Workers& workers) {
  const Index total = group.T_all(), l = group.l, d_v = group.d_v();
  PreparedValues<T> values;
  constexpr Index kSampled = 256;
  const Index step = div_up(total, kSampled);
  Vector<double> sum = Vector<double>::Zero(d_v);
  for (Index p = 0; p < total; p += step) sum += group.v.row(p).transpose().template cast<double>();
  values.centre = (sum / static_cast<double>(div_up(total, step))).template cast<T>();
  values.centred.resize(total, d_v);
  values.value_sq.resize(l);
  values.value_centred_sq.resize(l);
  values.centre_dot_value.resize(l);
  constexpr Index kChunk = 256;
  const Index chunks = div_up(total, kChunk);
  Matrix<double> partial = Matrix<double>::Zero(chunks, d_v);
  workers.parallel_for(chunks, [&](Index chunk) {
    const Index begin = chunk * kChunk, end = std::min(begin + kChunk, total);
    const Index candidates_end = std::clamp(l, begin, end), candidates = candidates_end - begin;
    Vector<T> candidate_sum = Vector<T>::Zero(d_v);
    value_rows_simd<T>().centre_rows(group.v.data() + begin * d_v, values.centre.data(), candidates, d_v,
                                     values.centred.data() + begin * d_v, values.value_sq.data() + begin,
                                     values.value_centred_sq.data() + begin,
                                     values.centre_dot_value.data() + begin, candidate_sum.data());
    partial.row(chunk) = candidate_sum.transpose().template cast<double>();
    for (Index p = candidates_end; p < end; ++p)
      values.centred.row(p) = group.v.row(p) - values.centre.transpose();
  });
  values.candidate_mean = partial.colwise().sum().transpose() / static_cast<double>(l);
  return values;
}

template decltype(tile_input<float>) tile_input<float>;
template decltype(pack_query_panel<float>) pack_query_panel<float>;
template decltype(prepare_values<float>) prepare_values<float>;
template decltype(tile_input<double>) tile_input<double>;
template decltype(pack_query_panel<double>) pack_query_panel<double>;
template decltype(prepare_values<double>) prepare_values<double>;
template decltype(column_totals<float>) column_totals<float>;
template decltype(column_totals<double>) column_totals<double>;

}  // namespace kvreplay
