#include "sim/eviction/exact/exact_error.hpp"
#include "sim/simd/panel_gemm.hpp"

#include <algorithm>
#include <cassert>
#include <cmath>
#include <limits>
#include <numeric>

namespace kvreplay {

void ExactError::exchange_columns(Index a, Index b) {
  if (a == b) return;
  const auto swap_rows = [&](Numbers& numbers, Index width) {
    std::swap_ranges(numbers.begin() + a * width, numbers.begin() + (a + 1) * width,
                     numbers.begin() + b * width);
  };
  swap_rows(problem_.keys, problem_.key_width);
  swap_rows(problem_.values, problem_.width);
  std::swap(problem_.position[a], problem_.position[b]);
  problem_.column[position(a)] = a;
  problem_.column[position(b)] = b;
  for (Index r = 0; r < (space_.of_row() ? rows() : 1); ++r) std::swap(value_sq(r, a), value_sq(r, b));
  for (Index r = 0; r < rows(); ++r)
    for (const ErrorEntry which : {kWeight, kOut, kSum}) std::swap(entry(r, a, which), entry(r, b, which));
  if (coarse_) coarse_->exchange(a, b);
}

double ExactError::Place::logit_of(Index column) const {
  double dot = 0;
  const Index width = all.problem_.key_width;
  row_dots(all.problem_.keys.data() + column * width, 1, width, all.query(row), &dot);
  return all.logit(dot);
}

void ExactError::Place::add_to_rest(double w, Index column) const {
  double* rest = all.vector_of(all.rest_, row);
  const double* v = all.seen_value(row, column);
  for (Index k = 0; k < all.width_; ++k) rest[k] += w * v[k];
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
  const ErrorRowState& row = rows_[r];
  const double* top_value = row.top < 0 ? zeros_.data() : seen_value(r, problem_.column[row.top]);
  exact_error::set_terms(row, top_value, joining, joining_rest, terms_[r], scan_[r]);
}

/// Brings everything up to date once `column`'s token has left or entered M (-1: none has); the rows `lost`
/// are summed again.
void ExactError::update(Index column, const std::vector<Index>& lost) {
  see_value(column);
  if (coarse_ && column >= 0) coarse_->add_move(x_, scan_);
  for (Index r = 0; r < rows(); ++r) set_terms(r, 0, 0);
  const auto find_terms = [&](Index begin, Index end, bool store) {
    output_terms(vectors(), begin, end, width_, x_.data(), centre_.data(), space_.step(), store,
                 terms_.data());
  };
  find_terms(0, rows(), true);
  workers_.parallel_for(std::ssize(lost), [&](Index n) {
    const Index r = lost[n];
    terms_[r].rest_add = terms_[r].removed_add = scan_[r].add = 0;
    sum_row(r);
    set_terms(r, 0, 0);
    find_terms(r, r + 1, false);
  });
  if (!coarse_) {
    error_ = score(insertions_ ? l_ : kept(), true);
    return;
  }
  for (const Index r : lost) coarse_->clear_row(r);
  for (ErrorRow& row : scan_) row.add = 0;
  error_ = set_outputs();
  if (column < 0 || coarse_->due()) {
    pass_in_float32();
  } else {
    coarse_->follow(terms_, current_, moved_, kept(), workers_);
  }
}

/// Tells the scan of the outputs that terms_ has; the sum of ||D||^2.
double ExactError::set_outputs() {
  double error = 0;
  for (Index r = 0; r < rows(); ++r) {
    scan_[r].d_out = 2 * terms_[r].change_current;
    scan_[r].out_sq = terms_[r].current_sq;
    error += terms_[r].change_sq;
  }
  return error;
}

void ExactError::add_top_errors() {
  for (Index r = 0; r < rows(); ++r)
    if (rows_[r].top >= 0) change_[problem_.column[rows_[r].top]] += terms_[r].top_error;
}

/// The sum of ||D||^2 that terms_ tells of, and the changes of the first `columns` columns from there.
double ExactError::score(Index columns, bool store) {
  const double error = set_outputs();
  const Index at_once = blocks_of_entries(space_.of_row() ? kEntriesOfRows : kEntriesPerItem, rows());
  for_column_blocks(columns, at_once, workers_, [&](Index begin, Index n) {
    const Index first = begin * kErrorBlock, end = begin + n;
    const Index of_column = space_.of_row() ? std::max<Index>(rows(), 1) : 1;
    Numbers x_dot(n * kErrorBlock * of_column, 0.0);
    if (space_.of_row())
      for (Index b = begin; b < end; ++b)
        dots_with_moved(b, x_dot.data() + (b - begin) * rows() * kErrorBlock);
    else
      row_dots(value(first), std::min(end * kErrorBlock, l_) - first, width_, x_.data(), x_dot.data());
    error_changes(blocks_.data() + first * rows() * kErrorEntries, n, rows(), scan_.data(), store,
                  {x_dot.data(), value_sq_.data() + first * of_column, space_.of_row(),
                   change_.data() + first, extent_.data() + first});
  });
  add_top_errors();
  return error;
}

/// Over M's columns, whose sums get the moves that they are missing.
void ExactError::pass_in_float32() {
  constexpr Index kBlocksAtOnce = 8;
  for_column_blocks(kept(), kBlocksAtOnce, workers_, [&](Index begin, Index n) {
    const Index first = begin * kErrorBlock;
    coarse_->add_moves_to(blocks_.data() + first * rows() * kErrorEntries, n, value(first),
                          std::min(first + n * kErrorBlock, l_) - first);
  });
  coarse_->pass(blocks_, scan_, terms_, current_, rows_, kept(), workers_);
}

/// The changes of some columns of M, from copies of what the rows have of them.
void ExactError::look_at(const std::vector<Index>& columns) {
  const Index n = std::ssize(columns), blocks = div_up(n, kErrorBlock), padded = blocks * kErrorBlock;
  auto& [entries, values, value_sq, zeros, change, extent] = looked_at_;
  entries.resize(padded * rows() *
                 kErrorEntries);  // what an earlier look left in the padding does not matter
  values.resize(padded * width_);
  for (Numbers* of_columns : {&value_sq, &zeros, &change, &extent}) of_columns->resize(padded);
  for (Index i = 0; i < n; ++i) {
    const Index column = columns[i], block = i / kErrorBlock * rows();
    std::copy_n(value(column), width_, values.begin() + i * width_);
    value_sq[i] = value_sq_[column];
    for (Index r = 0; r < rows(); ++r)
      for (const ErrorEntry which : {kWeight, kOut, kSum})
        entries[((block + r) * kErrorEntries + which) * kErrorBlock + i % kErrorBlock] =
            entry(r, column, which);
  }
  coarse_->add_moves_to(entries.data(), blocks, values.data(), n);
  error_changes(entries.data(), blocks, rows(), scan_.data(), false,
                {zeros.data(), value_sq.data(), false, change.data(), extent.data()});
  for (Index i = 0; i < n; ++i) {
    change_[columns[i]] = change[i];
    extent_[columns[i]] = extent[i];
  }
  add_top_errors();
}

/// Products of the moving value with the values of a block's columns, as every row sees them:
/// [rows][kErrorBlock].
void ExactError::dots_with_moved(Index block, double* dots) {
  static_assert(kErrorBlock == kPanelWidth<double>);
  const Index first = block * kErrorBlock, n = std::min(kErrorBlock, l_ - first), width = problem_.width;
  Numbers panel(width * kErrorBlock, 0.0);
  for (Index c = 0; c < n; ++c)
    for (Index k = 0; k < width; ++k) panel[k * kErrorBlock + c] = value(first + c)[k];
  panel_gemm(rows(), width, x_lifted_.data(), width, panel.data(), dots);
}

void ExactError::remove(Index p) {
  const Index column = --problem_.kept;
  exchange_columns(problem_.column[p], column);
  move(column, exact_error::remove_from<Place>);
}

void ExactError::insert(Index p) {
  const Index column = problem_.kept++;
  exchange_columns(problem_.column[p], column);
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
    OutputTerms& t = terms_[r];
    ErrorRow& scan = scan_[r];
    t.rest_add = t.removed_add = scan.add = 0;
    Place place{*this, r};
    if (exact_error::sees(rows_[r], position(column)) &&
        !row_move(rows_[r], t, scan, place, column, logit(dots_[r])))
      lost.push_back(r);
  }
  update(column, lost);
}

std::vector<Insertion> ExactError::insertions() const {
  std::vector<Insertion> all;
  for (Index c = kept(); c < l_; ++c) all.push_back({position(c), change(c)});
  return all;
}

std::vector<Index> ExactError::kept_columns() const {
  std::vector<Index> columns(kept());
  std::iota(columns.begin(), columns.end(), Index{0});
  return columns;
}

BestRemoval ExactError::best_removal_with(Index p) {
  using namespace exact_error;
  const Index column = problem_.column[p];
  dots_with_queries(column);
  for (Index r = 0; r < rows(); ++r) {
    const ErrorRowState& row = rows_[r];
    OutputTerms& t = terms_[r];
    const bool seen = sees(row, p);
    const double z = seen ? logit(dots_[r]) : kUnseen;
    const double weight = try_insertion(row, t, scan_[r], seen, entry(r, column, kWeight), z);
    set_terms(r, weight, t.rest_add);
  }
  see_value(column);
  output_terms(vectors(), 0, rows(), width_, x_.data(), centre_.data(), space_.step(), false, terms_.data());
  return best_of(score(kept(), false), kept_columns());
}

BestRemoval ExactError::best_removal() {
  if (!coarse_) return best_of(error_, kept_columns());
  // Columns are looked at one by one at some thirty times what a pass over all takes for each.
  constexpr Index kOfPass = 32;
  for (const bool passed : {false, true}) {
    if (passed) pass_in_float32();
    const std::vector<Index> near = coarse_->nearest(error_, terms_, rows_, problem_.column, kept());
    if (std::ssize(near) > kErrorBlock + kept() / kOfPass) continue;
    look_at(near);
    return best_of(error_, near);
  }
  score(kept(), false);
  return best_of(error_, kept_columns());
}

/// A removal's change from the difference of o^M and v itself: to rounding of its vectors, where change_ is
/// that of their squares.
double ExactError::precise_change(Index column) {
  see_value(column);
  differences(current_.data(), moved_.data(), rows(), width_, x_.data(), space_.step(), dots_.data(),
              squares_.data());
  double sum = 0;
  for (Index r = 0; r < rows(); ++r) {
    if (rows_[r].top == position(column)) {
      sum += terms_[r].top_error;
      continue;
    }
    const double a = scan_[r].weight * entry(r, column, kWeight), c = a / (1 - a);
    sum += c * (2 * dots_[r] + c * squares_[r]);
  }
  return sum;
}

BestRemoval ExactError::best_of(double error, const std::vector<Index>& among) {
  using namespace exact_error;
  const auto doubt_of = [&](Index c) { return doubt(error, extent_[c]); };
  double least = std::numeric_limits<double>::infinity();
  for (const Index c : among) least = std::min(least, change_[c] + doubt_of(c));
  std::vector<Index> near;
  for (const Index c : among)
    if (change_[c] - doubt_of(c) <= least) near.push_back(c);
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
      if (extent_[c] > 0) change_[c] = precise_change(c);
      least = std::min(least, change_[c]);
    }
  }
  Index best = -1;
  for (const Index c : near)
    if (change_[c] <= least + rounding(error, least, extent_[c]) &&
        (best < 0 || position(c) > position(best)))
      best = c;
  assert(best >= 0);
  return {position(best), std::max(error + change_[best], 0.0)};
}

}  // namespace kvreplay
