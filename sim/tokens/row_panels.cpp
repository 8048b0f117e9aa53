#include "sim/overflow.hpp"
#include "sim/tokens/column_totals.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <string>

namespace kvreplay {
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

}  // namespace kvreplay
