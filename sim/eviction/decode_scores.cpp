#include "sim/eviction/decode_scores.hpp"

#include "data/error.hpp"
#include "sim/eviction/decode_rows.hpp"

#include <algorithm>
#include <cmath>
#include <string>

namespace kvreplay {

ScoreSums::ScoreSums(Index width, Index capacity, std::optional<Index> window)
    : width_(width), capacity_(capacity), window_(window.value_or(0)) {
  const auto size = static_cast<std::size_t>(width * capacity);
  row_.assign(size, 0.0);
  sums_.assign(size, 0.0);
  if (window) newer_.assign(size, 0.0);
  older_.assign(static_cast<std::size_t>(window_), std::vector<double>(size, 0.0));
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
    for (Index w = 0; w < width_; ++w)
      values[static_cast<std::size_t>(w * capacity_ + to)] =
          values[static_cast<std::size_t>(w * capacity_ + from)];
  });
}

template <class T>
RowScores<T>::RowScores(const HeadGroup<T>& group, TokenMetric metric, Index capacity)
    : group_(group), metric_(metric), capacity_(capacity) {
  if (!needs_differences(metric)) return;
  const Index G = group.G();
  base_ = aligned_zeros<T>(G * group.d_v());
  square_ = aligned_zeros<T>(G * capacity);
  if (metric == TokenMetric::joint || metric == TokenMetric::exact_joint)
    product_ = aligned_zeros<T>(G * capacity);
  if (!by_query_head(metric)) return;
  weights_ = aligned_zeros<T>(G * capacity);
  sums_ = aligned_zeros<T>(G * (group.d_v() + kPanelWidth<T>));
}

template <class T>
void RowScores<T>::take_differences(const TokenSlots<T>& slots) {
  const Index G = group_.G();
  token_differences(slots.value_tiles(), slots.tiles(), group_.d_v(), base_.get(), G, capacity_,
                    square_.get(), metric_ == TokenMetric::joint ? product_.get() : nullptr,
                    metric_ == TokenMetric::exact_joint ? product_.get() : nullptr);
  for (Index g = 0; g < G; ++g) {
    double total = 0;
    for (Index p = 0; p < slots.size(); ++p) total += static_cast<double>(square_[g * capacity_ + p]);
    if (!std::isfinite(total))
      throw InputError(
          "layer " + std::to_string(group_.layer) + ", KV head " + std::to_string(group_.kv_head),
          "a finite " + std::string(name_of(metric_)) + " while decoding",
          std::string("an overflow of ") + (sizeof(T) == 4 ? "float32 (see --precision f64)" : "float64"));
  }
}

template <class T>
void RowScores<T>::take(const AttentionRows<T>& attention, const TokenSlots<T>& slots, double* row) {
  const Index G = group_.G(), n = slots.size();
  if (by_query_head(metric_)) {
    for (Index g = 0; g < G; ++g) std::copy_n(attention.weight(g), n, row + g * capacity_);
    return;
  }
  if (needs_differences(metric_)) {
    for (Index g = 0; g < G; ++g)
      for (Index c = 0; c < group_.d_v(); ++c)
        base_[g * group_.d_v() + c] = static_cast<T>(attention.output(g)[c]);
    take_differences(slots);
  }
  for (Index g = 0; g < G; ++g) {
    const Index top = attention.top(g);
    const double before = row[top];
    add_head(attention, slots, g, row);
    row[top] = before + of_top(attention, slots, g);
  }
}

template <class T>
void RowScores<T>::add_head(const AttentionRows<T>& attention, const TokenSlots<T>& slots, Index g,
                            double* row) const {
  using M = TokenMetric;
  const Index n = slots.size();
  const double* a = attention.weight(g);
  const double* z = attention.logit(g);
  const double* v_sq = slots.value_sq();
  const T* u = square_ == nullptr ? nullptr : square_.get() + g * capacity_;
  const T* product = product_ == nullptr ? nullptr : product_.get() + g * capacity_;
  switch (metric_) {
    case M::attn:
      for (Index p = 0; p < n; ++p) row[p] += a[p];
      break;
    case M::attn_sq:
      for (Index p = 0; p < n; ++p) row[p] += a[p] * a[p];
      break;
    case M::value:
    case M::exact_value:
      for (Index p = 0; p < n; ++p) row[p] += a[p] * a[p] * v_sq[p];
      break;
    case M::key:
      for (Index p = 0; p < n; ++p) {
        const double az = a[p] * attention.taylor_logit(g, p);
        row[p] += az * az * static_cast<double>(u[p]);
      }
      break;
    case M::joint:
      for (Index p = 0; p < n; ++p) {
        const double zp = attention.taylor_logit(g, p);
        const double square = zp * static_cast<double>(u[p]) + 2 * static_cast<double>(product[p]);
        row[p] += a[p] * a[p] * (v_sq[p] + zp * square);
      }
      break;
    case M::exact_remove:
      for (Index p = 0; p < n; ++p) {
        const double odds = a[p] / (1 - a[p]);
        row[p] += odds * odds * static_cast<double>(u[p]);
      }
      break;
    default: {                                                     // exact_key, exact_joint
      const double zero_key = std::exp(-attention.column(g).lse);  // its weight before renormalisation
      const double out_sq = attention.output(g).squaredNorm();
      for (Index p = 0; p < n; ++p) {
        if (std::isinf(z[p])) continue;  // hidden
        const double t = std::abs(z[p]) < 0.5 ? a[p] * std::expm1(-z[p]) : zero_key - a[p];
        // 1 itself where the token takes the whole row: its score is then the others', to the last bit
        const double rest = 1 / (1 + t), c = t < 1 ? t * rest : 1 - rest, left = a[p] * rest;
        const double square = static_cast<double>(u[p]);
        if (metric_ == M::exact_key) {
          row[p] += c * c * square;
        } else {  // left v + c o = left (v - o) + (left + c) o
          const double both = left + c;
          row[p] +=
              left * left * square + 2 * left * both * static_cast<double>(product[p]) + both * both * out_sq;
        }
      }
    }
  }
}

template <class T>
double RowScores<T>::of_top(const AttentionRows<T>& attention, const TokenSlots<T>& slots, Index g) const {
  using M = TokenMetric;
  const Index top = attention.top(g);
  const LargestColumn& column = attention.column(g);
  const Vector<double> v = slots.value(top), from_rest = v - attention.rest_output(g);
  const double a = column.a, rest_z = attention.taylor_logit(g, top) * column.one_minus_a;
  switch (metric_) {
    case M::attn:
      return a;
    case M::attn_sq:
      return a * a;
    case M::value:
    case M::exact_value:
      return a * a * v.squaredNorm();
    case M::key:
      return a * rest_z * (a * rest_z) * from_rest.squaredNorm();
    case M::joint:
      return a * a * (v + rest_z * from_rest).squaredNorm();
    case M::exact_remove:
      return a * a * from_rest.squaredNorm();
    case M::exact_key:
      return column.delta * column.delta * from_rest.squaredNorm();
    default:
      // a v + delta o', or the same from o where that is nearer: exactly o where the token takes the whole
      // row
      if (2 * column.delta > column.one_minus_a)
        return (attention.output(g) + (column.delta - column.one_minus_a) * attention.rest_output(g))
            .squaredNorm();
      return (a * v + column.delta * attention.rest_output(g)).squaredNorm();
  }
}

template <class T>
void RowScores<T>::take_caote(ScoreSums& attention, const TokenSlots<T>& slots,
                              const Vector<double>& plain_mean, double* rank) {
  constexpr Index W = kPanelWidth<T>;
  const Index G = group_.G(), n = slots.size(), d_v = group_.d_v();
  struct Head {
    Index top = 0;
    double total = 0, rest = 0;
    Vector<double> rest_mean;  // of all but the token with the most attention
  };
  std::vector<Head> heads(static_cast<std::size_t>(G));
  for (Index g = 0; g < G; ++g) {
    Head& head = heads[static_cast<std::size_t>(g)];
    const double* s = attention.sums(g);
    head.top = std::max_element(s, s + n) - s;
    for (Index p = 0; p < n; ++p)
      if (p != head.top) head.rest += s[p];
    head.total = head.rest + s[head.top];
    const double per_rest = head.rest > 0 ? 1 / head.rest : 0;
    for (Index p = 0; p < n; ++p)
      weights_[g * capacity_ + p] = p == head.top ? T{0} : static_cast<T>(s[p] * per_rest);
  }
  weighted_tokens(slots.values(), capacity_, n, slots.panels(), weights_.get(), G, sums_.get());
  for (Index g = 0; g < G; ++g) {
    Head& head = heads[static_cast<std::size_t>(g)];
    head.rest_mean.resize(d_v);
    for (Index c = 0; c < d_v; ++c)
      head.rest_mean[c] = static_cast<double>(sums_[(c / W * G + g) * W + c % W]);
    const double rest = head.total > 0 ? head.rest / head.total : 0;
    const double top = head.total > 0 ? attention.sums(g)[head.top] / head.total : 0;
    const Vector<double> mean = metric_ == TokenMetric::fastcaote
                                    ? plain_mean
                                    : (rest * head.rest_mean + top * slots.value(head.top)).eval();
    for (Index c = 0; c < d_v; ++c) base_[g * d_v + c] = static_cast<T>(mean[c]);
  }
  take_differences(slots);
  std::fill_n(rank, n, 0.0);
  for (Index g = 0; g < G; ++g) {
    const Head& head = heads[static_cast<std::size_t>(g)];
    if (!(head.total > 0)) continue;
    const double* s = attention.sums(g);
    const T* square = square_.get() + g * capacity_;
    for (Index p = 0; p < n; ++p) {
      if (!(s[p] > 0) || !(square[p] > 0)) continue;
      if (p == head.top && metric_ == TokenMetric::caote) continue;
      const double rest = p == head.top ? head.rest : head.total - s[p];
      rank[p] += s[p] / rest * std::sqrt(static_cast<double>(square[p]));
    }
    // s/(1-s) ||m - v|| = s ||m' - v|| with m' the mean of the others
    if (metric_ == TokenMetric::caote)
      rank[head.top] += s[head.top] / head.total * (head.rest_mean - slots.value(head.top)).norm();
  }
}

template class RowScores<float>;
template class RowScores<double>;

}  // namespace kvreplay
