#include "sim/eviction/decode/decode_cache.hpp"

#include "sim/eviction/decode/decode_rows.hpp"
#include "sim/overflow.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <new>
#include <string>

namespace kvreplay {
template <class T>
hwy::AlignedFreeUniquePtr<T[]> aligned_zeros(Index n) {
  auto memory = hwy::AllocateAligned<T>(std::max<Index>(n, 1));
  if (memory == nullptr) throw std::bad_alloc();
  std::fill_n(memory.get(), n, T{0});
  return memory;
}

template <class T>
TokenSlots<T>::TokenSlots(const HeadGroup<T>& group, Index capacity, bool value_tiles)
    : group_(group),
      capacity_(div_up(capacity, kPanelWidth<T>) * kPanelWidth<T>),
      panels_(div_up(group.d_v(), kPanelWidth<T>)),
      keys_(aligned_zeros<T>(capacity_ * group.d())),
      values_(aligned_zeros<T>(panels_ * capacity_ * kPanelWidth<T>)) {
  if (value_tiles) value_tiles_ = aligned_zeros<T>(capacity_ * group.d_v());
}

template <class T>
Index TokenSlots<T>::tiles() const {
  return div_up(size(), kPanelWidth<T>);
}

template <class T>
void TokenSlots<T>::place(Index slot, Index p) {
  constexpr Index W = kPanelWidth<T>;
  const Index d = group_.d(), d_v = group_.d_v(), tile = slot / W, lane = slot % W;
  const T* k = group_.k.data() + p * d;
  const T* v = group_.v.data() + p * d_v;
  T* key = keys_.get() + tile * d * W + lane;
  for (Index c = 0; c < d; ++c) key[c * W] = k[c];
  for (Index panel = 0; panel < panels_; ++panel)
    std::copy_n(v + panel * W, std::min(W, d_v - panel * W), values_.get() + (panel * capacity_ + slot) * W);
  if (value_tiles_ == nullptr) return;
  T* value = value_tiles_.get() + tile * d_v * W + lane;
  for (Index c = 0; c < d_v; ++c) value[c * W] = v[c];
}

template <class T>
void TokenSlots<T>::add(Index p) {
  place(size(), p);
  positions_.push_back(p);
  key_norm_.push_back(group_.k.row(p).template cast<double>().norm());
  value_sq_.push_back(group_.v.row(p).template cast<double>().squaredNorm());
}

template <class T>
void TokenSlots<T>::remove(Index slot) {
  const auto at = static_cast<std::size_t>(slot);
  if (slot != size() - 1) place(slot, positions_.back());
  positions_[at] = positions_.back();
  key_norm_[at] = key_norm_.back();
  value_sq_[at] = value_sq_.back();
  positions_.pop_back();
  key_norm_.pop_back();
  value_sq_.pop_back();
}

template <class T>
AttentionRows<T>::AttentionRows(const HeadGroup<T>& group, Index capacity, Index rows)
    : group_(group),
      capacity_(capacity),
      panels_(div_up(group.d_v(), kPanelWidth<T>)),
      rows_(rows),
      queries_(aligned_zeros<T>(rows * group.d())),
      dots_(aligned_zeros<T>(rows * capacity)),
      rest_weights_(aligned_zeros<T>(rows * capacity)),
      sums_(aligned_zeros<T>(panels_ * rows * kPanelWidth<T>)),
      logits_(aligned_zeros<double>(rows * capacity)),
      weights_(aligned_zeros<double>(rows * capacity)) {
  if (group.rule.softcap) slopes_ = aligned_zeros<double>(rows * capacity);
  for (Row& row : rows_) {
    row.rest_output.resize(group.d_v());
    row.output.resize(group.d_v());
  }
}

template <class T>
void AttentionRows<T>::set(Index r, Index g, Index i, Index tokens) {
  Row& row = rows_[r];
  row.g = g;
  row.i = i;
  row.tokens = tokens;
  const T scale = static_cast<T>(group_.rule.scale);
  const T* q = group_.q[g].data() + (i - group_.first_query()) * group_.d();
  for (Index c = 0; c < group_.d(); ++c) queries_[r * group_.d() + c] = scale * q[c];
}

template <class T>
void AttentionRows<T>::attend(const TokenSlots<T>& slots) {
  Index longest = 0;
  for (const Row& row : rows_) longest = std::max(longest, row.tokens);
  decode_rows_simd<T>().token_dots(slots.keys(), div_up(longest, kPanelWidth<T>), group_.d(), queries_.get(),
                                   rows(), dots_.get());
  for (Index r = 0; r < rows(); ++r) {
    take_logits(r, slots);
    take_weights(r, longest);
  }
  decode_rows_simd<T>().weighted_tokens(slots.values(), capacity_, longest, panels_, rest_weights_.get(),
                                        rows(), sums_.get());
  for (Index r = 0; r < rows(); ++r) take_outputs(r, slots);
}

template <class T>
void AttentionRows<T>::take_logits(Index r, const TokenSlots<T>& slots) {
  constexpr Index W = kPanelWidth<T>;
  const Index n = row(r).tokens;
  double* z = logits_.get() + r * capacity_;
  for (Index p = 0; p < n; p += W) {
    const T* dots = dots_.get() + (p / W * rows() + r) * W;
    for (Index lane = 0; lane < W; ++lane) z[p + lane] = static_cast<double>(dots[lane]);
  }
  int overflows = 0;
  for (Index p = 0; p < n; ++p) overflows |= z[p] - z[p] == 0 ? 0 : 1;
  if (overflows != 0) overflow(r);
  const Index padded = div_up(n, kPanelWidth<double>) * kPanelWidth<double>;
  if (group_.rule.softcap) {
    double* slope = slopes_.get() + r * capacity_;
    std::fill(z + n, z + padded, 0.0);
    std::copy_n(z, n, weights_.get() + r * capacity_);
    cap_logits(z, padded, *group_.rule.softcap, slope);
    for (Index p = 0; p < n; ++p) slope[p] *= weights_[r * capacity_ + p];
  }
  std::fill(z + n, z + padded, kHidden);
  if (!group_.rule.sliding_window) return;
  const Index first = group_.first_visible(row(r).i);
  for (Index p = 0; p < n; ++p)
    if (slots.position(p) < first) z[p] = kHidden;
}

template <class T>
void AttentionRows<T>::take_weights(Index r, Index longest) {
  Row& row = rows_[r];
  const Index n = row.tokens, padded = div_up(n, kPanelWidth<double>) * kPanelWidth<double>;
  const double* z = logits_.get() + r * capacity_;
  double largest = kHidden, second = kHidden;
  row.top = 0;
  for (Index p = 0; p < n; ++p) {
    if (!(z[p] > second)) continue;
    if (z[p] > largest) {
      second = largest;
      largest = z[p];
      row.top = p;
    } else {
      second = z[p];
    }
  }
  const double sink = group_.sink(row.g);
  const double shift = std::max(second, sink);
  double* e = weights_.get() + r * capacity_;
  double rest_sum = 0, rest_lse = kHidden;
  std::copy_n(z, padded, e);
  e[row.top] = kHidden;
  if (shift > kHidden) {
    rest_sum = exp_and_sum(e, padded, shift) + std::exp(sink - shift);
    rest_lse = shift + std::log(rest_sum);
  } else {
    std::fill_n(e, padded, 0.0);
  }
  row.column = largest_column(z[row.top], rest_lse);

  const double per_sum = rest_sum > 0 ? 1 / rest_sum : 0;
  T* rest = rest_weights_.get() + r * capacity_;
  for (Index p = 0; p < n; ++p) {
    const double w = e[p] * per_sum;
    rest[p] = static_cast<T>(w);
    e[p] = w * row.column.one_minus_a;
  }
  std::fill(rest + n, rest + longest, T{0});
  e[row.top] = row.column.a;
}

template <class T>
void AttentionRows<T>::take_outputs(Index r, const TokenSlots<T>& slots) {
  Row& row = rows_[r];
  const T* top = group_.v.data() + slots.position(row.top) * group_.d_v();
  for (Index c = 0; c < group_.d_v(); ++c) {
    row.rest_output[c] = static_cast<double>(sums_[panel_entry<T>(r, c, rows())]);
    row.output[c] = row.column.one_minus_a * row.rest_output[c] + row.column.a * static_cast<double>(top[c]);
  }
  if (!std::isfinite(row.column.lse) || !std::isfinite(row.output.sum())) overflow(r);
}

template <class T>
void AttentionRows<T>::overflow(Index r) const {
  report_not_finite(group_, "a finite attention output", ", query at position " + std::to_string(row(r).i));
}

template hwy::AlignedFreeUniquePtr<float[]> aligned_zeros(Index);
template hwy::AlignedFreeUniquePtr<double[]> aligned_zeros(Index);
template class TokenSlots<float>;
template class TokenSlots<double>;
template class AttentionRows<float>;
template class AttentionRows<double>;

}  // namespace kvreplay
