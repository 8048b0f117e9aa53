#include "sim/eviction/exact/exact_error.hpp"

#include "sim/overflow.hpp"
#include "sim/tokens/value_rows.hpp"

#include <algorithm>
#include <cmath>

namespace kvreplay {

namespace {

Index padded_to_vectors(Index n) { return div_up(n, kErrorPad) * kErrorPad; }

}  // namespace

ErrorProblem::ErrorProblem(const HeadGroup<double>& group, RowRange asked, const KeptSet& kept_set,
                           const RowGradients<double>* by)
    : candidates(group.held()),
      T(group.T_all()),
      scale(group.rule.scale),
      softcap(group.rule.softcap.value_or(0)),
      width(padded_to_vectors(group.d_v())),
      key_width(padded_to_vectors(group.d())) {
  const Index begin = group.first_held(), l = group.l;
  column.resize(l);
  for (const std::uint8_t wanted : {1, 0}) {
    for (Index p = begin; p < l; ++p) {
      if ((kept_set[p] != 0) != (wanted != 0)) continue;
      column[p] = std::ssize(position);
      position.push_back(p);
    }
    if (wanted != 0) kept = std::ssize(position);
  }
  // Positions outside the candidates are in every set: those that left a window, and decoded tokens.
  for (Index p = 0; p < T; ++p)
    if (p < begin || p >= l) position.push_back(p);
  const Vector<double> mean = group.v.colwise().mean();
  centre.assign(width, 0.0);
  std::copy(mean.data(), mean.data() + mean.size(), centre.begin());
  keys.assign(T * key_width, 0.0);
  values.assign(T * width, 0.0);
  for (Index c = 0; c < T; ++c) {
    const Index p = position[c];
    for (Index k = 0; k < group.d(); ++k) keys[c * key_width + k] = group.k(p, k);
    for (Index k = 0; k < group.d_v(); ++k) values[c * width + k] = group.v(p, k) - mean[k];
  }

  std::vector<Index> seeing;
  for (Index i = asked.begin; i < asked.end; ++i)
    if (group.first_visible(i) < std::min(group.end_visible(i), l)) seeing.push_back(i);
  queries.assign(group.G() * std::ssize(seeing) * key_width, 0.0);
  double* query = queries.data();
  for (Index g = 0; g < group.G(); ++g)
    for (const Index i : seeing) {
      ErrorRowState row{};
      row.first = group.first_visible(i);
      row.end = group.end_visible(i);
      rows.push_back(row);
      sink.push_back(group.sink(g));
      for (Index k = 0; k < group.d(); ++k) query[k] = group.q[g](i - group.first_query(), k);
      query += key_width;
    }
  if (by == nullptr) return;
  samples = padded_to_vectors(by->samples);
  gradients.assign(std::ssize(rows) * samples * width, 0.0);
  const double unit = std::sqrt(0.5 / static_cast<double>(by->samples));
  double* row_gradients = gradients.data();
  for (Index g = 0; g < group.G(); ++g)
    for (const Index i : seeing) {
      for (Index s = 0; s < by->samples; ++s)
        for (Index k = 0; k < group.d_v(); ++k)
          row_gradients[s * width + k] = unit * by->g[g](by->at(s, i), k);
      row_gradients += samples * width;
    }
}

ExactError::ExactError(const HeadGroup<double>& group, RowRange rows, const KeptSet& kept, bool insertions,
                       Workers& workers, const RowGradients<double>* gradients)
    : workers_(workers),
      insertions_(insertions),
      problem_(group, rows, kept, gradients),
      space_(problem_),
      l_(problem_.candidates),
      width_(space_.width()),
      n_rows_(std::ssize(problem_.rows)),
      rows_(problem_.rows) {
  const Index columns = div_up(l_, kErrorBlock) * kErrorBlock, n = this->rows();
  const Index seen_otherwise = space_.of_row() ? n : 1;
  value_sq_.resize(columns * std::max<Index>(seen_otherwise, 1));
  change_.assign(columns, 0.0);
  extent_ = change_;
  blocks_.assign(columns * n * kErrorEntries, 0.0);
  for (Numbers* vectors : {&out_, &rest_, &removed_, &current_, &moved_}) vectors->assign(n * width_, 0.0);
  fixed_.assign(n * problem_.width, 0.0);
  for (Numbers* vectors : {&centre_, &x_}) vectors->assign(seen_otherwise * width_, 0.0);
  for (Index r = 0; r < seen_otherwise; ++r)
    space_.see(r, problem_.centre.data(), centre_.data() + r * width_);
  if (space_.of_row()) {
    x_lifted_.assign(n * problem_.width, 0.0);
    tops_.assign(n * width_, 0.0);
    top_seen_.assign(n, -1);
  } else {
    for (Index c = 0; c < l_; ++c) row_dots(value(c), 1, width_, value(c), &value_sq_[c]);
  }
  dots_.resize(n);
  squares_.resize(n);
  zeros_.assign(std::max(width_, problem_.width), 0.0);
  terms_.resize(rows_.size());
  scan_.resize(rows_.size());
  workers_.parallel_for(this->rows(), [&](Index r) { start_row(r); });
  if (!insertions_ && !space_.of_row()) coarse_.emplace(problem_, out_);
  sum_again();
  if (coarse_) score(this->kept(), false);
  if (!std::isfinite(error_) || std::any_of(change_.begin(), change_.end(), [](double x) { return x != x; }))
    report_not_finite(group, gradients ? "finite squared losses" : "finite squared outputs");
}

/// Writes a column's value, as the rows see it, to x_ (column -1: a value of 0).
void ExactError::see_value(Index column) {
  const double* v = column < 0 ? zeros_.data() : value(column);
  if (!space_.of_row()) return void(std::copy(v, v + width_, x_.begin()));
  workers_.parallel_for(rows(), [&](Index r) {
    space_.see(r, v, vector_of(x_, r));
    space_.lift(r, vector_of(x_, r), x_lifted_.data() + r * problem_.width);
  });
}

/// A kept column's value as row r sees it, when the column is about to become the row's top.
const double* ExactError::seen_value(Index r, Index column) {
  if (!space_.of_row()) return value(column);
  double* seen = vector_of(tops_, r);
  if (top_seen_[r] != position(column)) space_.see(r, value(column), seen);
  top_seen_[r] = position(column);
  return seen;
}

/// Products of what a row sees of something with what it sees of the candidates' values, [l].
void ExactError::dots_with_values(Index r, const double* seen, double* dots) {
  Numbers lifted(problem_.width);
  space_.lift(r, seen, lifted.data());
  row_dots(problem_.values.data(), l_, problem_.width, lifted.data(), dots);
}

/// Logits of the first columns, hidden where the row does not see them.
void ExactError::logits(const ErrorRowState& row, Index r, Index columns, double* z) const {
  using namespace exact_error;
  row_dots(problem_.keys.data(), columns, problem_.key_width, query(r), z);
  for (Index c = 0; c < columns; ++c) z[c] = sees(row, position(c)) ? logit(z[c]) : kUnseen;
}

/// Computes the quantities of row r that no eviction changes: o, the columns that are always there, o . v_p.
void ExactError::start_row(Index r) {
  using exact_error::kUnseen;
  ErrorRowState& row = rows_[r];
  const double sink = problem_.sink[r];
  const Index T = problem_.T, value_width = problem_.width;
  Numbers z(T), weights(T, 0.0);
  logits(row, r, T, z.data());
  double candidates_max = kUnseen, fixed_max = sink;
  for (Index c = 0; c < l_; ++c) candidates_max = std::max(candidates_max, z[c]);
  for (Index c = l_; c < T; ++c) fixed_max = std::max(fixed_max, z[c]);

  double* fixed = this->fixed(r);
  row.fixed_lse = kUnseen;
  if (fixed_max > kUnseen) {
    double sum = std::exp(sink - fixed_max);
    for (Index k = 0; k < value_width; ++k) fixed[k] = -sum * problem_.centre[k];
    for (Index c = l_; c < T; ++c) sum += weights[c] = std::exp(z[c] - fixed_max);
    value_rows_simd<double>().add_weighted_rows(value(l_), weights.data() + l_, T - l_, value_width, fixed);
    for (Index k = 0; k < value_width; ++k) fixed[k] /= sum;
    row.fixed_lse = fixed_max + std::log(sum);
  }

  row.all_max = std::max(candidates_max, row.fixed_lse);
  const double fixed_weight = std::exp(row.fixed_lse - row.all_max);
  double sum = fixed_weight;
  for (Index c = 0; c < l_; ++c) sum += weights[c] = std::exp(z[c] - row.all_max);
  row.all_by = 1 / sum;
  Numbers out(value_width);
  for (Index k = 0; k < value_width; ++k) out[k] = fixed_weight * fixed[k];
  value_rows_simd<double>().add_weighted_rows(problem_.values.data(), weights.data(), l_, value_width,
                                              out.data());
  for (Index k = 0; k < value_width; ++k) out[k] *= row.all_by;
  space_.see(r, out.data(), vector_of(out_, r));
  dots_with_values(r, vector_of(out_, r), weights.data());
  for (Index c = 0; c < l_; ++c) entry(r, c, kOut) = weights[c];
  if (!space_.of_row()) return;
  Numbers seen(width_);
  for (Index c = 0; c < l_; ++c) {
    space_.see(r, value(c), seen.data());
    row_dots(seen.data(), 1, width_, seen.data(), &value_sq(r, c));
  }
}

/// Computes everything that depends on M, from M alone.
void ExactError::sum_row(Index r) {
  using namespace exact_error;
  ErrorRowState& row = rows_[r];
  const Index kept = this->kept();
  Numbers z(l_), weights(l_);
  logits(row, r, l_, z.data());

  const Index value_width = problem_.width;
  Numbers values(value_width, 0.0);
  row.removed = 0;
  for (Index c = kept; c < l_; ++c) row.removed += weights[c] = std::exp(z[c] - row.all_max) * row.all_by;
  value_rows_simd<double>().add_weighted_rows(value(kept), weights.data() + kept, l_ - kept, value_width,
                                              values.data());
  const double* removed = vector_of(removed_, r);
  space_.see(r, values.data(), vector_of(removed_, r));
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
  for (Index k = 0; k < value_width; ++k) values[k] = fixed_weight * fixed(r)[k];
  row.rest_sum = fixed_weight;
  for (Index c = 0; c < kept; ++c)
    row.rest_sum += weights[c] = has_rest && c != top ? std::exp(z[c] - row.rest_max) : 0;
  value_rows_simd<double>().add_weighted_rows(problem_.values.data(), weights.data(), kept, value_width,
                                              values.data());
  const double* rest = vector_of(rest_, r);
  space_.see(r, values.data(), vector_of(rest_, r));
  row.rest_most = row.rest_sum;

  const bool empty = choose_unit(row);
  Numbers sum(width_);
  if (row.by_removed) {
    std::copy(removed, removed + width_, sum.begin());
  } else {
    set_terms(r, 0, 0);
    const OutputTerms& t = terms_[r];
    for (Index k = 0; k < width_; ++k) {
      const double others = rest[k] * t.inv_rest - t.alone * centre(r)[k];
      sum[k] = -(others + t.top_weight * (t.top_value[k] - others));
    }
  }
  dots_with_values(r, sum.data(), weights.data());
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
