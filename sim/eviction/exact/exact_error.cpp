#include "sim/eviction/exact/exact_error.hpp"

#include "sim/overflow.hpp"
#include "sim/tokens/value_rows.hpp"

#include <algorithm>
#include <cmath>

namespace kvreplay {

ExactError::ExactError(const HeadGroup<double>& group, RowRange rows, const KeptSet& kept, bool insertions,
                       Workers& workers)
    : workers_(workers),
      insertions_(insertions),
      problem_(group, rows, kept),
      l_(problem_.l),
      width_(problem_.width),
      n_rows_(std::ssize(problem_.rows)),
      rows_(problem_.rows) {
  const Index columns = div_up(l_, kErrorBlock) * kErrorBlock;
  value_sq_.resize(columns);
  for (Index c = 0; c < l_; ++c) row_dots(value(c), 1, width_, value(c), &value_sq_[c]);
  x_dot_.assign(columns, 0.0);
  change_ = extent_ = x_dot_;
  blocks_.assign(columns * this->rows() * kErrorEntries, 0.0);
  for (Numbers* vectors : {&out_, &rest_, &removed_, &fixed_, &current_, &moved_})
    vectors->assign(this->rows() * width_, 0.0);
  dots_.resize(this->rows());
  squares_.resize(this->rows());
  zeros_.assign(width_, 0.0);
  terms_.resize(rows_.size());
  scan_.resize(rows_.size());
  workers_.parallel_for(this->rows(), [&](Index r) { start_row(r); });
  sum_again();
  if (!std::isfinite(error_) || std::any_of(change_.begin(), change_.end(), [](double x) { return x != x; }))
    report_not_finite(group, "finite squared outputs");
}

/// Logits of the first columns, hidden where the row does not see them.
void ExactError::logits(const ErrorRowState& row, Index r, Index columns, double* z) const {
  using namespace exact_error;
  row_dots(problem_.keys.data(), columns, problem_.key_width, query(r), z);
  for (Index c = 0; c < columns; ++c) z[c] = sees(row, c < l_ ? position(c) : c) ? logit(z[c]) : kUnseen;
}

/// What no eviction changes: o, the columns that are always there, o . v_p.
void ExactError::start_row(Index r) {
  using exact_error::kUnseen;
  ErrorRowState& row = rows_[r];
  const double sink = problem_.sink[r];
  const Index T = problem_.T;
  Numbers z(T), weights(T, 0.0);
  logits(row, r, T, z.data());
  double candidates_max = kUnseen, fixed_max = sink;
  for (Index c = 0; c < l_; ++c) candidates_max = std::max(candidates_max, z[c]);
  for (Index c = l_; c < T; ++c) fixed_max = std::max(fixed_max, z[c]);
  row.end = std::min(row.end, l_);

  double* fixed = vector_of(fixed_, r);
  row.fixed_lse = kUnseen;
  if (fixed_max > kUnseen) {
    double sum = std::exp(sink - fixed_max);
    for (Index k = 0; k < width_; ++k) fixed[k] = -sum * problem_.centre[k];
    for (Index c = l_; c < T; ++c) sum += weights[c] = std::exp(z[c] - fixed_max);
    value_rows_simd<double>().add_weighted_rows(value(l_), weights.data() + l_, T - l_, width_, fixed);
    for (Index k = 0; k < width_; ++k) fixed[k] /= sum;
    row.fixed_lse = fixed_max + std::log(sum);
  }

  row.all_max = std::max(candidates_max, row.fixed_lse);
  const double fixed_weight = std::exp(row.fixed_lse - row.all_max);
  double sum = fixed_weight;
  for (Index c = 0; c < l_; ++c) sum += weights[c] = std::exp(z[c] - row.all_max);
  row.all_by = 1 / sum;
  double* out = vector_of(out_, r);
  for (Index k = 0; k < width_; ++k) out[k] = fixed_weight * fixed[k];
  value_rows_simd<double>().add_weighted_rows(problem_.values.data(), weights.data(), l_, width_, out);
  for (Index k = 0; k < width_; ++k) out[k] *= row.all_by;
  row_dots(problem_.values.data(), l_, width_, out, weights.data());
  for (Index c = 0; c < l_; ++c) entry(r, c, kOut) = weights[c];
}

/// Everything that depends on M, from nothing but M.
void ExactError::sum_row(Index r) {
  using namespace exact_error;
  ErrorRowState& row = rows_[r];
  const Index kept = this->kept();
  Numbers z(l_), weights(l_);
  logits(row, r, l_, z.data());

  double* removed = vector_of(removed_, r);
  std::fill(removed, removed + width_, 0.0);
  row.removed = 0;
  for (Index c = kept; c < l_; ++c) row.removed += weights[c] = std::exp(z[c] - row.all_max) * row.all_by;
  value_rows_simd<double>().add_weighted_rows(value(kept), weights.data() + kept, l_ - kept, width_, removed);
  row.removed_most = row.removed;

  const auto top = std::max_element(z.begin(), z.begin() + kept) - z.begin();
  const bool has_top = top < kept && z[top] > kUnseen;
  row.top = has_top ? position(top) : -1;
  row.z_top = has_top ? z[top] : kUnseen;
  row.rest_max = row.fixed_lse;
  for (Index c = 0; c < kept; ++c)
    if (c != top) row.rest_max = std::max(row.rest_max, z[c]);
  const bool has_rest = row.rest_max > kUnseen;
  const double fixed_weight = row.fixed_lse > kUnseen ? std::exp(row.fixed_lse - row.rest_max) : 0;
  double* rest = vector_of(rest_, r);
  for (Index k = 0; k < width_; ++k) rest[k] = fixed_weight * vector_of(fixed_, r)[k];
  row.rest_sum = fixed_weight;
  for (Index c = 0; c < kept; ++c)
    row.rest_sum += weights[c] = has_rest && c != top ? std::exp(z[c] - row.rest_max) : 0;
  value_rows_simd<double>().add_weighted_rows(problem_.values.data(), weights.data(), kept, width_, rest);
  row.rest_most = row.rest_sum;

  const bool empty = choose_unit(row);
  Numbers sum(width_);
  if (row.by_removed) {
    std::copy(removed, removed + width_, sum.begin());
  } else {
    set_terms(r, 0, 0);
    const OutputTerms& t = terms_[r];
    for (Index k = 0; k < width_; ++k) {
      const double others = rest[k] * t.inv_rest - t.alone * problem_.centre[k];
      sum[k] = -(others + t.top_weight * (t.top_value[k] - others));
    }
  }
  row_dots(problem_.values.data(), l_, width_, sum.data(), weights.data());
  for (Index c = 0; c < l_; ++c) {
    entry(r, c, kSum) = weights[c];
    entry(r, c, kWeight) = entry_weight(row, z[c], has_top && c == top, c < kept, empty);
  }
}

void ExactError::sum_again() {
  std::vector<Index> all(rows_.size());
  for (Index r = 0; r < rows(); ++r) all[r] = r;
  update(-1, all);
}

}  // namespace kvreplay
