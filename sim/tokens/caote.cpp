#include "sim/tokens/token_readings.hpp"
#include "sim/tokens/value_rows.hpp"

#include <algorithm>
#include <cmath>
#include <utility>

namespace kvreplay {
namespace {

constexpr Index kTokensPerItem = 256;

/// Gives each head its values; the heads share a reading of them.
template <class T>
void read_values(const PreparedValues<T>& values, Index l, std::vector<CaoteHead>& heads, Workers& workers) {
  const Index G = std::ssize(heads), d_v = values.centred.cols();
  constexpr Index kRowsAtOnce = 32;  // whose values stay in the first cache
  const Index chunks = div_up(l, kTokensPerItem);
  Matrix<double> partial = Matrix<double>::Zero(chunks, G * d_v);
  workers.parallel_for(chunks, [&](Index chunk) {
    const Index begin = chunk * kTokensPerItem, end = std::min(begin + kTokensPerItem, l);
    Vector<T> sums = Vector<T>::Zero(G * d_v), weights;
    for (Index from = begin; from < end; from += kRowsAtOnce) {
      const Index n = std::min(kRowsAtOnce, end - from);
      for (Index g = 0; g < G; ++g) {
        weights = heads[g].weights(from, n).template cast<T>();
        value_rows_simd<T>().add_weighted_rows(values.centred.data() + from * d_v, weights.data(), n, d_v,
                                               sums.data() + g * d_v);
      }
    }
    partial.row(chunk) = sums.transpose().template cast<double>();
  });
  const Vector<double> centre = values.centre.template cast<double>();
  for (Index g = 0; g < G; ++g)
    heads[g].set_values(partial.middleCols(g * d_v, d_v).colwise().sum().transpose(),
                        values.centred.row(heads[g].top()).transpose().template cast<double>(), centre);
}

}  // namespace

Others others_of(const Vector<double>& attn) {
  Others others;
  attn.maxCoeff(&others.top);
  others.attn = attn.head(others.top).sum() + attn.tail(attn.size() - others.top - 1).sum();
  return others;
}

CaoteHead::CaoteHead(const Vector<double>& attn)
    : attn_(attn), total_(attn.sum()), others_(others_of(attn)) {}

Vector<double> CaoteHead::weights(Index first, Index n) const {
  if (!(others_.attn > 0)) return Vector<double>::Zero(n);
  Vector<double> weights = attn_.segment(first, n) / others_.attn;
  if (first <= others_.top && others_.top < first + n) weights(others_.top - first) = 0;
  return weights;
}

void CaoteHead::set_values(const Vector<double>& weighted_sum, Vector<double> top_value,
                           const Vector<double>& centre) {
  of_others_ = others_.attn > 0 ? weighted_sum : Vector<double>(-centre);
  top_value_ = std::move(top_value);
  mean_ = Vector<double>::Zero(centre.size());
  if (total_ > kNoAttention)
    mean_ = others_.attn / total_ * of_others_ + attn_(others_.top) / total_ * top_value_;
}

template <class T>
void CaoteHead::score(Index first, Index n, const T* squares, const T* fast_squares,
                      CaoteScores& scores) const {
  if (!(total_ > kNoAttention)) return;
  const auto root = [](T square) { return std::sqrt(static_cast<double>(square)); };
  for (Index i = 0; i < n; ++i) {
    const Index p = first + i;
    const double attn = attn_(p), left = p == others_.top ? others_.attn : total_ - attn;
    scores.caote(p) = caote_score(attn, left, root(squares[i]));
    scores.fastcaote(p) = caote_score(attn, left, root(fast_squares[i]));
  }
}

void CaoteHead::score_top(CaoteScores& scores) const {
  // s/(1-s) ||m - v|| = s ||m' - v||, where m' is the others' mean, 0 where there are none.
  if (total_ > kNoAttention)
    scores.caote(others_.top) = attn_(others_.top) / total_ * (of_others_ - top_value_).norm();
}

template <class T>
std::vector<CaoteScores> caote_scores(const PreparedValues<T>& values,
                                      const std::vector<ColumnTotals>& totals, Workers& workers) {
  const Index G = std::ssize(totals), l = totals.front()[RowScore::attention].size(),
              d_v = values.centred.cols();
  std::vector<CaoteHead> heads;
  for (const ColumnTotals& t : totals) heads.emplace_back(t[RowScore::attention]);
  read_values(values, l, heads, workers);
  std::vector<CaoteScores> scores(G, {Vector<double>::Zero(l), Vector<double>::Zero(l)});
  Matrix<T> points(G + 1, d_v);
  for (Index g = 0; g < G; ++g) points.row(g) = heads[g].mean().transpose().template cast<T>();
  points.row(G) = values.candidate_mean.transpose().template cast<T>();

  workers.parallel_for(div_up(l, kTokensPerItem), [&](Index chunk) {
    const Index begin = chunk * kTokensPerItem, n = std::min(kTokensPerItem, l - begin);
    Matrix<T> squares(G + 1, n);
    value_rows_simd<T>().row_distances(values.centred.data() + begin * d_v, points.data(), G + 1, n, d_v,
                                       squares.data());
    for (Index g = 0; g < G; ++g)
      heads[g].score(begin, n, squares.row(g).data(), squares.row(G).data(), scores[g]);
  });
  for (Index g = 0; g < G; ++g) heads[g].score_top(scores[g]);
  return scores;
}

template decltype(caote_scores<float>) caote_scores<float>;
template decltype(caote_scores<double>) caote_scores<double>;
template void CaoteHead::score(Index, Index, const float*, const float*, CaoteScores&) const;
template void CaoteHead::score(Index, Index, const double*, const double*, CaoteScores&) const;

}  // namespace kvreplay
