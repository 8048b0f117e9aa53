#pragma once

#include "sim/head_group.hpp"
#include "sim/schedule.hpp"
#include "sim/tokens/row_scores.hpp"
#include "sim/tokens/token_metrics.hpp"

#include <cstdint>
#include <memory>
#include <vector>

// Terms of a single row and a single token, which the token metrics sum over rows and query heads: any
// rectangle of them at a time.

namespace kvreplay {

/// Data of some rows of one query head after their softmax. EntryMap itself holds the other data.
template <class T>
struct EntryRows {
  Index g = 0;
  RowRange rows;                       ///< positions: begin, begin + step, .. before end
  Index step = 1;                      ///< positions from one row to the next
  std::vector<T> queries;              ///< [panels][d][W], scale * q; W = kPanelWidth<T> rows to a panel
  std::vector<T> outputs;              ///< [panels][d_v][W], o_i - centre
  std::vector<T> constants;            ///< [panels][kRowConstants][W]
  std::vector<LargestScores> largest;  ///< [rows]

  Index count() const { return std::ssize(largest); }
  Index position(Index row) const { return rows.begin + row * step; }
  std::size_t bytes() const;
};

/// Entries of one head group. Thread safe.
template <class T>
class EntryMap {
 public:
  /// Centres the values: O(T d_v).
  EntryMap(std::shared_ptr<const HeadGroup<T>> group, Workers& workers);
  ~EntryMap();
  EntryMap(EntryMap&&) noexcept;
  EntryMap& operator=(EntryMap&&) noexcept;

  const HeadGroup<T>& group() const;
  /// Number that differs for every EntryMap<T> of this process: for the keys of caches.
  std::uint64_t id() const;
  /// The softmax of every `step`-th of some rows (positions with a query): 4 |rows| T d flops. Throws
  /// InputError where a number overflows T, Interrupted within milliseconds where the workers are stopping.
  EntryRows<T> rows(Index g, RowRange rows, Workers& workers, Index step = 1) const;
  /// Writes one entry of n rows of `of`, those whose positions are in `take`, to out [n][end - begin], for
  /// the positions [begin, end), which may be decoded ones. NaN where the token is hidden from the row,
  /// infinite where the entry is beyond T. An entry has the same bytes whatever else is computed in the call.
  /// Cost: 2 |rows| |tokens| d flops, with an output in the entry 2 |rows| |tokens| d_v more, and about 20 an
  /// entry; nothing for panels of rows that see none of the tokens. Scores keep to the numerics of
  /// METRICS.md, the row's largest column included.
  void entries(const EntryRows<T>& of, EntryTerm entry, RowRange take, Index begin, Index end, T* out) const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

/// Reference: one row of entries from the definitions in float64, exact errors by recomputing the attention:
/// [tokens], NaN where hidden. O(T (d + |tokens| d_v)).
std::vector<double> entries_reference(const HeadGroup<double>& group, Index g, Index i, EntryTerm entry,
                                      const std::vector<Index>& tokens);

}  // namespace kvreplay
