#pragma once

#include "sim/cuda/runtime.hpp"
#include "sim/eviction/exact_error_row.hpp"

// The exact error of sim/eviction/exact_error.hpp on a device, in float64. All that a search keeps lies
// there, and nothing of it comes back but what is asked for. A move is
//
//   choose          near-ties for the best removal            16 |M| bytes, some times over, from the L2
//   cache compare         each of them precisely, where several     16 rows d_v bytes each take the best of
//   them; its column changes place with another move_rows       every row's softmax, output and D         (8
//   d + 48 d_v) rows bytes scan_columns    every column's change                     (24 rows + 8 d_v) bytes
//   a column, 8 rows written
//
// five launches, none of which needs an answer from the one before on the host. One block does choose and
// take, a block each row move_rows, a block each tile of columns scan_columns.

namespace kvreplay::cuda {

/// Columns that are kept together, [tile][row][3][kErrorTile].
inline constexpr int kErrorTile = 32;

/// What the host asks for: report[..].
enum ErrorReport {
  kSetError,      ///< E(M)
  kTriedError,    ///< E of the set that was last tried
  kBestPosition,  ///< the best removal, and the E that it leaves
  kBestError,
  kErrorReports
};

/// Pointers are to device memory.
struct ErrorTable {
  int rows, l, T, width, key_width;
  double scale, softcap;                          ///< softcap 0: none
  double *keys, *values;                          ///< [T][..] by column, then the decoded positions
  double* value_sq;                               ///< [l]
  const double *queries, *centre, *zeros, *sink;  ///< [rows][key_width], [width], [width], [rows]
  int *position, *column;                         ///< of a column, of a position: [l]
  double *out, *rest, *removed, *fixed;           ///< [rows][width], as ExactError has them
  double *current, *moved;                        ///< [rows][width]: o^M and D
  double* entries;                                ///< [tiles][rows][3][kErrorTile]
  double *change, *extent;                        ///< [tiles kErrorTile]
  ErrorRowState* state;                           ///< [rows]
  OutputTerms* terms;                             ///< [rows]
  ErrorRow* scan;                                 ///< [rows]
  int* top_column;                                ///< [rows], -1: none
  int* swapped;                                   ///< the two columns that take() exchanged
  int *near_count, *near_column;                  ///< [1], [kLookedAt]
  double* near_change;                            ///< [kLookedAt]
  double* report;                                 ///< [kErrorReports]
};

/// A column: its own number, or, where that is below 0, a position's; neither: none.
struct ErrorToken {
  int column, position;
};

enum class RowMove { remove, insert, try_insertion };

/// What no kept set changes, of all rows and columns.
void start_rows(const ErrorTable& table, const Stream& stream);
/// All that depends on M, from nothing but M.
void sum_rows(const ErrorTable& table, int kept, const Stream& stream);
/// A token leaves or enters M, `kept` tokens then; its column was exchanged before. Where an insertion is
/// only tried, `kept` does not count it, and rows keep their sums.
void move_rows(const ErrorTable& table, RowMove what, ErrorToken token, int kept, const Stream& stream);
/// The sum of ||D||^2 to *error, and the changes of the first `columns` columns from there; `store` as
/// error_changes() has it.
void scan_columns(const ErrorTable& table, ErrorToken token, int columns, bool store, double* error,
                  const Stream& stream);
/// The best removal from the first `kept` columns, given *error.
void choose_removal(const ErrorTable& table, int kept, const double* error, const Stream& stream);
/// That removal to `report` and, where not null, *evicted. With `to` >= 0 its column changes place with `to`.
void take_removal(const ErrorTable& table, const double* error, int to, int* evicted, const Stream& stream);
/// A position's column changes place with `to`.
void take_position(const ErrorTable& table, int position, int to, const Stream& stream);

}  // namespace kvreplay::cuda
