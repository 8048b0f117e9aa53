#include "sim/eviction/exact_error.hpp"

#include <algorithm>
#include <cassert>
#include <cmath>
#include <limits>

namespace kvreplay {

void ExactError::exchange_columns(Index a, Index b) {
  if (a == b) return;
  std::swap_ranges(keys_.begin() + a * key_width_, keys_.begin() + (a + 1) * key_width_,
                   keys_.begin() + b * key_width_);
  std::swap_ranges(value(a), value(a) + width_, value(b));
  std::swap(value_sq_[at(a)], value_sq_[at(b)]);
  std::swap(position_[at(a)], position_[at(b)]);
  column_[at(position_[at(a)])] = a;
  column_[at(position_[at(b)])] = b;
  for (Index r = 0; r < rows(); ++r)
    for (const ErrorEntry which : {kWeight, kOut, kSum}) std::swap(entry(r, a, which), entry(r, b, which));
}

/// Makes the top an ordinary column of M. False where the row must be summed again.
bool ExactError::demote_top(Index r) {
  Row& row = rows_[at(r)];
  const Index column = column_[at(row.top)];
  if (row.rest_sum == 0) row.rest_max = row.z_top;
  if (row.z_top - row.rest_max > kLargestExponent) return false;
  const double weight = std::exp(row.z_top - row.rest_max);
  row.rest_sum += weight;
  for (Index k = 0; k < width_; ++k) vector_of(rest_, r)[k] += weight * value(column)[k];
  entry(r, column, kWeight) = capped_exp(row.z_top - row.shift) * row.by;
  return true;
}

/// Makes the largest column of M the top in place of one that left. False where the row must be summed again.
bool ExactError::promote_next(Index r) {
  Row& row = rows_[at(r)];
  Index next = 0;
  double largest = 0;
  for (Index c = 0; c < kept_; ++c) {
    const double weight = entry(r, c, kWeight);
    if (weight > largest) {
      largest = weight;
      next = c;
    }
  }
  if (largest < 1e-250) return false;  // none is left, or their order is lost
  row.z_top = logit_of(row, next);
  row.top = position_[at(next)];
  const double weight = std::exp(row.z_top - row.rest_max);
  if (!(weight <= row.rest_sum / 2)) return false;
  row.rest_sum -= weight;
  for (Index k = 0; k < width_; ++k) vector_of(rest_, r)[k] -= weight * value(next)[k];
  entry(r, next, kWeight) = 0;
  return row.rest_sum >= kShrunk * row.rest_most;
}

/// The row's part in the removal of a column that has just left M, all but the vectors. False where the row
/// must be summed again.
bool ExactError::remove_from(Index r, Index column, double z) {
  Row& row = rows_[at(r)];
  OutputTerms& t = terms_[at(r)];
  t.removed_add = std::exp(z - row.all_max) * row.all_by;
  row.removed += t.removed_add;
  row.removed_most = row.removed;
  const double weight = capped_exp(z - row.shift) * row.by;
  scan_[at(r)].add = weight;
  entry(r, column, kWeight) = -weight;
  if (position_[at(column)] == row.top) {
    if (!promote_next(r)) return false;
  } else {
    const double in_rest = std::exp(z - row.rest_max);
    t.rest_add = -in_rest;
    row.rest_sum -= in_rest;
    if (!(row.rest_sum >= kShrunk * row.rest_most)) return false;
  }
  return row.by * (std::exp(row.z_top - row.shift) + row.rest_sum * std::exp(row.rest_max - row.shift)) >=
         kShrunk;
}

/// The same for a column that has just entered M.
bool ExactError::insert_into(Index r, Index column, double z) {
  Row& row = rows_[at(r)];
  OutputTerms& t = terms_[at(r)];
  if (row.top < 0 && row.rest_sum == 0) return false;
  t.removed_add = -std::exp(z - row.all_max) * row.all_by;
  row.removed += t.removed_add;
  if (!(row.removed >= kShrunk * row.removed_most)) return false;
  const double weight = capped_exp(z - row.shift) * row.by;
  scan_[at(r)].add = -weight;
  if (z > row.z_top) {
    if (row.top >= 0 && !demote_top(r)) return false;
    row.top = position_[at(column)];
    row.z_top = z;
    entry(r, column, kWeight) = 0;
  } else {
    if (row.rest_sum == 0) row.rest_max = z;
    if (z - row.rest_max > kLargestExponent) return false;
    t.rest_add = std::exp(z - row.rest_max);
    row.rest_sum += t.rest_add;
    entry(r, column, kWeight) = weight;
  }
  row.rest_most = std::max(row.rest_most, row.rest_sum);
  if (row.by_removed) return true;
  // Back to sums by what was removed while o^M - o still has its digits.
  const double sum = std::exp(row.z_top - row.shift) + row.rest_sum * std::exp(row.rest_max - row.shift);
  return sum * row.by <= 1 / kShrunk && sum * std::exp(row.shift - row.all_max) * row.all_by <= 0.1;
}

/// The row's weights after a column of weight `joining`, `joining_rest` among the rest, has joined M.
void ExactError::set_terms(Index r, double joining, double joining_rest) {
  const Row& row = rows_[at(r)];
  OutputTerms& t = terms_[at(r)];
  const double top = row.top < 0 ? 0 : std::exp(row.z_top - row.shift) * row.by;
  const double rest = row.rest_sum > 0 ? row.rest_sum * std::exp(row.rest_max - row.shift) * row.by : 0;
  const double sum = top + rest + joining, rest_sum = row.rest_sum + joining_rest;
  const double s = sum > 0 ? 1 / sum : 1;
  t.inv_rest = rest_sum > 0 ? 1 / rest_sum : 0;
  t.alone = rest_sum > 0 ? 0 : 1;
  t.top_weight = top * s;
  t.top_value = row.top < 0 ? zeros_.data() : value(column_[at(row.top)]);
  t.by_out = row.by_removed ? s * (row.removed - joining) : -1;
  t.by_removed = row.by_removed ? -s : 0;
  t.by_current = row.by_removed ? 0 : 1;
  ErrorRow& e = scan_[at(r)];
  e.weight = s;
  e.s = 2 * s;
  e.by_out = 2 * t.by_out;
  e.cur_out = row.by_removed ? 2 * s : 0;
}

/// Brings everything up to date once `column`'s token has left or entered M (-1: none has); the rows `lost`
/// are summed again.
void ExactError::update(Index column, const std::vector<Index>& lost) {
  const double* x = column < 0 ? zeros_.data() : value(column);
  for (Index r = 0; r < rows(); ++r) set_terms(r, 0, 0);
  output_terms(vectors(), 0, rows(), width_, x, centre_.data(), true, terms_.data());
  workers_.parallel_for(static_cast<Index>(lost.size()), [&](Index n) {
    const Index r = lost[at(n)];
    terms_[at(r)].rest_add = terms_[at(r)].removed_add = scan_[at(r)].add = 0;
    sum_row(r);
    set_terms(r, 0, 0);
    output_terms(vectors(), r, r + 1, width_, x, centre_.data(), false, terms_.data());
  });
  error_ = score(x, insertions_ ? l_ : kept_, true);
}

/// The sum of ||D||^2 that terms_ tells of, and the changes of the first `columns` columns from there.
double ExactError::score(const double* x, Index columns, bool store) {
  for (Index r = 0; r < rows(); ++r) {
    scan_[at(r)].d_out = 2 * terms_[at(r)].change_current;
    scan_[at(r)].out_sq = terms_[at(r)].current_sq;
  }
  const ErrorColumns all{x_dot_.data(), value_sq_.data(), change_.data(), extent_.data()};
  const Index blocks = (columns + kErrorBlock - 1) / kErrorBlock;
  const Index at_once = std::max<Index>(kEntriesPerItem / (kErrorBlock * std::max<Index>(rows(), 1)), 1);
  workers_.parallel_for((blocks + at_once - 1) / at_once, [&](Index item) {
    const Index begin = item * at_once, end = std::min(begin + at_once, blocks), first = begin * kErrorBlock;
    row_dots(value(first), std::min(end * kErrorBlock, l_) - first, width_, x, x_dot_.data() + first);
    error_changes(blocks_.data(), begin, end, rows(), scan_.data(), store, all);
  });
  double error = 0;
  for (Index r = 0; r < rows(); ++r) {
    error += terms_[at(r)].change_sq;
    if (rows_[at(r)].top >= 0) change_[at(column_[at(rows_[at(r)].top)])] += terms_[at(r)].top_error;
  }
  return error;
}

void ExactError::remove(Index p) {
  const Index column = --kept_;
  exchange_columns(column_[at(p)], column);
  move(column, &ExactError::remove_from);
}

void ExactError::insert(Index p) {
  const Index column = kept_++;
  exchange_columns(column_[at(p)], column);
  move(column, &ExactError::insert_into);
}

void ExactError::move(Index column, bool (ExactError::*of_row)(Index, Index, double)) {
  row_dots(queries_.data(), rows(), key_width_, keys_.data() + column * key_width_, dots_.data());
  std::vector<Index> lost;
  for (Index r = 0; r < rows(); ++r) {
    terms_[at(r)].rest_add = terms_[at(r)].removed_add = scan_[at(r)].add = 0;
    if (sees(rows_[at(r)], position_[at(column)]) && !(this->*of_row)(r, column, logit(dots_[at(r)])))
      lost.push_back(r);
  }
  update(column, lost);
}

ExactError::Removal ExactError::best_removal_with(Index p) {
  const Index column = column_[at(p)];
  row_dots(queries_.data(), rows(), key_width_, keys_.data() + column * key_width_, dots_.data());
  for (Index r = 0; r < rows(); ++r) {
    const Row& row = rows_[at(r)];
    OutputTerms& t = terms_[at(r)];
    const double weight = -entry(r, column, kWeight);
    const bool seen = sees(row, p);
    t.rest_add = !seen ? 0 : row.rest_sum > 0 ? capped_exp(logit(dots_[at(r)]) - row.rest_max) : 1;
    t.removed_add = -weight;
    set_terms(r, weight, t.rest_add);
    scan_[at(r)].add = -weight;
  }
  output_terms(vectors(), 0, rows(), width_, value(column), centre_.data(), false, terms_.data());
  return best_of(score(value(column), kept_, false));
}

ExactError::Removal ExactError::best_removal() { return best_of(error_); }

/// A removal's change from the difference of o^M and v itself: to rounding of its vectors, where change_ is
/// that of their squares.
double ExactError::precise_change(Index column) {
  differences(current_.data(), moved_.data(), rows(), width_, value(column), dots_.data(), squares_.data());
  double sum = 0;
  for (Index r = 0; r < rows(); ++r) {
    if (rows_[at(r)].top == position(column)) {
      sum += terms_[at(r)].top_error;
      continue;
    }
    const double a = scan_[at(r)].weight * entry(r, column, kWeight), c = a / (1 - a);
    sum += c * (2 * dots_[at(r)] + c * squares_[at(r)]);
  }
  return sum;
}

ExactError::Removal ExactError::best_of(double error) {
  // Rounding of sums of D . (..) and of squares, which by Cauchy and Schwarz are within these.
  const auto doubt = [&](Index c) { return 1e-13 * (extent_[at(c)] + std::sqrt(error * extent_[at(c)])); };
  double least = std::numeric_limits<double>::infinity();
  for (Index c = 0; c < kept_; ++c) least = std::min(least, change_[at(c)] + doubt(c));
  std::vector<Index> near;
  for (Index c = 0; c < kept_; ++c)
    if (change_[at(c)] - doubt(c) <= least) near.push_back(c);
  if (near.size() > 1) {
    const auto before = [&](Index a, Index b) {
      if (change(a) != change(b)) return change(a) < change(b);
      return position(a) > position(b);
    };
    if (near.size() > kLookedAt) {
      std::nth_element(near.begin(), near.begin() + kLookedAt, near.end(), before);
      near.resize(kLookedAt);
    }
    least = std::numeric_limits<double>::infinity();
    for (const Index c : near) {
      if (extent_[at(c)] > 0) change_[at(c)] = precise_change(c);
      least = std::min(least, change_[at(c)]);
    }
  }
  // Tokens that are alike in every way may still differ by rounding, where one of them is a row's top.
  Index best = -1;
  for (const Index c : near) {
    const double rounding =
        1e-14 * std::abs(least) +
        1e-15 * std::sqrt(extent_[at(c)]) * (std::sqrt(error) + std::sqrt(std::max(error + least, 0.0)));
    if (change_[at(c)] <= least + rounding && (best < 0 || position(c) > position(best))) best = c;
  }
  assert(best >= 0);
  return {position(best), std::max(error + change_[at(best)], 0.0)};
}

}  // namespace kvreplay
