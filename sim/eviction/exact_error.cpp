#include "sim/eviction/exact_error.hpp"

#include "data/error.hpp"
#include "sim/tokens/value_rows.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>

namespace kvreplay {
namespace {

constexpr double kHidden = -std::numeric_limits<double>::infinity();
/// Weight of a column against nothing at all.
constexpr double kAllWeight = 1e300;

Index padded(Index n) { return (n + kErrorPad - 1) / kErrorPad * kErrorPad; }

}  // namespace

ExactError::ExactError(const HeadGroup<double>& group, Rows rows, const KeptSet& kept, bool insertions,
                       Workers& workers)
    : workers_(workers),
      rule_(group.rule),
      insertions_(insertions),
      l_(group.l),
      width_(padded(group.d_v())),
      key_width_(padded(group.d())) {
  load(group, kept);
  add_rows(group, rows);
  const Index columns = (l_ + kErrorBlock - 1) / kErrorBlock * kErrorBlock;
  value_sq_.resize(at(columns));
  x_dot_.assign(at(columns), 0.0);
  change_ = extent_ = x_dot_;
  blocks_.assign(at(columns * this->rows() * kErrorEntries), 0.0);
  for (Numbers* vectors : {&out_, &rest_, &removed_, &fixed_, &current_, &moved_})
    vectors->assign(at(this->rows() * width_), 0.0);
  dots_.resize(at(this->rows()));
  squares_.resize(at(this->rows()));
  zeros_.assign(at(width_), 0.0);
  terms_.resize(rows_.size());
  scan_.resize(rows_.size());
  const Index per_head = rows_.empty() ? 0 : this->rows() / group.G();
  workers_.parallel_for(this->rows(), [&](Index r) {
    start_row(r, rule_.sink_logit.empty() ? kHidden : rule_.sink_logit[at(r / per_head)]);
  });
  sum_again();
  if (std::isfinite(error_) && std::all_of(change_.begin(), change_.end(), [](double x) { return x == x; }))
    return;
  throw InputError("layer " + std::to_string(group.layer) + ", KV head " + std::to_string(group.kv_head),
                   "finite squared outputs", "an overflow of float64");
}

/// Keys and values by column, those of M first, the decoded positions last; the values less their mean.
void ExactError::load(const HeadGroup<double>& group, const KeptSet& kept) {
  const Index T = group.T_all();
  column_.resize(at(l_));
  for (const std::uint8_t wanted : {1, 0}) {
    for (Index p = 0; p < l_; ++p) {
      if ((kept[at(p)] != 0) != (wanted != 0)) continue;
      column_[at(p)] = static_cast<Index>(position_.size());
      position_.push_back(p);
    }
    if (wanted != 0) kept_ = static_cast<Index>(position_.size());
  }
  const Vector<double> mean = group.v.colwise().mean();
  centre_.assign(at(width_), 0.0);
  std::copy(mean.data(), mean.data() + mean.size(), centre_.begin());
  keys_.assign(at(T * key_width_), 0.0);
  values_.assign(at(T * width_), 0.0);
  for (Index c = 0; c < T; ++c) {
    const Index p = c < l_ ? position_[at(c)] : c;
    for (Index k = 0; k < group.d(); ++k) keys_[at(c * key_width_ + k)] = group.k(p, k);
    for (Index k = 0; k < group.d_v(); ++k) value(c)[k] = group.v(p, k) - mean[k];
    double square = 0;
    row_dots(value(c), 1, width_, value(c), &square);
    if (c < l_) value_sq_.push_back(square);
  }
}

/// The rows that see a candidate; for the others no kept set makes a difference.
void ExactError::add_rows(const HeadGroup<double>& group, Rows rows) {
  std::vector<Index> seeing;
  for (Index i = rows.begin; i < rows.end; ++i)
    if (group.first_visible(i) < std::min(group.end_visible(i), l_)) seeing.push_back(i);
  queries_.assign(at(group.G() * static_cast<Index>(seeing.size()) * key_width_), 0.0);
  double* query = queries_.data();
  for (const Matrix<double>& q : group.q) {
    for (const Index i : seeing) {
      Row row{};
      row.query = query;
      row.first = group.first_visible(i);
      row.end = group.end_visible(i);  // start_row cuts it to the candidates
      rows_.push_back(row);
      for (Index k = 0; k < group.d(); ++k) query[k] = q(i - group.first_query(), k);
      query += key_width_;
    }
  }
}

double ExactError::logit(double dot) const {
  const double raw = rule_.scale * dot;
  return rule_.softcap ? *rule_.softcap * std::tanh(raw / *rule_.softcap) : raw;
}

double ExactError::logit_of(const Row& row, Index column) {
  double dot = 0;
  row_dots(keys_.data() + column * key_width_, 1, key_width_, row.query, &dot);
  return logit(dot);
}

/// What no eviction changes: o, the columns that are always there, o . v_p.
void ExactError::start_row(Index r, double sink) {
  Row& row = rows_[at(r)];
  const Index T = static_cast<Index>(values_.size()) / std::max<Index>(width_, 1);
  Numbers z(at(T)), weights(at(T), 0.0);
  row_dots(keys_.data(), T, key_width_, row.query, z.data());
  double candidates_max = kHidden, fixed_max = sink;
  for (Index c = 0; c < T; ++c) {
    const bool candidate = c < l_;
    z[at(c)] = sees(row, candidate ? position_[at(c)] : c) ? logit(z[at(c)]) : kHidden;
    double& largest = candidate ? candidates_max : fixed_max;
    largest = std::max(largest, z[at(c)]);
  }
  row.end = std::min(row.end, l_);

  double* fixed = vector_of(fixed_, r);
  row.fixed_lse = kHidden;
  if (fixed_max > kHidden) {
    double sum = std::exp(sink - fixed_max);
    for (Index k = 0; k < width_; ++k) fixed[k] = -sum * centre_[at(k)];
    for (Index c = l_; c < T; ++c) sum += weights[at(c)] = std::exp(z[at(c)] - fixed_max);
    add_weighted_rows(value(l_), weights.data() + l_, T - l_, width_, fixed);
    for (Index k = 0; k < width_; ++k) fixed[k] /= sum;
    row.fixed_lse = fixed_max + std::log(sum);
  }

  row.all_max = std::max(candidates_max, row.fixed_lse);
  const double fixed_weight = std::exp(row.fixed_lse - row.all_max);
  double sum = fixed_weight;
  for (Index c = 0; c < l_; ++c) sum += weights[at(c)] = std::exp(z[at(c)] - row.all_max);
  row.all_by = 1 / sum;
  double* out = vector_of(out_, r);
  for (Index k = 0; k < width_; ++k) out[k] = fixed_weight * fixed[k];
  add_weighted_rows(values_.data(), weights.data(), l_, width_, out);
  for (Index k = 0; k < width_; ++k) out[k] *= row.all_by;
  row_dots(values_.data(), l_, width_, out, weights.data());
  for (Index c = 0; c < l_; ++c) entry(r, c, kOut) = weights[at(c)];
}

/// Everything that depends on M, from nothing but M.
void ExactError::sum_row(Index r) {
  Row& row = rows_[at(r)];
  Numbers z(at(l_)), weights(at(l_));
  row_dots(keys_.data(), l_, key_width_, row.query, z.data());
  for (Index c = 0; c < l_; ++c) z[at(c)] = sees(row, position_[at(c)]) ? logit(z[at(c)]) : kHidden;

  double* removed = vector_of(removed_, r);
  std::fill(removed, removed + width_, 0.0);
  row.removed = 0;
  for (Index c = kept_; c < l_; ++c)
    row.removed += weights[at(c)] = std::exp(z[at(c)] - row.all_max) * row.all_by;
  add_weighted_rows(value(kept_), weights.data() + kept_, l_ - kept_, width_, removed);
  row.removed_most = row.removed;

  const auto top = std::max_element(z.begin(), z.begin() + kept_) - z.begin();
  const bool has_top = top < kept_ && z[at(top)] > kHidden;
  row.top = has_top ? position_[at(top)] : -1;
  row.z_top = has_top ? z[at(top)] : kHidden;
  row.rest_max = row.fixed_lse;
  for (Index c = 0; c < kept_; ++c)
    if (c != top) row.rest_max = std::max(row.rest_max, z[at(c)]);
  const bool has_rest = row.rest_max > kHidden;
  const double fixed_weight = row.fixed_lse > kHidden ? std::exp(row.fixed_lse - row.rest_max) : 0;
  double* rest = vector_of(rest_, r);
  for (Index k = 0; k < width_; ++k) rest[k] = fixed_weight * vector_of(fixed_, r)[k];
  row.rest_sum = fixed_weight;
  for (Index c = 0; c < kept_; ++c)
    row.rest_sum += weights[at(c)] = has_rest && c != top ? std::exp(z[at(c)] - row.rest_max) : 0;
  add_weighted_rows(values_.data(), weights.data(), kept_, width_, rest);
  row.rest_most = row.rest_sum;

  const double left_max = std::max(row.z_top, row.rest_max);
  const bool empty = left_max == kHidden;
  const double left =
      empty ? 0 : std::exp(row.z_top - left_max) + row.rest_sum * std::exp(row.rest_max - left_max);
  row.by_removed = !empty && left * std::exp(left_max - row.all_max) * row.all_by >= kShrunk;
  row.shift = row.by_removed ? row.all_max : empty ? 0 : left_max;
  row.by = row.by_removed ? row.all_by : empty ? 1 : 1 / left;

  Numbers sum(at(width_));
  if (row.by_removed) {
    std::copy(removed, removed + width_, sum.begin());
  } else {
    set_terms(r, 0, 0);
    const OutputTerms& t = terms_[at(r)];
    for (Index k = 0; k < width_; ++k) {
      const double others = rest[k] * t.inv_rest - t.alone * centre_[at(k)];
      sum[at(k)] = -(others + t.top_weight * (t.top_value[k] - others));
    }
  }
  row_dots(values_.data(), l_, width_, sum.data(), weights.data());
  for (Index c = 0; c < l_; ++c) {
    entry(r, c, kSum) = weights[at(c)];
    double& weight = entry(r, c, kWeight);
    weight = capped_exp(z[at(c)] - row.shift) * row.by;
    if (has_top && c == top) weight = 0;
    if (c >= kept_) weight = empty && z[at(c)] > kHidden ? -kAllWeight : -weight;
  }
}

void ExactError::sum_again() {
  std::vector<Index> all(rows_.size());
  for (Index r = 0; r < rows(); ++r) all[at(r)] = r;
  update(-1, all);
}

}  // namespace kvreplay
