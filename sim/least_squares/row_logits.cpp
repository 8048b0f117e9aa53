#include "sim/least_squares/row_logits.hpp"

#include "sim/overflow.hpp"
#include "sim/simd/panel_gemm.hpp"
#include "sim/simd/softmax_exp.hpp"
#include "sim/softmax_lanes.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <memory>
#include <numeric>
#include <string>

namespace kvreplay {
namespace {

template <class T>
using LanesMap = Eigen::Map<Lanes<T>>;

template <class T>
constexpr T kHidden = -std::numeric_limits<T>::infinity();

/// Soft cap and mask of one panel's logits z [T][W].
template <class T>
void finish_logits(const HeadGroup<T>& group, const QueryRows<T>& rows, Index first, Index count, T* z) {
  constexpr Index W = kPanelWidth<T>;
  const Index tokens = group.T_all();
  if (group.rule.softcap) {
    const T cap = static_cast<T>(*group.rule.softcap);
    for (Index p = 0; p < tokens; ++p) {
      LanesMap<T> lanes(z + p * W);
      lanes = cap * (lanes / cap).tanh();
    }
  }
  for (Index r = 0; r < W; ++r) {
    const RowRange seen = r < count ? rows.visible[first + r] : RowRange{tokens, tokens};
    for (Index p = 0; p < tokens; ++p)
      if (p < seen.begin || p >= seen.end)
        z[p * W + r] = kHidden<T>;
      else if (!std::isfinite(z[p * W + r]))
        report_overflow(group, rows.head[first + r], "reference row " + std::to_string(first + r));
  }
}

}  // namespace

template <class T>
QueryRows<T> own_rows(const HeadGroup<T>& group, RowRange rows) {
  QueryRows<T> found{Matrix<T>(group.G() * rows.count(), group.d()), {}, {}};
  for (Index g = 0; g < group.G(); ++g)
    for (Index i = rows.begin; i < rows.end; ++i) {
      found.q.row(std::ssize(found.head)) = group.q[g].row(i - group.first_query());
      found.head.push_back(g);
      found.visible.push_back({group.first_visible(i), group.end_visible(i)});
    }
  return found;
}

template <class T>
RowLogits<T> row_logits(const HeadGroup<T>& group, const QueryRows<T>& rows, Workers& workers) {
  constexpr Index W = kPanelWidth<T>;
  const Index n = rows.count(), l = group.l, tokens = group.T_all(), d = group.d(), d_v = group.d_v();
  RowLogits<T> found{n,
                     l,
                     std::vector<T>(static_cast<std::size_t>(panels_of<T>(n) * l * W)),
                     Matrix<double>(n, d_v),
                     Matrix<double>::Zero(n, d_v),
                     Vector<double>(n),
                     Vector<double>(n)};
  const Matrix<T> v = group.v.transpose();  // [d_v, T]
  std::vector<Index> every(static_cast<std::size_t>(tokens));
  std::iota(every.begin(), every.end(), Index{0});
  const std::vector<T> no_offset(static_cast<std::size_t>(tokens), T{0});
  workers.parallel_for(panels_of<T>(n), [&](Index panel) {
    const Index first = panel * W, count = std::min(W, n - first);
    std::vector<T> q(d * W, T{0});
    for (Index r = 0; r < count; ++r)
      for (Index c = 0; c < d; ++c) q[c * W + r] = static_cast<T>(group.rule.scale) * rows.q(first + r, c);
    const auto z = std::make_unique_for_overwrite<T[]>(tokens * W),
               e = std::make_unique_for_overwrite<T[]>(tokens * W);
    panel_gemm(tokens, d, group.k.data(), d, q.data(), z.get());
    finish_logits(group, rows, first, count, z.get());

    Lanes<T> sink = Lanes<T>::Constant(kHidden<T>), top;
    for (Index r = 0; r < count; ++r) sink[r] = static_cast<T>(group.sink(rows.head[first + r]));
    top = sink;
    for (Index p = 0; p < tokens; ++p) top = top.max(LanesMap<T>(z.get() + p * W));
    const Lanes<T> shift = (top == kHidden<T>).select(Lanes<T>::Zero(), top);
    softmax_exp(z.get(), every.data(), tokens, no_offset.data(), shift.data(), e.get());

    const auto sum_over = [&](Index begin, Index end) -> Lanes<T> {
      return sum_of_lanes<T>(begin, end, [&](Index p) { return LanesMap<T>(e.get() + p * W); })
          .template cast<T>();
    };
    const Lanes<T> of_prompt = sum_over(0, l), of_decoded = sum_over(l, tokens),
                   of_sink = weights_at<T>(sink - shift), sum = of_prompt + of_decoded + of_sink;
    const Lanes<T> lse = shift + sum.log();  // of a row that sees nothing -inf
    T* const log_weight = found.log_weight.data() + panel * l * W;
    for (Index p = 0; p < l; ++p)
      LanesMap<T>(log_weight + p * W) =
          (sum > 0).select(LanesMap<T>(z.get() + p * W) - lse, Lanes<T>::Constant(kHidden<T>));

    const auto out = std::make_unique_for_overwrite<T[]>(d_v * W);
    const auto put = [&](Index begin, Index end, Matrix<double>& into) {
      panel_gemm(d_v, end - begin, v.data() + begin, tokens, e.get() + begin * W, out.get());
      for (Index r = 0; r < count; ++r)
        for (Index c = 0; c < d_v; ++c)
          into(first + r, c) = sum[r] > 0 ? static_cast<double>(out[c * W + r] / sum[r]) : 0.0;
    };
    put(0, l, found.prompt_out);
    if (tokens > l) put(l, tokens, found.rest_out);
    for (Index r = 0; r < count; ++r) {
      if (!found.prompt_out.row(first + r).allFinite())
        report_overflow(group, rows.head[first + r], "reference row " + std::to_string(first + r));
      const auto rest = static_cast<double>(of_decoded[r] + of_sink[r]), all = static_cast<double>(sum[r]);
      found.prompt_mass[first + r] = all > 0 ? static_cast<double>(of_prompt[r]) / all : 0;
      found.log_rest[first + r] = rest > 0 ? std::log(rest / all) : kHidden<double>;
    }
  });
  return found;
}

template <class T>
KeptWeights kept_weights(const RowLogits<T>& rows, Index first, Index count, std::span<const Index> tokens,
                         const Vector<double>& weight) {
  constexpr Index W = kPanelWidth<T>;
  const auto m = std::ssize(tokens);
  Vector<T> bias = Vector<T>::Zero(m);
  if (weight.size() > 0) bias = weight.array().log().template cast<T>();
  constexpr Index kTokensAtOnce = 64;  // whose weights are turned around in the first cache
  std::array<T, kTokensAtOnce * W> e;
  KeptWeights kept{Matrix<double>(count, m), Vector<double>(count), Vector<double>(count)};
  for (Index begin = first; begin < first + count; begin += W) {
    const T* const log_weight = rows.log_weight.data() + begin / W * rows.l * W;
    const Index here = std::min(W, first + count - begin);
    Lanes<T> rest = Lanes<T>::Constant(kHidden<T>);
    for (Index r = 0; r < here; ++r) rest[r] = static_cast<T>(rows.log_rest[begin + r]);
    Lanes<T> top = rest;
    for (Index j = 0; j < m; ++j)
      top = top.max(Eigen::Map<const Lanes<T>>(log_weight + tokens[j] * W) + bias[j]);
    const Lanes<T> shift = (top == kHidden<T>).select(Lanes<T>::Zero(), top);
    for (Index j = 0; j < m; j += kTokensAtOnce) {
      const Index n = std::min(kTokensAtOnce, m - j);
      softmax_exp(log_weight, tokens.data() + j, n, bias.data() + j, shift.data(), e.data());
      for (Index r = 0; r < here; ++r)
        for (Index t = 0; t < n; ++t) kept.e(begin - first + r, j + t) = static_cast<double>(e[t * W + r]);
    }
    for (Index r = 0; r < here; ++r) {
      const Index at = begin - first + r;
      kept.rest[at] = std::exp(rows.log_rest[begin + r] - static_cast<double>(shift[r]));
      kept.unscale[at] = top[r] == kHidden<T> ? 0.0 : std::exp(static_cast<double>(shift[r]));
    }
  }
  return kept;
}

template decltype(own_rows<float>) own_rows<float>;
template decltype(own_rows<double>) own_rows<double>;
template decltype(row_logits<float>) row_logits<float>;
template decltype(row_logits<double>) row_logits<double>;
template decltype(kept_weights<float>) kept_weights<float>;
template decltype(kept_weights<double>) kept_weights<double>;

}  // namespace kvreplay
