#pragma once

#include "analysis/channels/channel_plan.hpp"
#include "analysis/measure/measured_columns.hpp"

#include <optional>
#include <string>

namespace kvreplay {

/// The figures of all heads, read as those of channels.csv.
class ChannelTable : public MeasuredTable<ChannelPlan, ChannelColumns> {
 public:
  using MeasuredTable::MeasuredTable;

  /// Empty where the figure is not there for such a scope, rows and case; nan where it has no value.
  std::optional<double> value(std::size_t which, Scope scope, ChannelFigure figure, RowSet rows) const;
  /// The median over the heads.
  double median_head(std::size_t which, ChannelFigure figure, RowSet rows) const {
    return scoped_.median_head([&](Scope scope) { return value(which, scope, figure, rows); });
  }
  /// off_diagonal_share and rope_pair_share: means over the heads in scope.
  double share(Scope scope, ChannelColumns::Head figure) const {
    return scoped_.mean(scope, columns_.of(figure));
  }
  /// Channels that a case prunes of every head in scope; empty where they differ.
  std::optional<Index> pruned(std::size_t which, Scope scope) const;
  bool has_pairs() const;

  /// channels.csv, maps/; the number of rows of channels.csv.
  std::size_t write(const ResultFolder& folder) const;
  /// output_error of the whole model, by case.
  Json totals() const;

 private:
  std::optional<double> gain(std::size_t which, Scope scope, ChannelFigure error, RowSet rows) const;
  std::size_t write_channels(const ResultFolder& folder) const;
  void write_maps(const ResultFolder& folder) const;
};

/// What `channels` says at its end: every method's errors at every ratio, with what it gains over
/// think.
std::string channel_report(const ChannelPlan& plan, const ChannelTable& table);

}  // namespace kvreplay
