#include "sim/eviction/exact/coarse_changes.hpp"

#include <algorithm>
#include <cmath>

namespace kvreplay {
namespace {

constexpr double kChangesUp = 0x1p80, kEps = 0x1p-24;
/// Rounding that does not grow with the moves (CoarseChanges), in eps.
constexpr double kRoundings = 48;
/// What float64's own pass may be wrong by, of its doubt() (exact_error_row.hpp).
constexpr double kWideEps = 1.01e-13;
/// Where float32 begins to lose digits.
constexpr double kSmallest = 1e-38;

double norm(const double* x, Index n) { return Eigen::Map<const Vector<double>>(x, n).norm(); }

}  // namespace

CoarseChanges::CoarseChanges(const ErrorProblem& problem, const Numbers& out)
    : rows_(std::ssize(problem.rows)),
      columns_(div_up(problem.l, kErrorBlock) * kErrorBlock),
      width_(problem.width),
      entries_(columns_ * rows_ * kErrorEntries),
      values_(columns_ * width_),
      value_sq_(columns_),
      x_(width_),
      row_(rows_),
      scan_(rows_),
      change_(columns_),
      doubt_(columns_) {
  std::vector<double> norms(problem.l);
  for (Index c = 0; c < problem.l; ++c) norms[c] = norm(problem.values.data() + c * width_, width_);
  for (const double n : norms) largest_value_ = std::max(largest_value_, n);
  if (largest_value_ > 0 && std::isfinite(largest_value_)) unit_ = std::exp2(-std::ilogb(largest_value_));
  unit_of_changes_ = kChangesUp * unit_ * unit_;
  for (Index c = 0; c < problem.l; ++c) {
    for (Index k = 0; k < width_; ++k)
      values_[c * width_ + k] = static_cast<float>(unit_ * problem.values[c * width_ + k]);
    value_sq_[c] = static_cast<float>(unit_of_changes_ * norms[c] * norms[c]);
  }
  for (Index r = 0; r < rows_; ++r) row_[r].out_norm = norm(out.data() + r * width_, width_);
}

void CoarseChanges::take_row(Index row, const Numbers& blocks) {
  for (Index c = 0; c < columns_; ++c) {
    set_weight(row, c, blocks[at(row, c, kWeight)]);
    for (const ErrorEntry which : {kOut, kSum})
      entry(row, c, which) = static_cast<float>(unit_ * unit_ * blocks[at(row, c, which)]);
  }
  row_[row].sum_norm = row_[row].moved_norm = 0;
  for (Index m = 0; m < moves(); ++m) added_[m * rows_ + row] = 0;
}

void CoarseChanges::exchange(Index a, Index b) {
  std::swap_ranges(values_.begin() + a * width_, values_.begin() + (a + 1) * width_,
                   values_.begin() + b * width_);
  std::swap(value_sq_[a], value_sq_[b]);
  for (Index r = 0; r < rows_; ++r)
    for (const ErrorEntry which : {kWeight, kOut, kSum}) std::swap(entry(r, a, which), entry(r, b, which));
}

void CoarseChanges::add_move(const Numbers& x, const std::vector<ErrorRow>& scan) {
  moved_.insert(moved_.end(), x.begin(), x.end());
  const double x_norm = norm(x.data(), width_);
  for (Index r = 0; r < rows_; ++r) {
    added_.push_back(scan[r].add);
    row_[r].moved_norm += std::abs(scan[r].add) * x_norm;
  }
  for (Index k = 0; k < width_; ++k) x_[k] = static_cast<float>(unit_ * x[k]);
  moved_since_scan_ = true;
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

void CoarseChanges::take_sums(const Numbers& blocks, Index columns) {
  for (Index b = 0; b < div_up(columns, kErrorBlock); ++b)
    for (Index r = 0; r < rows_; ++r) {
      const std::size_t first = at(r, b * kErrorBlock, kSum);
      for (Index c = 0; c < kErrorBlock; ++c)
        entries_[first + c] = static_cast<float>(unit_ * unit_ * blocks[first + c]);
    }
  for (Row& row : row_) row.sum_norm = row.moved_norm = 0;
  moved_.clear();
  added_.clear();
  moved_since_scan_ = false;
}

CoarseRow CoarseChanges::coarse_row(Index r, const ErrorRow& scan, const OutputTerms& t) {
  Row& row = row_[r];
  const double change = std::sqrt(t.change_sq), current = std::sqrt(t.current_sq);
  const double sum = t.by_current != 0 ? current : std::abs(t.by_out) * row.out_norm + change;
  row.sum_norm = std::max(row.sum_norm, sum / scan.weight);
  // A product of x and a value is right to (width / 4 + 6) eps of their norms, which 8 of the roundings hold.
  const double moved = row.moved_norm * (static_cast<double>(width_) / 4 + 6) / 8;
  const double sums = scan.s * ((row.sum_norm + moved) * largest_value_ + kSmallest / (unit_ * unit_));
  const double of_out = row.out_norm * largest_value_;
  const double lin = 2 * change * current + sums + std::abs(scan.by_out) * of_out;
  const double sq = t.current_sq + largest_value_ * largest_value_ + sums + std::abs(scan.cur_out) * of_out;
  const auto up = [](double x) { return static_cast<float>(kChangesUp * x); };
  const auto in_unit = [&](double x) { return static_cast<float>(unit_of_changes_ * x); };
  return {moved_since_scan_ ? static_cast<float>(added_[(moves() - 1) * rows_ + r]) : 0.0F,
          static_cast<float>(scan.weight),
          up(scan.s),
          up(scan.by_out),
          up(scan.cur_out),
          in_unit(2 * t.change_current),
          in_unit(t.current_sq),
          in_unit(lin),
          in_unit(sq)};
}

void CoarseChanges::scan(const std::vector<ErrorRow>& scan, const std::vector<OutputTerms>& terms,
                         Index columns, Workers& workers) {
  constexpr Index kEntriesPerItem = Index{1} << 17;
  lost_ = kSmallest * static_cast<double>(rows_);
  for (Index r = 0; r < rows_; ++r) {
    scan_[r] = coarse_row(r, scan[r], terms[r]);
    lost_ += kEps * kSmallest * scan_[r].lin_bound;
  }
  const Index blocks = div_up(columns, kErrorBlock);
  const Index at_once = std::max<Index>(kEntriesPerItem / (kErrorBlock * std::max<Index>(rows_, 1)), 1);
  workers.parallel_for(div_up(blocks, at_once), [&](Index item) {
    const Index begin = item * at_once, end = std::min(begin + at_once, blocks), first = begin * kErrorBlock;
    const Index n = (end - begin) * kErrorBlock;
    Floats x_dot(n, 0.0F);
    if (moved_since_scan_) row_dots(values_.data() + first * width_, n, width_, x_.data(), x_dot.data());
    coarse_changes(entries_.data() + at(0, first, kWeight), end - begin, rows_, scan_.data(), x_dot.data(),
                   value_sq_.data() + first, change_.data() + first, doubt_.data() + first);
  });
  moved_since_scan_ = false;
}

std::vector<Index> CoarseChanges::within_bounds(double error, Index columns) {
  const CoarseDoubt doubt{kEps * (static_cast<double>(moves()) + kRoundings), kWideEps,
                          unit_of_changes_ * error, lost_};
  const double least = coarse_bounds(doubt, change_.data(), columns, doubt_.data());
  std::vector<Index> near;
  for (Index c = 0; c < columns; ++c)
    if (!(change_[c] - doubt_[c] > least)) near.push_back(c);
  return near;
}

}  // namespace kvreplay
