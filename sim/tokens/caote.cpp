#include "sim/tokens/caote.hpp"

#include "sim/tokens/value_rows.hpp"

#include <algorithm>
#include <cmath>

namespace kvreplay {
namespace {

constexpr Index kTokensPerItem = 256;

/// Of one query head: what its attention is worth, and where its weighted mean of the values lies.
template <class T>
struct WeightedMean {
  double total = 0;
  Others others;
  Vector<double> of_others;  // [d_v], m': of all but the top token, which may hold nearly all of the weight
  Vector<double> top_value;  // [d_v], as all here less the values' centre
  Vector<T> mean;            // [d_v]
};

/// What each query head's attention [l] makes of the values; the heads share a reading of them.
template <class T>
std::vector<WeightedMean<T>> weighted_means(const PreparedValues<T>& values,
                                            const std::vector<ColumnTotals>& heads, Workers& workers) {
  const Index G = std::ssize(heads), l = heads.front().attn.size(), d_v = values.centred.cols();
  std::vector<WeightedMean<T>> means(G);
  for (Index g = 0; g < G; ++g) {
    means[g].total = heads[g].attn.sum();
    means[g].others = others_of(heads[g].attn);
  }
  constexpr Index kRowsAtOnce = 32;  // whose values stay in the first cache
  const Index chunks = div_up(l, kTokensPerItem);
  Matrix<double> partial = Matrix<double>::Zero(chunks, G * d_v);
  workers.parallel_for(chunks, [&](Index chunk) {
    const Index begin = chunk * kTokensPerItem, end = std::min(begin + kTokensPerItem, l);
    Vector<T> sums = Vector<T>::Zero(G * d_v), weights;
    for (Index from = begin; from < end; from += kRowsAtOnce) {
      const Index n = std::min(kRowsAtOnce, end - from);
      for (Index g = 0; g < G; ++g) {
        const auto [top, others] = means[g].others;
        if (!(others > 0)) continue;
        weights = (heads[g].attn.segment(from, n) / others).template cast<T>();
        if (from <= top && top < from + n) weights(top - from) = 0;
        value_rows_simd<T>().add_weighted_rows(values.centred.data() + from * d_v, weights.data(), n, d_v,
                                               sums.data() + g * d_v);
      }
    }
    partial.row(chunk) = sums.transpose().template cast<double>();
  });
  for (Index g = 0; g < G; ++g) {
    auto& [total, others, of_others, top_value, mean] = means[g];
    of_others = others.attn > 0 ? Vector<double>(partial.middleCols(g * d_v, d_v).colwise().sum().transpose())
                                : Vector<double>(-values.centre.template cast<double>());
    top_value = values.centred.row(others.top).transpose().template cast<double>();
    mean = Vector<T>::Zero(d_v);
    if (total > kNoAttention)
      mean = (others.attn / total * of_others + heads[g].attn(others.top) / total * top_value)
                 .template cast<T>();
  }
  return means;
}

}  // namespace

Others others_of(const Vector<double>& attn) {
  Others others;
  attn.maxCoeff(&others.top);
  others.attn = attn.head(others.top).sum() + attn.tail(attn.size() - others.top - 1).sum();
  return others;
}

template <class T>
std::vector<CaoteScores> caote_scores(const PreparedValues<T>& values, const std::vector<ColumnTotals>& heads,
                                      Workers& workers) {
  const Index G = std::ssize(heads), l = heads.front().attn.size(), d_v = values.centred.cols();
  const std::vector<WeightedMean<T>> means = weighted_means(values, heads, workers);
  std::vector<CaoteScores> scores(G, {Vector<double>::Zero(l), Vector<double>::Zero(l)});
  Matrix<T> points(G + 1, d_v);
  for (Index g = 0; g < G; ++g) points.row(g) = means[g].mean.transpose();
  points.row(G) = values.candidate_mean.transpose().template cast<T>();

  workers.parallel_for(div_up(l, kTokensPerItem), [&](Index chunk) {
    const Index begin = chunk * kTokensPerItem, n = std::min(kTokensPerItem, l - begin);
    Matrix<T> squares(G + 1, n);
    value_rows_simd<T>().row_distances(values.centred.data() + begin * d_v, points.data(), G + 1, n, d_v,
                                       squares.data());
    const auto distance = [&](Index point, Index i) {
      return std::sqrt(static_cast<double>(squares(point, i)));
    };
    for (Index g = 0; g < G; ++g) {
      const WeightedMean<T>& m = means[g];
      if (!(m.total > kNoAttention)) continue;
      for (Index i = 0; i < n; ++i) {
        const Index p = begin + i;
        const double attn = heads[g].attn(p), left = p == m.others.top ? m.others.attn : m.total - attn;
        scores[g].caote(p) = caote_score(attn, left, distance(g, i));
        scores[g].fastcaote(p) = caote_score(attn, left, distance(G, i));
      }
    }
  });
  for (Index g = 0; g < G; ++g) {
    const WeightedMean<T>& m = means[g];
    // s/(1-s) ||m - v|| = s ||m' - v||, m' := 0 where there are no others.
    if (m.total > kNoAttention)
      scores[g].caote(m.others.top) =
          heads[g].attn(m.others.top) / m.total * (m.of_others - m.top_value).norm();
  }
  return scores;
}

template decltype(caote_scores<float>) caote_scores<float>;
template decltype(caote_scores<double>) caote_scores<double>;

}  // namespace kvreplay
