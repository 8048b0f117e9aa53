#pragma once

#include "sim/eviction/exact/exact_error_simd.hpp"

#include <cmath>
#include <limits>

// Softmax state of one row of sim/eviction/exact/exact_error.hpp, and the effect of a move on it: scalar
// formulas for every backend. A Place gives access to the row's numbers:
//
//   column_of(position), position_of(column), value(column), logit_of(column)
//   set_weight(column, w)        w becomes the column's kWeight
//   add_to_rest(w, column)       rest sum += w v
//   largest_kept()               largest kWeight of M and its column, the first of equals; {0, 0}: none > 0
//
// On a device a block calls with all its threads, all with the same row.

#if defined(__CUDACC__)
#define KVREPLAY_ROW_LOGIC __device__ inline
#else
#define KVREPLAY_ROW_LOGIC inline
#endif

namespace kvreplay {

struct ErrorRowState {
  Index first, end;        ///< candidates it sees
  double fixed_lse;        ///< log-sum-exp of what cannot be evicted, -inf where there is none
  double all_max, all_by;  ///< weight within the whole prompt: exp(z - all_max) all_by
  double shift, by;        ///< weight as the columns and s have it: exp(z - shift) by
  bool by_removed;         ///< what u sums
  Index top;               ///< position, -1 where no kept candidate is seen
  double z_top;
  double rest_max, rest_sum;  ///< sum over the rest of exp(z - rest_max)
  double rest_most;           ///< the largest rest_sum since it was summed
  double removed;             ///< rho
  double removed_most;        ///< the largest since it was summed
};

struct ErrorColumn {
  double weight;
  Index column;
};

namespace exact_error {

/// The logit of what a row does not see.
inline constexpr double kUnseen = -std::numeric_limits<double>::infinity();
/// Sums are taken anew when they have shrunk to this: until then they lose at most three digits.
inline constexpr double kShrunk = 1e-3;
/// Exponents beyond this are cut: the weight of such a column against the others is 1 either way.
inline constexpr double kLargestExponent = 600;
/// Weight of a column against nothing at all.
inline constexpr double kAllWeight = 1e300;
/// Candidates for the best removal, alike to rounding, that are compared precisely.
inline constexpr Index kLookedAt = 64;

KVREPLAY_ROW_LOGIC double capped_exp(double x) {
  return std::exp(kLargestExponent < x ? kLargestExponent : x);
}
KVREPLAY_ROW_LOGIC double larger(double a, double b) { return a < b ? b : a; }

KVREPLAY_ROW_LOGIC bool sees(const ErrorRowState& row, Index p) { return p >= row.first && p < row.end; }

/// softcap 0: none.
KVREPLAY_ROW_LOGIC double logit(double dot, double scale, double softcap) {
  const double raw = scale * dot;
  return softcap > 0 ? softcap * std::tanh(raw / softcap) : raw;
}

/// Makes the top an ordinary column of M. False where the row must be summed again.
template <class Place>
KVREPLAY_ROW_LOGIC bool demote_top(ErrorRowState& row, Place& place) {
  const Index column = place.column_of(row.top);
  if (row.rest_sum == 0) row.rest_max = row.z_top;
  if (row.z_top - row.rest_max > kLargestExponent) return false;
  const double weight = std::exp(row.z_top - row.rest_max);
  row.rest_sum += weight;
  place.add_to_rest(weight, column);
  place.set_weight(column, capped_exp(row.z_top - row.shift) * row.by);
  return true;
}

/// Makes the largest column of M the top in place of one that left. False where the row must be summed again.
template <class Place>
KVREPLAY_ROW_LOGIC bool promote_next(ErrorRowState& row, Place& place) {
  const ErrorColumn next = place.largest_kept();
  if (next.weight < 1e-250) return false;  // none is left, or their order is lost
  row.z_top = place.logit_of(next.column);
  row.top = place.position_of(next.column);
  const double weight = std::exp(row.z_top - row.rest_max);
  if (!(weight <= row.rest_sum / 2)) return false;
  row.rest_sum -= weight;
  place.add_to_rest(-weight, next.column);
  place.set_weight(next.column, 0);
  return row.rest_sum >= kShrunk * row.rest_most;
}

/// The row's part in the removal of a column of logit z that it sees and that has just left M, all but the
/// vectors. False where the row must be summed again.
template <class Place>
KVREPLAY_ROW_LOGIC bool remove_from(ErrorRowState& row, OutputTerms& t, ErrorRow& scan, Place& place,
                                    Index column, double z) {
  t.removed_add = std::exp(z - row.all_max) * row.all_by;
  row.removed += t.removed_add;
  row.removed_most = row.removed;
  const double weight = capped_exp(z - row.shift) * row.by;
  scan.add = weight;
  place.set_weight(column, -weight);
  if (place.position_of(column) == row.top) {
    if (!promote_next(row, place)) return false;
  } else {
    const double in_rest = std::exp(z - row.rest_max);
    t.rest_add = -in_rest;
    row.rest_sum -= in_rest;
    if (!(row.rest_sum >= kShrunk * row.rest_most)) return false;
  }
  return row.by * (std::exp(row.z_top - row.shift) + row.rest_sum * std::exp(row.rest_max - row.shift)) >=
         kShrunk;
}

/// The row's part in the insertion of a column of logit z that has just entered M. False where the row must
/// be summed again.
template <class Place>
KVREPLAY_ROW_LOGIC bool insert_into(ErrorRowState& row, OutputTerms& t, ErrorRow& scan, Place& place,
                                    Index column, double z) {
  if (row.top < 0 && row.rest_sum == 0) return false;
  t.removed_add = -std::exp(z - row.all_max) * row.all_by;
  row.removed += t.removed_add;
  if (!(row.removed >= kShrunk * row.removed_most)) return false;
  const double weight = capped_exp(z - row.shift) * row.by;
  scan.add = -weight;
  if (z > row.z_top) {
    if (row.top >= 0 && !demote_top(row, place)) return false;
    row.top = place.position_of(column);
    row.z_top = z;
    place.set_weight(column, 0);
  } else {
    if (row.rest_sum == 0) row.rest_max = z;
    if (z - row.rest_max > kLargestExponent) return false;
    t.rest_add = std::exp(z - row.rest_max);
    row.rest_sum += t.rest_add;
    place.set_weight(column, weight);
  }
  row.rest_most = larger(row.rest_most, row.rest_sum);
  if (row.by_removed) return true;
  // Back to sums by what was removed while o^M - o still has its digits.
  const double sum = std::exp(row.z_top - row.shift) + row.rest_sum * std::exp(row.rest_max - row.shift);
  return sum * row.by <= 1 / kShrunk && sum * std::exp(row.shift - row.all_max) * row.all_by <= 0.1;
}

/// Fills in the terms that a column of kWeight `entry` (< 0) and logit z would add to the row's sums if it
/// entered M. Returns the column's weight.
KVREPLAY_ROW_LOGIC double try_insertion(const ErrorRowState& row, OutputTerms& t, ErrorRow& scan, bool seen,
                                        double entry, double z) {
  const double weight = -entry;
  t.rest_add = !seen ? 0 : row.rest_sum > 0 ? capped_exp(z - row.rest_max) : 1;
  t.removed_add = -weight;
  scan.add = -weight;
  return weight;
}

/// The row's weights after a column of weight `joining`, `joining_rest` among the rest, has joined M.
/// `top_value`: the top's, zeros where there is none.
KVREPLAY_ROW_LOGIC void set_terms(const ErrorRowState& row, const double* top_value, double joining,
                                  double joining_rest, OutputTerms& t, ErrorRow& scan) {
  const double top = row.top < 0 ? 0 : std::exp(row.z_top - row.shift) * row.by;
  const double rest = row.rest_sum > 0 ? row.rest_sum * std::exp(row.rest_max - row.shift) * row.by : 0;
  const double sum = top + rest + joining, rest_sum = row.rest_sum + joining_rest;
  const double s = sum > 0 ? 1 / sum : 1;
  t.inv_rest = rest_sum > 0 ? 1 / rest_sum : 0;
  t.alone = rest_sum > 0 ? 0 : 1;
  t.top_weight = top * s;
  t.top_value = top_value;
  t.by_out = row.by_removed ? s * (row.removed - joining) : -1;
  t.by_removed = row.by_removed ? -s : 0;
  t.by_current = row.by_removed ? 0 : 1;
  scan.weight = s;
  scan.s = 2 * s;
  scan.by_out = 2 * t.by_out;
  scan.cur_out = row.by_removed ? 2 * s : 0;
}

/// Chooses what u sums, and the unit of the columns' weights, once all else of a row has been summed. True
/// where nothing is left of the row.
KVREPLAY_ROW_LOGIC bool choose_unit(ErrorRowState& row) {
  const double left_max = larger(row.z_top, row.rest_max);
  const bool empty = left_max == kUnseen;
  const double left =
      empty ? 0 : std::exp(row.z_top - left_max) + row.rest_sum * std::exp(row.rest_max - left_max);
  row.by_removed = !empty && left * std::exp(left_max - row.all_max) * row.all_by >= kShrunk;
  row.shift = row.by_removed ? row.all_max : empty ? 0 : left_max;
  row.by = row.by_removed ? row.all_by : empty ? 1 : 1 / left;
  return empty;
}

/// kWeight of a column of logit z in a row that was `empty` as choose_unit() says.
KVREPLAY_ROW_LOGIC double entry_weight(const ErrorRowState& row, double z, bool is_top, bool is_kept,
                                       bool empty) {
  double weight = capped_exp(z - row.shift) * row.by;
  if (is_top) weight = 0;
  if (!is_kept) weight = empty && z > kUnseen ? -kAllWeight : -weight;
  return weight;
}

/// Bound on the error of a change: rounding of sums of D . (..) and of squares, which is within this bound by
/// the Cauchy-Schwarz inequality.
KVREPLAY_ROW_LOGIC double doubt(double error, double extent) {
  return 1e-13 * (extent + std::sqrt(error * extent));
}

/// Bound on the difference between precise changes of tokens that are alike in every way, one of them a row's
/// top.
KVREPLAY_ROW_LOGIC double rounding(double error, double least, double extent) {
  return 1e-14 * std::abs(least) +
         1e-15 * std::sqrt(extent) * (std::sqrt(error) + std::sqrt(larger(error + least, 0.0)));
}

}  // namespace exact_error
}  // namespace kvreplay
