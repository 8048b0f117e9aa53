#include "sim/eviction/exact/exact_error.hpp"

#include <algorithm>
#include <cmath>

namespace kvreplay {
namespace {

constexpr double kChangesUp = 0x1p80, kEps = 0x1p-24;
/// Roundings of a row's part in the pass, and beside its sums in what follows it (CoarseChanges), in eps.
constexpr double kRoundings = 48;
/// Bound on the relative error of float64's own pass some moves later; doubt() (exact_error_row.hpp) has the
/// formula.
constexpr double kWideEps = 1.5e-13;
/// Rounding of float64's own sums over a vector.
constexpr double kWideRounding = 1e-15;
/// Where float32 begins to lose digits.
constexpr double kSmallest = 1e-38;

double norm(const double* x, Index n) { return Eigen::Map<const Vector<double>>(x, n).norm(); }

}  // namespace

CoarseChanges::CoarseChanges(const ErrorProblem& problem, const Numbers& out)
    : rows_(std::ssize(problem.rows)),
      columns_(div_up(problem.candidates, kErrorBlock) * kErrorBlock),
      width_(problem.width),
      values_(columns_ * width_),
      value_sq_(columns_),
      x_(width_),
      slopes_(columns_ * rows_ * kSlopeEntries),
      largest_weight_(columns_),
      row_(rows_),
      scan_(rows_),
      followed_(rows_),
      dots_(rows_),
      squares_(rows_),
      change_(columns_),
      extent_(columns_),
      left_out_(columns_),
      with_tops_(columns_),
      doubt_(columns_) {
  std::vector<double> norms(problem.candidates);
  for (Index c = 0; c < problem.candidates; ++c) norms[c] = norm(problem.values.data() + c * width_, width_);
  for (const double n : norms) largest_value_ = std::max(largest_value_, n);
  if (largest_value_ > 0 && std::isfinite(largest_value_)) unit_ = std::exp2(-std::ilogb(largest_value_));
  unit_of_changes_ = kChangesUp * unit_ * unit_;
  for (Index c = 0; c < problem.candidates; ++c) {
    for (Index k = 0; k < width_; ++k)
      value(c, k) = static_cast<float>(unit_ * problem.values[c * width_ + k]);
    value_sq_[c] = static_cast<float>(unit_of_changes_ * norms[c] * norms[c]);
  }
  for (Index r = 0; r < rows_; ++r) row_[r].out_norm = norm(out.data() + r * width_, width_);
}

void CoarseChanges::exchange(Index a, Index b) {
  for (Index k = 0; k < width_; ++k) std::swap(value(a, k), value(b, k));
  for (Floats* numbers : {&value_sq_, &largest_weight_}) std::swap((*numbers)[a], (*numbers)[b]);
  for (Numbers* numbers : {&change_, &extent_, &left_out_}) std::swap((*numbers)[a], (*numbers)[b]);
  const auto slope = [&](Index r, Index column, Index which) -> float& {
    return slopes_[((column / kErrorBlock * rows_ + r) * kSlopeEntries + which) * kErrorBlock +
                   column % kErrorBlock];
  };
  for (Index r = 0; r < rows_; ++r)
    for (Index which = 0; which < kSlopeEntries; ++which) std::swap(slope(r, a, which), slope(r, b, which));
}

void CoarseChanges::add_move(const Numbers& x, const std::vector<ErrorRow>& scan) {
  moved_.insert(moved_.end(), x.begin(), x.end());
  for (Index r = 0; r < rows_; ++r) {
    Row& row = row_[r];
    added_.push_back(scan[r].add);
    const double a = scan[r].add * scan[r].weight;
    row.step = a < 0.5 ? a / (1 - a) : 1;
    row.growth += (1 + row.growth) * row.step;
    if (!(row.growth <= largest_growth_)) largest_growth_ = row.growth;
  }
  for (Index k = 0; k < width_; ++k) x_[k] = static_cast<float>(unit_ * x[k]);
}

void CoarseChanges::clear_row(Index row) {
  for (Index m = 0; m < moves(); ++m) added_[m * rows_ + row] = 0;
}

void CoarseChanges::add_moves_to(double* blocks, Index n, const double* values, Index columns) const {
  if (moves() == 0) return;
  Numbers dots(moves() * kErrorBlock, 0.0);
  for (Index b = 0; b < n; ++b) {
    const Index first = b * kErrorBlock, seen = std::min(kErrorBlock, columns - first);
    for (Index m = 0; m < moves(); ++m)
      row_dots(values + first * width_, seen, width_, moved_.data() + m * width_,
               dots.data() + m * kErrorBlock);
    add_moves(blocks + first * rows_ * kErrorEntries, rows_, moves(), added_.data(), dots.data());
  }
}

CoarseRow CoarseChanges::coarse_row(const Row& row, const ErrorRow& scan, const OutputTerms& t) const {
  const double change = std::sqrt(t.change_sq), current = std::sqrt(t.current_sq);
  const double sum = t.by_current != 0 ? current : std::abs(t.by_out) * row.out_norm + change;
  const double sums = 2 * sum * largest_value_ + kSmallest / (unit_ * unit_);
  const double of_out = row.out_norm * largest_value_;
  const double lin = 2 * change * current + sums + std::abs(scan.by_out) * of_out;
  const double sq = t.current_sq + largest_value_ * largest_value_ + sums + std::abs(scan.cur_out) * of_out;
  const auto up = [](double x) { return static_cast<float>(kChangesUp * x); };
  const auto in_unit = [&](double x) { return static_cast<float>(unit_of_changes_ * x); };
  return {static_cast<float>(scan.weight),
          up(scan.s),
          up(scan.by_out),
          up(scan.cur_out),
          in_unit(2 * t.change_current),
          in_unit(t.current_sq),
          in_unit(lin),
          in_unit(sq)};
}

void CoarseChanges::pass(const Numbers& blocks, const std::vector<ErrorRow>& scan,
                         const std::vector<OutputTerms>& terms, const Numbers& current,
                         const std::vector<ErrorRowState>& rows, Index columns, Workers& workers) {
  moved_.clear();
  added_.clear();
  largest_growth_ = 0;
  out_ = current;
  lost_ = kSmallest * static_cast<double>(rows_);
  for (Index r = 0; r < rows_; ++r) {
    const OutputTerms& t = terms[r];
    scan_[r] = coarse_row(row_[r], scan[r], t);
    lost_ += kEps * kSmallest * scan_[r].lin_bound;
    row_[r] = {.out_norm = row_[r].out_norm,
               .top = rows[r].top,
               .norm = std::sqrt(t.current_sq),
               .change_sq = t.change_sq,
               .followed = 2 * t.change_current};
  }
  for_column_blocks(columns, at_once(), workers, [&](Index begin, Index n) {
    const Index first = begin * kErrorBlock;
    coarse_pass(blocks.data() + first * rows_ * kErrorEntries, n, rows_, scan_.data(), unit_ * unit_,
                {value_sq_.data() + first, slopes_.data() + first * rows_ * kSlopeEntries,
                 largest_weight_.data() + first, change_.data() + first, extent_.data() + first});
    std::fill_n(left_out_.begin() + first, n * kErrorBlock, 0.0);
  });
}

void CoarseChanges::follow(const std::vector<OutputTerms>& terms, const Numbers& current,
                           const Numbers& change, Index columns, Workers& workers) {
  differences(current.data(), change.data(), rows_, width_, out_.data(), width_, dots_.data(),
              squares_.data());
  const double x_norm = norm(moved_.data() + (moves() - 1) * width_, width_);
  const double roundings = kEps * (static_cast<double>(rows_ + width_) + kRoundings);
  lost_ += kSmallest * static_cast<double>(rows_);
  for (Index r = 0; r < rows_; ++r) {
    Row& row = row_[r];
    const double now = 2 * terms[r].change_current, moved = now - row.followed;
    row.followed = now;
    row.late += row.step * row.delta;
    row.delta = std::sqrt(squares_[r]) + kWideRounding * row.norm;
    const double q = row.norm + largest_value_, lin = 2 * std::sqrt(row.change_sq) * q, sq = q * q;
    row.size += std::abs(moved) + row.step * (2 * (x_norm + row.norm) * largest_value_ + lin + 2 * sq);
    const double of_change =
        std::abs(terms[r].change_sq - row.change_sq) + kWideRounding * (terms[r].change_sq + row.change_sq);
    const double e = row.growth / (1 - row.growth);
    const double left_out = e * (1.14 * (2 * q + row.delta) * row.delta + of_change) + of_change / 16 +
                            2 * largest_value_ * row.late + 1.0625 * e * e * (lin + 0.2 * sq) +
                            roundings * row.size + kWideRounding * std::abs(now);
    const auto in_unit = [&](double x) { return static_cast<float>(unit_of_changes_ * x); };
    followed_[r] = {in_unit(moved), static_cast<float>(2 * kChangesUp * row.step),
                    static_cast<float>(row.step), in_unit(left_out)};
    lost_ += kEps * kSmallest * unit_of_changes_ * row.size;
  }
  for_column_blocks(columns, at_once(), workers, [&](Index begin, Index n) {
    const Index first = begin * kErrorBlock;
    follow_changes(slopes_.data() + first * rows_ * kSlopeEntries, n, rows_, followed_.data(),
                   values_.data() + first * width_, width_, x_.data(), change_.data() + first,
                   left_out_.data() + first);
  });
}

std::vector<Index> CoarseChanges::nearest(double error, const std::vector<OutputTerms>& terms,
                                          const std::vector<ErrorRowState>& rows,
                                          const std::vector<Index>& column_of, Index columns) {
  std::copy_n(change_.begin(), columns, with_tops_.begin());
  std::vector<Index> near;
  for (Index r = 0; r < rows_; ++r) {
    const Index top = rows[r].top;
    if (top >= 0) with_tops_[column_of[top]] += unit_of_changes_ * terms[r].top_error;
    if (top == row_[r].top) continue;
    // A token that is the row's top now, or was at the pass, has a part in this row that was not followed.
    for (const Index p : {top, row_[r].top})
      if (p >= 0 && column_of[p] < columns) near.push_back(column_of[p]);
  }
  std::sort(near.begin(), near.end());
  near.erase(std::unique(near.begin(), near.end()), near.end());
  constexpr double kUnknown = 0x1p1000;
  for (const Index c : near) with_tops_[c] = kUnknown;
  const CoarseDoubt doubt{kEps * kRoundings, kWideEps, unit_of_changes_ * error, lost_};
  const double least =
      coarse_bounds(doubt, {with_tops_.data(), extent_.data(), left_out_.data(), largest_weight_.data()},
                    columns, doubt_.data());
  for (Index c = 0; c < columns; ++c)
    if (!(with_tops_[c] - doubt_[c] > least) && with_tops_[c] != kUnknown) near.push_back(c);
  return near;
}

}  // namespace kvreplay
