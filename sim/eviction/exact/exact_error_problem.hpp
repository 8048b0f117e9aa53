#pragma once

#include "sim/eviction/exact/exact_error_row.hpp"
#include "sim/head_group.hpp"
#include "sim/kept_set.hpp"
#include "sim/row_range.hpp"
#include "sim/schedule.hpp"

#include <algorithm>
#include <new>
#include <vector>

namespace kvreplay {

/// Numbers that start on a cache line, so that no vector of them lies across two.
template <class T>
struct OnCacheLine {
  using value_type = T;
  static constexpr std::align_val_t kLine{64};
  OnCacheLine() = default;
  template <class U>
  OnCacheLine(const OnCacheLine<U>&) {}
  T* allocate(std::size_t n) { return static_cast<T*>(::operator new(n * sizeof(T), kLine)); }
  void deallocate(T* p, std::size_t) { ::operator delete(p, kLine); }
  bool operator==(const OnCacheLine&) const { return true; }
};
using Numbers = std::vector<double, OnCacheLine<double>>;

/// What every search by the exact error starts from. Vectors are padded to a multiple of kErrorPad.
struct ErrorProblem {
  /// `gradients`, of all `rows`: errors are weighed by them; null: they are not.
  ErrorProblem(const HeadGroup<double>& group, RowRange rows, const KeptSet& kept_set,
               const RowGradients<double>* gradients = nullptr);

  Index l, T;
  double scale, softcap;             ///< softcap 0: none
  Index width, key_width, kept = 0;  ///< of values, of keys; |M|
  std::vector<Index> position;       ///< of a column; the columns of M come first
  std::vector<Index> column;         ///< of a position
  Numbers keys, values;              ///< [T][..] by column, then the decoded positions; values less `centre`
  Numbers centre;                    ///< [width], the mean value
  Numbers queries;                   ///< [rows][key_width]
  /// The rows that see a candidate: for the others no kept set makes a difference. `end` is not yet cut to
  /// the candidates, and all the rest not yet known.
  std::vector<ErrorRowState> rows;
  std::vector<double> sink;  ///< [rows] sink logit, -inf: none
  Index samples = 0;         ///< S, padded as vectors are
  Numbers gradients;         ///< [rows][S][width], times sqrt(1 / (2 S))
};

/// So many blocks of columns have about so many entries of all rows.
inline Index blocks_of_entries(Index entries, Index rows) {
  return std::max<Index>(entries / (kErrorBlock * std::max<Index>(rows, 1)), 1);
}

/// Runs body(first block, number of blocks) over the blocks of `columns` columns, `at_once` to a work item.
template <class Body>
void for_column_blocks(Index columns, Index at_once, Workers& workers, const Body& body) {
  const Index blocks = div_up(columns, kErrorBlock);
  workers.parallel_for(div_up(blocks, at_once), [&](Index item) {
    const Index begin = item * at_once;
    body(begin, std::min(at_once, blocks - begin));
  });
}

}  // namespace kvreplay
