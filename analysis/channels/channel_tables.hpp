#pragma once

#include "analysis/channels/channel_columns.hpp"
#include "analysis/channels/channel_plan.hpp"
#include "analysis/results/schema.hpp"
#include "analysis/results/scoped_figures.hpp"
#include "analysis/run/stage.hpp"

#include <optional>

namespace kvreplay {

/// The figures of all heads, read as those of channels.csv.
class ChannelTable {
 public:
  ChannelTable(const ChannelPlan& plan, const ChannelColumns& columns, const HeadFigures& figures,
               bool with_layer_output);

  /// Empty where the figure is not there for such a scope, rows and case; nan where it has no value.
  std::optional<double> value(std::size_t which, Scope scope, ChannelFigure figure, RowSet rows) const;
  /// off_diagonal_share and rope_pair_share: means over the heads in scope.
  double share(Scope scope, ChannelColumns::Head figure) const {
    return scoped_.mean(scope, columns_.of(figure));
  }
  /// Channels that a case prunes of every head in scope; empty where they differ.
  std::optional<Index> pruned(std::size_t which, Scope scope) const;
  bool has_pairs() const;
  /// The rows that errors are best reported on: the future where there is one.
  RowSet best_rows() const { return plan_.future.count() > 0 ? RowSet::future : RowSet::window; }

  /// channels.csv, maps/; the number of rows of channels.csv.
  std::size_t write(const ResultFolder& folder) const;
  /// output_error of the whole model, by case.
  Json totals() const;

 private:
  double sum(Scope scope, Index column) const { return scoped_.sum(scope, column); }
  std::optional<double> gain(std::size_t which, Scope scope, ChannelFigure error, RowSet rows) const;
  std::optional<double> layer_output_error(std::size_t which, Scope scope, RowSet rows) const;
  bool bounded(std::size_t which) const;
  std::size_t write_channels(const ResultFolder& folder) const;
  void write_maps(const ResultFolder& folder) const;

  const ChannelPlan& plan_;
  const ChannelColumns& columns_;
  const HeadFigures& figures_;
  ScopedFigures scoped_;
  bool with_layer_output_;
};

}  // namespace kvreplay
