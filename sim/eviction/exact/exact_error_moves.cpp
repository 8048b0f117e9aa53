#include "sim/eviction/exact/exact_error.hpp"

#include <algorithm>
#include <cassert>
#include <cmath>
#include <limits>

namespace kvreplay {

void ExactError::exchange_columns(Index a, Index b) {
  if (a == b) return;
  const auto swap_rows = [&](Numbers& numbers, Index width) {
    std::swap_ranges(numbers.begin() + a * width, numbers.begin() + (a + 1) * width,
                     numbers.begin() + b * width);
  };
  swap_rows(problem_.keys, problem_.key_width);
  swap_rows(problem_.values, width_);
  std::swap(value_sq_[at(a)], value_sq_[at(b)]);
  std::swap(problem_.position[at(a)], problem_.position[at(b)]);
  problem_.column[at(position(a))] = a;
  problem_.column[at(position(b))] = b;
  for (Index r = 0; r < rows(); ++r)
    for (const ErrorEntry which : {kWeight, kOut, kSum}) std::swap(entry(r, a, which), entry(r, b, which));
}

double ExactError::Place::logit_of(Index column) const {
  double dot = 0;
  const Index width = all.problem_.key_width;
  row_dots(all.problem_.keys.data() + column * width, 1, width, all.query(row), &dot);
  return all.logit(dot);
}

void ExactError::Place::add_to_rest(double w, Index column) const {
  double* rest = all.vector_of(all.rest_, row);
  for (Index k = 0; k < all.width_; ++k) rest[k] += w * all.value(column)[k];
}

ErrorColumn ExactError::Place::largest_kept() const {
  ErrorColumn largest{0, 0};
  for (Index c = 0, kept = all.kept(); c < kept; ++c) {
    const double weight = all.entry(row, c, kWeight);
    if (weight > largest.weight) largest = {weight, c};
  }
  return largest;
}

void ExactError::set_terms(Index r, double joining, double joining_rest) {
  const ErrorRowState& row = rows_[at(r)];
  const double* top_value = row.top < 0 ? zeros_.data() : value(problem_.column[at(row.top)]);
  exact_error::set_terms(row, top_value, joining, joining_rest, terms_[at(r)], scan_[at(r)]);
}

/// Brings everything up to date once `column`'s token has left or entered M (-1: none has); the rows `lost`
/// are summed again.
void ExactError::update(Index column, const std::vector<Index>& lost) {
  const double* x = column < 0 ? zeros_.data() : value(column);
  for (Index r = 0; r < rows(); ++r) set_terms(r, 0, 0);
  output_terms(vectors(), 0, rows(), width_, x, problem_.centre.data(), true, terms_.data());
  workers_.parallel_for(std::ssize(lost), [&](Index n) {
    const Index r = lost[at(n)];
    terms_[at(r)].rest_add = terms_[at(r)].removed_add = scan_[at(r)].add = 0;
    sum_row(r);
    set_terms(r, 0, 0);
    output_terms(vectors(), r, r + 1, width_, x, problem_.centre.data(), false, terms_.data());
  });
  error_ = score(x, insertions_ ? l_ : kept(), true);
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
    if (rows_[at(r)].top >= 0) change_[at(problem_.column[at(rows_[at(r)].top)])] += terms_[at(r)].top_error;
  }
  return error;
}

void ExactError::remove(Index p) {
  const Index column = --problem_.kept;
  exchange_columns(problem_.column[at(p)], column);
  move(column, exact_error::remove_from<Place>);
}

void ExactError::insert(Index p) {
  const Index column = problem_.kept++;
  exchange_columns(problem_.column[at(p)], column);
  move(column, exact_error::insert_into<Place>);
}

void ExactError::dots_with_queries(Index column) {
  const Index width = problem_.key_width;
  row_dots(problem_.queries.data(), rows(), width, problem_.keys.data() + column * width, dots_.data());
}

template <class RowMove>
void ExactError::move(Index column, RowMove row_move) {
  dots_with_queries(column);
  std::vector<Index> lost;
  for (Index r = 0; r < rows(); ++r) {
    OutputTerms& t = terms_[at(r)];
    ErrorRow& scan = scan_[at(r)];
    t.rest_add = t.removed_add = scan.add = 0;
    Place place{*this, r};
    if (exact_error::sees(rows_[at(r)], position(column)) &&
        !row_move(rows_[at(r)], t, scan, place, column, logit(dots_[at(r)])))
      lost.push_back(r);
  }
  update(column, lost);
}

std::vector<Insertion> ExactError::insertions() const {
  std::vector<Insertion> all;
  for (Index c = kept(); c < l_; ++c) all.push_back({position(c), change(c)});
  return all;
}

BestRemoval ExactError::best_removal_with(Index p) {
  using namespace exact_error;
  const Index column = problem_.column[at(p)];
  dots_with_queries(column);
  for (Index r = 0; r < rows(); ++r) {
    const ErrorRowState& row = rows_[at(r)];
    OutputTerms& t = terms_[at(r)];
    const bool seen = sees(row, p);
    const double z = seen ? logit(dots_[at(r)]) : kUnseen;
    const double weight = try_insertion(row, t, scan_[at(r)], seen, entry(r, column, kWeight), z);
    set_terms(r, weight, t.rest_add);
  }
  output_terms(vectors(), 0, rows(), width_, value(column), problem_.centre.data(), false, terms_.data());
  return best_of(score(value(column), kept(), false));
}

BestRemoval ExactError::best_removal() { return best_of(error_); }

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

BestRemoval ExactError::best_of(double error) {
  using namespace exact_error;
  const auto doubt_of = [&](Index c) { return doubt(error, extent_[at(c)]); };
  double least = std::numeric_limits<double>::infinity();
  for (Index c = 0; c < kept(); ++c) least = std::min(least, change_[at(c)] + doubt_of(c));
  std::vector<Index> near;
  for (Index c = 0; c < kept(); ++c)
    if (change_[at(c)] - doubt_of(c) <= least) near.push_back(c);
  if (near.size() > 1) {
    const auto before = [&](Index a, Index b) {
      if (change(a) != change(b)) return change(a) < change(b);
      return position(a) > position(b);
    };
    if (near.size() > at(kLookedAt)) {
      std::nth_element(near.begin(), near.begin() + kLookedAt, near.end(), before);
      near.resize(at(kLookedAt));
    }
    least = std::numeric_limits<double>::infinity();
    for (const Index c : near) {
      if (extent_[at(c)] > 0) change_[at(c)] = precise_change(c);
      least = std::min(least, change_[at(c)]);
    }
  }
  Index best = -1;
  for (const Index c : near)
    if (change_[at(c)] <= least + rounding(error, least, extent_[at(c)]) &&
        (best < 0 || position(c) > position(best)))
      best = c;
  assert(best >= 0);
  return {position(best), std::max(error + change_[at(best)], 0.0)};
}

}  // namespace kvreplay
