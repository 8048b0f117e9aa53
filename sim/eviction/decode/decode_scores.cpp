#include "sim/eviction/decode/decode_rows.hpp"
#include "sim/eviction/decode/decode_run.hpp"
#include "sim/overflow.hpp"
#include "sim/tokens/token_readings.hpp"

#include <algorithm>
#include <cmath>
#include <string>
#include <utility>

namespace kvreplay {

ScoreSums::ScoreSums(Index width, Index capacity, std::optional<Index> window)
    : width_(width), capacity_(capacity), window_(window.value_or(0)) {
  const auto size = static_cast<std::size_t>(width * capacity);
  row_.assign(size, 0.0);
  sums_.assign(size, 0.0);
  if (window) newer_.assign(size, 0.0);
  older_.assign(window_, std::vector<double>(size, 0.0));
}

double* ScoreSums::new_row() {
  std::fill(row_.begin(), row_.end(), 0.0);
  return row_.data();
}

void ScoreSums::add_row() {
  const std::size_t n = row_.size();
  if (window_ == 0) {
    for (std::size_t k = 0; k < n; ++k) sums_[k] += row_[k];
    return;
  }
  const auto at = static_cast<std::size_t>(step_);
  const double* old = at + 1 < older_.size() ? older_[at + 1].data() : nullptr;
  for (std::size_t k = 0; k < n; ++k) {
    newer_[k] += row_[k];
    sums_[k] = newer_[k] + (old != nullptr ? old[k] : 0.0);
  }
  std::swap(older_[at], row_);
  if (++step_ < window_) return;
  step_ = 0;
  std::fill(newer_.begin(), newer_.end(), 0.0);
  for (std::size_t j = older_.size() - 1; j > 0; --j)
    for (std::size_t k = 0; k < n; ++k) older_[j - 1][k] += older_[j][k];
}

void ScoreSums::clear(Index slot) {
  each_vector([&](std::vector<double>& values) {
    for (auto k = static_cast<std::size_t>(slot); k < values.size(); k += static_cast<std::size_t>(capacity_))
      values[k] = 0;
  });
}

void ScoreSums::move(Index from, Index to) {
  each_vector([&](std::vector<double>& values) {
    if (values.empty()) return;
    for (Index w = 0; w < width_; ++w) values[w * capacity_ + to] = values[w * capacity_ + from];
  });
}

template <class T>
RowScores<T>::RowScores(const HeadGroup<T>& group, TokenMetric metric, Index capacity)
    : group_(group), metric_(metric), decoding_(kTokenMetrics[metric].decoding), capacity_(capacity) {
  if (!needs_differences(decoding_)) return;
  const Index G = group.G();
  base_ = aligned_zeros<T>(G * group.d_v());
  square_ = aligned_zeros<T>(G * capacity);
  if (product_of(decoding_.score) != DifferenceProduct::none) product_ = aligned_zeros<T>(G * capacity);
  if (!by_query_head(decoding_.rank)) return;
  weights_ = aligned_zeros<T>(G * capacity);
  sums_ = aligned_zeros<T>(G * (group.d_v() + kPanelWidth<T>));
}

template <class T>
void RowScores<T>::take_differences(const TokenSlots<T>& slots) {
  const Index G = group_.G();
  decode_rows_simd<T>().token_differences(slots.value_tiles(), slots.tiles(), group_.d_v(), base_.get(), G,
                                          capacity_, square_.get(), product_of(decoding_.score),
                                          product_.get());
  for (Index g = 0; g < G; ++g) {
    double total = 0;
    for (Index p = 0; p < slots.size(); ++p) total += static_cast<double>(square_[g * capacity_ + p]);
    if (!std::isfinite(total))
      report_not_finite(group_, "a finite " + std::string(name_of(metric_)) + " while decoding");
  }
}

template <class T>
void RowScores<T>::take(const AttentionRows<T>& attention, const TokenSlots<T>& slots, double* row) {
  const Index G = group_.G(), n = slots.size();
  if (by_query_head(decoding_.rank)) {
    for (Index g = 0; g < G; ++g) std::copy_n(attention.weight(g), n, row + g * capacity_);
    return;
  }
  if (needs_differences(decoding_)) {
    for (Index g = 0; g < G; ++g)
      for (Index c = 0; c < group_.d_v(); ++c)
        base_[g * group_.d_v() + c] = static_cast<T>(attention.output(g)[c]);
    take_differences(slots);
  }
  for (Index g = 0; g < G; ++g) {
    const Index top = attention.top(g);
    const double before = row[top];
    with_formula(decoding_.score,
                 [&]<class Formula>(Formula) { add_head<Formula>(attention, slots, g, row); });
    row[top] = before + of_top(attention, slots, g);
  }
}

template <class T>
template <class Formula>
void RowScores<T>::add_head(const AttentionRows<T>& attention, const TokenSlots<T>& slots, Index g,
                            double* row) const {
  constexpr bool kProduct = Formula::kProduct != DifferenceProduct::none;
  const double* a = attention.weight(g);
  const double* z = attention.logit(g);
  const double* v_sq = slots.value_sq();
  const T* u = Formula::kDifference ? square_.get() + g * capacity_ : nullptr;
  const T* product = kProduct ? product_.get() + g * capacity_ : nullptr;
  const EntryRow<double> of_row = entry_row(attention.column(g).lse, attention.output(g).squaredNorm());
  for (Index p = 0, n = slots.size(); p < n; ++p) {
    RowEntry<double> token{a[p], z[p], 0, v_sq[p], {0, 0, 0}};
    if constexpr (Formula::kTaylor) token.taylor = attention.taylor_logit(g, p);
    if constexpr (Formula::kDifference) token.to.u = static_cast<double>(u[p]);
    // The one that the formula asks for: it looks at no other.
    if constexpr (kProduct) token.to.v_dot_diff = token.to.o_dot_diff = static_cast<double>(product[p]);
    row[p] += visible_term<Formula>(of_row, token);
  }
}

template <class T>
double RowScores<T>::of_top(const AttentionRows<T>& attention, const TokenSlots<T>& slots, Index g) const {
  const Index slot = attention.top(g);
  const TopCombination top =
      top_combination(decoding_.score, attention.column(g), attention.taylor_logit(g, slot));
  if (top.scale == 0) return top.plain;
  const Vector<double> v = slots.value(slot);
  const Vector<double>&rest = attention.rest_output(g), &output = attention.output(g);
  Vector<double> entries(v.size());
  for (Index c = 0; c < v.size(); ++c) entries[c] = top.entry(v[c], rest[c], output[c]);
  // As ||o||^2 is taken in add_head(): where they are to be equal, they are to the last bit.
  return top.plain + top.scale * entries.squaredNorm();
}

template <class T>
void RowScores<T>::take_caote(ScoreSums& attention, const TokenSlots<T>& slots,
                              const Vector<double>& plain_mean, double* rank) {
  const Index G = group_.G(), n = slots.size(), d_v = group_.d_v();
  const bool fast = decoding_.rank == CacheRank::fastcaote;
  std::vector<Vector<double>> summed;
  for (Index g = 0; g < G; ++g) summed.emplace_back(Eigen::Map<const Vector<double>>(attention.sums(g), n));
  std::vector<CaoteHead> heads(summed.begin(), summed.end());
  for (Index g = 0; g < G; ++g) {
    const Vector<double> weights = heads[g].weights(0, n);
    for (Index p = 0; p < n; ++p) weights_[g * capacity_ + p] = static_cast<T>(weights[p]);
  }
  decode_rows_simd<T>().weighted_tokens(slots.values(), capacity_, n, slots.panels(), weights_.get(), G,
                                        sums_.get());
  const Vector<double> centre = Vector<double>::Zero(d_v);  // the slots' values are as they are
  Vector<double> sum(d_v);
  for (Index g = 0; g < G; ++g) {
    for (Index c = 0; c < d_v; ++c) sum[c] = static_cast<double>(sums_[panel_entry<T>(g, c, G)]);
    heads[g].set_values(sum, slots.value(heads[g].top()), centre);
    const Vector<double>& mean = fast ? plain_mean : heads[g].mean();
    for (Index c = 0; c < d_v; ++c) base_[g * d_v + c] = static_cast<T>(mean[c]);
  }
  take_differences(slots);
  std::fill_n(rank, n, 0.0);
  for (Index g = 0; g < G; ++g) {
    CaoteScores scores{Vector<double>::Zero(n), Vector<double>::Zero(n)};
    const T* square = square_.get() + g * capacity_;
    heads[g].score(0, n, square, square, scores);
    heads[g].score_top(scores);
    Eigen::Map<Vector<double>>(rank, n) += fast ? scores.fastcaote : scores.caote;
  }
}

template class RowScores<float>;
template class RowScores<double>;

}  // namespace kvreplay
