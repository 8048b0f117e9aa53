#pragma once

#include "sim/cuda/runtime.hpp"
#include "sim/eviction/exact/exact_error_row.hpp"

// The exact error of sim/eviction/exact/exact_error.hpp on a device, in float64. All that a search keeps lies
// there, and nothing of it comes back but what is asked for. A move is five launches, none of which waits for
// the host; R = G |rows|:
//
//   choose    near-ties for the best removal: 20 |M| bytes for each and once more, from the L2 cache; a block
//   compare   each of them precisely, where there are several: 16 R d_v bytes
//   take      the best one; its column changes place with another; a block
//   rows      every row's softmax, output and D: R (8 d + 56 d_v) bytes; a block a row
//   scan      every column's change: 24 R + 8 d_v bytes a column, 8 R written; a block a tile of columns
//
// A greedy step is that and no more; what exchange() tries is the same, and a copy of kErrorReports numbers
// that the host waits for.

namespace kvreplay::cuda {

/// Columns that are kept together, [tile][row][3][kErrorTile].
inline constexpr int kErrorTile = 32;

/// Results that the host reads: report[..].
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

/// Computes everything that does not depend on M, for all rows and columns.
void start_rows(const ErrorTable& table, const Stream& stream);
/// Computes everything that depends on M, from M alone.
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
/// Writes the removal that choose_removal() found to `report` and, where not null, to *evicted. With `to` >=
/// 0, its column changes place with column `to`.
void take_removal(const ErrorTable& table, const double* error, int to, int* evicted, const Stream& stream);
/// A position's column changes place with `to`.
void take_position(const ErrorTable& table, int position, int to, const Stream& stream);

}  // namespace kvreplay::cuda
