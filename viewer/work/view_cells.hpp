#pragma once

#include "viewer/work/entry_tiles.hpp"

#include <memory>
#include <vector>

namespace kvreplay::viewer {

/// Query heads that a view adds up: [begin, end) of 0..G-1.
RowRange heads_of(const EntryView& view, Index G);

/// Some rows after their softmax, one entry for each query head of the view.
using HeadRows = std::vector<std::shared_ptr<const EntryRows<float>>>;

/// The same rows of the map that is shown and of the one that is subtracted, where there is one.
struct RowsOfMaps {
  HeadRows shown, minus = {};
};

/// Cells of a view, some rows and tokens at a time. For one thread.
class ViewCells {
 public:
  /// Rows that are computed as quickly together as one alone.
  static Index rows_at_once();

  /// Of another run's map, `minus`, the same cells are subtracted; null: none are.
  ViewCells(const EntryMap<float>& map, const EntryView& view, JobControl& job,
            const EntryMap<float>* minus = nullptr);

  /// Tokens of which rows_at_once() rows are some milliseconds of work.
  Index tokens_at_once() const { return at_once_; }
  /// The cells of the rows with numbers [begin, end) of `rows` for the positions `tokens`: [end - begin,
  /// tokens], NaN where hidden. Good until the next call. Throws Interrupted where the job is cancelled,
  /// InputError where a number overflows.
  const std::vector<float>& cells(const RowsOfMaps& rows, Index begin, Index end, RowRange tokens);

 private:
  const std::vector<float>& own_cells(const HeadRows& rows, Index begin, Index end, RowRange tokens);
  const std::vector<float>& compared_cells(const HeadRows& rows, Index begin, Index end, RowRange tokens);
  const std::vector<float>& rank_cells(const HeadRows& rows, Index begin, Index end, RowRange tokens);
  void sum_over_heads(const HeadRows& rows, EntryTerm entry, RowRange take, RowRange tokens,
                      std::vector<float>& sum);

  const EntryMap<float>& map_;
  const EntryView& view_;
  JobControl& job_;
  Index at_once_;
  std::vector<float> shown_, other_, term_;  // [rows, tokens]
  // Of ranks: the rows that were ranked last, over all tokens that they see.
  std::shared_ptr<const EntryRows<float>> ranked_;
  Index ranked_begin_ = 0, ranked_end_ = 0;
  RowRange seen_;
  std::vector<float> ranks_;  // [rows, seen]
  std::unique_ptr<ViewCells> minus_;
};

}  // namespace kvreplay::viewer
