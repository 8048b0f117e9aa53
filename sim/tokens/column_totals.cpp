#include "sim/tokens/column_totals.hpp"

#include "sim/overflow.hpp"
#include "sim/simd/softmax_exp.hpp"
#include "sim/tokens/value_rows.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <new>
#include <string>

namespace kvreplay {

ColumnTotals empty_totals(Index l, ColumnSet columns) {
  ColumnTotals totals;
  const Vector<double> zero = Vector<double>::Zero(l);
  for (int s = 0; s < kRowSums; ++s)
    if (has_sum(columns, static_cast<RowScore>(s))) totals.sums[s] = zero;
  if (has_max_attn(columns)) totals.max_attn = zero;
  return totals;
}

bool needs_outputs(std::span<const ColumnRequest> requests) {
  return std::any_of(requests.begin(), requests.end(),
                     [](const ColumnRequest& request) { return needs_outputs(request.columns); });
}

void add_largest(std::span<const LargestScores> rows, ColumnSet columns, Index l, ColumnTotals& totals) {
  for (const LargestScores& s : rows) {
    if (s.at >= l) continue;  // a decoded position is no candidate
    for (int k = 0; k < kRowSums; ++k)
      if (has_sum(columns, static_cast<RowScore>(k))) totals.sums[k](s.at) += s.sums[k];
    if (has_max_attn(columns))
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
  in.two_sided = group.rule.two_sided && in.sliding_window > 0;
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
                     {.outputs = needs_outputs(columns), .keep_logits = batch.keep_logits}, workers);

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
Vector<T> value_centre(const HeadGroup<T>& group) {
  const Index total = group.T_all();
  constexpr Index kSampled = 256;
  const Index step = div_up(total, kSampled);
  Vector<double> sum = Vector<double>::Zero(group.d_v());
  for (Index p = 0; p < total; p += step) sum += group.v.row(p).transpose().template cast<double>();
  return (sum / static_cast<double>(div_up(total, step))).template cast<T>();
}

template <class T>
PreparedValues<T> prepare_values(const HeadGroup<T>& group, Workers& workers) {
  const Index total = group.T_all(), l = group.l, d_v = group.d_v();
  PreparedValues<T> values;
  values.centre = value_centre(group);
  values.centred.resize(total, d_v);
  values.value_sq.resize(total);
  values.value_centred_sq.resize(total);
  values.centre_dot_value.resize(total);
  constexpr Index kChunk = 256;
  const Index chunks = div_up(total, kChunk);
  Matrix<double> partial = Matrix<double>::Zero(chunks, d_v);
  workers.parallel_for(chunks, [&](Index chunk) {
    const Index begin = chunk * kChunk, end = std::min(begin + kChunk, total);
    const auto centre_rows = [&](Index from, Index to) {
      Vector<T> sum = Vector<T>::Zero(d_v);
      value_rows_simd<T>().centre_rows(group.v.data() + from * d_v, values.centre.data(), to - from, d_v,
                                       values.centred.data() + from * d_v, values.value_sq.data() + from,
                                       values.value_centred_sq.data() + from,
                                       values.centre_dot_value.data() + from, sum.data());
      return sum;
    };
    const Index candidates_end = std::clamp(l, begin, end);
    partial.row(chunk) = centre_rows(begin, candidates_end).transpose().template cast<double>();
    centre_rows(candidates_end, end);
  });
  values.candidate_mean = partial.colwise().sum().transpose() / static_cast<double>(l);
  return values;
}

template decltype(tile_input<float>) tile_input<float>;
template decltype(pack_query_panel<float>) pack_query_panel<float>;
template decltype(value_centre<float>) value_centre<float>;
template decltype(value_centre<double>) value_centre<double>;
template decltype(prepare_values<float>) prepare_values<float>;
template decltype(tile_input<double>) tile_input<double>;
template decltype(pack_query_panel<double>) pack_query_panel<double>;
template decltype(prepare_values<double>) prepare_values<double>;
template decltype(column_totals<float>) column_totals<float>;
template decltype(column_totals<double>) column_totals<double>;

namespace {

/// z_raw dz/dz_raw of a capped logit z, from the query and key themselves: near the cap z no longer tells
/// z_raw.
template <class T>
double uncapped_taylor_logit(const HeadGroup<T>& group, Index g, Index i, Index p, double z) {
  const double raw = group.rule.scale * group.q[g]
                                            .row(i - group.first_query())
                                            .template cast<double>()
                                            .dot(group.k.row(p).template cast<double>());
  const double slope = z / *group.rule.softcap;
  return raw * (1 - slope * slope);
}

}  // namespace

template <class T>
void start_state(const HeadGroup<T>& group, const PreparedValues<T>& values, Index g, const TileInput<T>& in,
                 bool with_sink, const SoftmaxPanel<T>& state) {
  constexpr Index W = kPanelWidth<T>;
  constexpr T hidden = -std::numeric_limits<T>::infinity();
  const bool sink = with_sink && !group.rule.sink_logit.empty();
  std::fill_n(state.top, W, hidden);
  std::fill_n(state.top_at, W, T{-1});
  std::fill_n(state.rest_max, W, sink ? static_cast<T>(group.rule.sink_logit[g]) : hidden);
  std::fill_n(state.rest_sum, W, sink ? T{1} : T{0});
  for (Index c = 0; c < in.d_v; ++c) std::fill_n(state.rest_out + c * W, W, sink ? -values.centre(c) : T{0});
}

template <class T>
void finish_panel(const HeadGroup<T>& group, const PreparedValues<T>& values, Index g, const TileInput<T>& in,
                  Index panel, const SoftmaxPanel<T>& state, T* constants, LargestScores* largest) {
  constexpr Index W = kPanelWidth<T>;
  const Index n = in.panel_rows(panel);
  const auto position = [&](Index r) { return in.panel_first(panel) + r * in.row_step; };

  std::array<LargestColumn, W> column;
  std::array<double, W> taylor_z;
  LargestColumns<T> sums;
  for (Index r = 0; r < W; ++r) {
    const bool real = r<n, rest = state.rest_sum[r]> 0;
    const double rest_lse =
        rest ? static_cast<double>(state.rest_max[r]) + std::log(static_cast<double>(state.rest_sum[r]))
             : -std::numeric_limits<double>::infinity();
    const Index at = real && state.top_at[r] >= 0 ? static_cast<Index>(state.top_at[r]) : 0;
    const double z = real ? static_cast<double>(state.top[r]) : 0.0;
    column[r] = largest_column(z, rest_lse);
    taylor_z[r] = real && group.rule.softcap ? uncapped_taylor_logit(group, g, position(r), at, z) : z;
    sums.value[r] = values.centred.data() + at * in.d_v;
    sums.a[r] = static_cast<T>(column[r].a);
    sums.z_rest[r] = static_cast<T>(taylor_z[r] * column[r].one_minus_a);
    sums.delta[r] = static_cast<T>(column[r].delta);
    sums.per_sum[r] = rest ? T{1} / state.rest_sum[r] : T{0};
    sums.alone[r] = rest ? T{0} : T{1};
  }
  tiles_simd<T>().finish_rows(values.centre.data(), in.d_v, state.rest_out, sums);
  for (Index r = 0; r < n; ++r) {
    // Finite inputs may still have logits or outputs beyond what T holds.
    const bool rest_fits =
        state.rest_max[r] < std::numeric_limits<T>::infinity() && std::isfinite(state.rest_sum[r]);
    if (state.top_at[r] >= 0 && rest_fits && std::isfinite(column[r].lse) && std::isfinite(sums.out_sq[r]))
      continue;
    report_overflow(group, g, "position " + std::to_string(position(r)));
  }

  for (Index r = 0; r < W; ++r) {
    const bool real = r < n;
    const LargestColumn& c = column[r];
    const EntryRow<double> row =
        entry_row(c.lse, static_cast<double>(sums.out_sq[r]), static_cast<double>(sums.out_centred_sq[r]),
                  static_cast<double>(sums.centre_dot_out[r]));
    const auto put = [&](RowConstant which, double value, T padding) {
      constants[which * W + r] = real ? static_cast<T>(value) : padding;
    };
    put(kLse, row.lse, std::numeric_limits<T>::infinity());
    put(kRescale, row.rescale, 0);
    put(kZeroLogit, row.zero_logit, 0);
    put(kZeroWeightSum, row.zero_weight_sum, 1);
    put(kZeroLogitOutSq, row.zero_logit_out_sq, 0);
    put(kOutCentredSq, row.out_centred_sq, 0);
    put(kCentreDotOut, row.centre_dot_out, 0);
    put(kTopAt, state.top_at[r], -1);
    if (!real) continue;
    const Index at = static_cast<Index>(state.top_at[r]);
    const double value_sq = at < values.value_sq.size() ? static_cast<double>(values.value_sq(at)) : 0;
    largest[r] =
        largest_scores(at, c, taylor_z[r],
                       {value_sq, static_cast<double>(sums.diff_sq[r]), static_cast<double>(sums.joint[r]),
                        static_cast<double>(sums.exact_joint[r])});
  }
  for (Index c = 0; c < in.d_v; ++c)
    std::fill(state.rest_out + c * W + n, state.rest_out + (c + 1) * W, T{0});
}

template decltype(start_state<float>) start_state<float>;
template decltype(start_state<double>) start_state<double>;
template decltype(finish_panel<float>) finish_panel<float>;
template decltype(finish_panel<double>) finish_panel<double>;

namespace {

/// Logits of one row with the tokens that it sees, of every query head: [G, tokens].
template <class T>
Matrix<double> row_logits(const HeadGroup<T>& group, Index row, Workers& workers) {
  constexpr Index kTokensPerItem = 256;
  const Index G = group.G(), d = group.d(), begin = group.first_visible(row);
  const Index n = group.end_visible(row) - begin;
  Matrix<T> queries(G, d);
  for (Index g = 0; g < G; ++g)
    queries.row(g) = static_cast<T>(group.rule.scale) * group.q[g].row(row - group.first_query());

  Matrix<double> logits(G, n);
  workers.parallel_for(div_up(n, kTokensPerItem), [&](Index item) {
    const Index first = item * kTokensPerItem, tokens = std::min(kTokensPerItem, n - first);
    Matrix<T> dots(G, tokens);
    value_rows_simd<T>().row_dots(group.k.data() + (begin + first) * d, queries.data(), G, tokens, d,
                                  dots.data());
    logits.middleCols(first, tokens) = dots.template cast<double>();
  });
  // Before a cap hides it: a key that is not finite, or an overflow.
  for (Index g = 0; g < G; ++g)
    if (!logits.row(g).allFinite()) report_overflow(group, g, "position " + std::to_string(row));
  if (group.rule.softcap) logits = *group.rule.softcap * (logits / *group.rule.softcap).array().tanh();
  return logits;
}

}  // namespace

template <class T>
std::vector<ColumnTotals> row_weights(const HeadGroup<T>& group, Index row, Workers& workers) {
  const Index begin = group.first_visible(row),
              candidates = std::min(group.end_visible(row), group.l) - begin;
  Matrix<double> weights = row_logits(group, row, workers);
  std::vector<ColumnTotals> totals(group.G());
  workers.parallel_for(group.G(), [&](Index g) {
    const double sink = static_cast<double>(sink_logit(group, g));
    auto own = weights.row(g);
    const double top = std::max(own.maxCoeff(), sink);
    softmax_exp(own.data(), own.size(), top);
    const double sum = own.sum() + std::exp(sink - top);
    if (!std::isfinite(top) || !std::isfinite(sum))
      report_overflow(group, g, "position " + std::to_string(row));
    totals[g] = empty_totals(group.l, ColumnSet::weights);
    Vector<double>& attention = totals[g][RowScore::attention];
    attention.segment(begin, candidates) = own.head(candidates).transpose() / sum;
    totals[g][RowScore::attention_sq] = attention.cwiseAbs2();
  });
  return totals;
}

template std::vector<ColumnTotals> row_weights(const HeadGroup<float>&, Index, Workers&);
template std::vector<ColumnTotals> row_weights(const HeadGroup<double>&, Index, Workers&);

namespace {

template <class T>
hwy::AlignedFreeUniquePtr<T[]> aligned(Index n) {
  auto memory = hwy::AllocateAligned<T>(std::max<Index>(n, 1));
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}

/// Buffers of pass one for one query head.
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
