#pragma once

#include "sim/simd/panel.hpp"

// The loops of sim/eviction/exact/exact_error.hpp, over float64. Vectors of d or d_v numbers are padded with
// zeros to a multiple of kErrorPad.

namespace kvreplay {

inline constexpr Index kErrorPad = 8;

/// out[r] = rows[r] . x for n rows of `width` numbers, one behind the other. dot(a, b) = dot(b, a) to the
/// bit.
void row_dots(const double* rows, Index n, Index width, const double* x, double* out);

/// One row's sums: what is added to them, how they make an output, and what follows from it. Everything is
/// centred.
struct OutputTerms {
  double rest_add = 0;     ///< weight of x in the rest sum
  double removed_add = 0;  ///< weight of x in the removed sum
  // o' = inv_rest * rest sum - alone * centre, o^M = o' + top_weight (top_value - o')
  double inv_rest = 0;
  double alone = 0;
  double top_weight = 0;
  const double* top_value = nullptr;
  // D = by_out * o + by_removed * removed sum + by_current * o^M
  double by_out = 0, by_removed = 0, by_current = 0;

  double current_sq = 0;      ///< ||o^M||^2
  double change_current = 0;  ///< D . o^M
  double change_sq = 0;       ///< ||D||^2
  double top_error = 0;       ///< ||o' - o||^2 - ||D||^2
};

/// The vectors of all rows, each [rows][width].
struct OutputVectors {
  const double* out;  ///< o
  double* rest;
  double* removed;
  double* current;  ///< o^M
  double* change;   ///< D
};

/// Adds x to the sums of rows [begin, end) as `terms` says and finds what follows. The new sums are stored
/// where `store` is set, o^M and D always. From one row to the next x and centre are `step` numbers on.
void output_terms(const OutputVectors& vectors, Index begin, Index end, Index width, const double* x,
                  const double* centre, Index step, bool store, OutputTerms* terms);

/// Columns are kept in blocks of this many, [block][row][3][kErrorBlock]: a pass over a range of columns is a
/// run through memory.
inline constexpr Index kErrorBlock = 16;
/// The three numbers of a row and a column.
enum ErrorEntry {
  kWeight,  ///< weight of the column in the row, negative where it is not kept, 0 for the row's top
  kOut,     ///< o . v_p
  kSum,     ///< the row's running sum . v_p
  kErrorEntries
};

/// Constants of a row in a pass over the columns: with u = kSum + add * (x . v_p), 2 D . (o^M - v_p) = d_out
/// + s u - by_out kOut, ||o^M - v_p||^2 = out_sq + ||v_p||^2 + s u - cur_out kOut, a = weight * kWeight.
struct ErrorRow {
  double add, weight, s, by_out, cur_out, d_out, out_sq, unused;
};

/// Inputs and results of a pass over the columns, each [columns].
struct ErrorColumns {
  const double* x_dot;     ///< x . v_p
  const double* value_sq;  ///< ||v_p||^2
  bool of_row;             ///< both are [columns / kErrorBlock][rows][kErrorBlock], other numbers in each row
  /// Sum over the rows of c (2 D . (o^M - v_p) + c ||o^M - v_p||^2), c = a / (1 - a): the increase of E when
  /// p is removed, or, with a < 0, inserted.
  double* change;
  double*
      extent;  ///< sum over the rows of c^2 (||o^M||^2 + ||v_p||^2), of which `change` may be a difference
};

/// n blocks of columns. u replaces kSum where `store` is set.
void error_changes(double* blocks, Index n, Index rows, const ErrorRow* terms, bool store,
                   const ErrorColumns& columns);

/// u of a block of columns, as ErrorRow has it, becomes their kSum, one move after the other: added
/// [moves][rows] has the `add` of each, x_dots [moves][kErrorBlock] its x . v_p.
void add_moves(double* block, Index rows, Index moves, const double* added, const double* x_dots);

/// An ErrorRow in float32, and bounds of the row's L = 2 D . (o^M - v_p) and Q = ||o^M - v_p||^2 over all
/// columns.
struct CoarseRow {
  float weight, s, by_out, cur_out, d_out, out_sq, lin_bound, sq_bound;
};
/// The two numbers of a row and a column by which a change is followed (CoarseChanges), c = a / (1 - a).
enum SlopeEntry {
  kGrowth,  ///< k = c + c^2
  kSlope,   ///< k (L + 2 c Q - 2 o^M . v_p)
  kSlopeEntries
};
/// Inputs and results of a pass in float32, each [columns].
struct CoarseColumns {
  const float* value_sq;
  float* slopes;          ///< [columns / kErrorBlock][rows][kSlopeEntries][kErrorBlock]
  float* largest_weight;  ///< the largest c
  double* change;         ///< sum over the rows of c (L + c Q)
  double* extent;         ///< sum over the rows of c (lin_bound + c sq_bound)
};
/// n blocks of float64 entries with nothing to add to their sums, whose products of vectors are taken times
/// `unit`. 16 rows at a time are added up in float32, those sums in float64.
void coarse_pass(const double* blocks, Index n, Index rows, const CoarseRow* terms, double unit,
                 const CoarseColumns& columns);

/// Factors of a row's k, of k times x . v_p and of the slope in the followed change; and of k in left_out.
struct FollowedRow {
  float by_growth, by_x, by_slope, left_out;
};
/// change += the sum over the rows of the first three terms; left_out = the sum over the rows of the last
/// one. n blocks of slopes, and of values, [n][width][kErrorBlock].
void follow_changes(const float* slopes, Index n, Index rows, const FollowedRow* terms, const float* values,
                    Index width, const float* x, double* change, double* left_out);

/// Bound on the error of coarse changes, for the first `of` columns: own = eps extent + wide (extent +
/// sqrt(error extent)) + lost + left_out, and 256 times that where largest_weight is above 1/16. Returns the
/// least change + own, or infinity where one of them is beyond the numbers' range.
struct CoarseDoubt {
  double eps, wide, error, lost;
};
struct CoarseFound {
  const double *change, *extent, *left_out;
  const float* largest_weight;
};
double coarse_bounds(const CoarseDoubt& doubt, const CoarseFound& found, Index of, double* own);

/// D . (o^M - v) and ||o^M - v||^2 of n rows from the differences themselves; v is `step` numbers on from one
/// row to the next.
void differences(const double* current, const double* change, Index n, Index width, const double* v,
                 Index step, double* change_dot, double* square);

}  // namespace kvreplay
