#pragma once

#include "analysis/channels/channel_columns.hpp"
#include "analysis/channels/channel_plan.hpp"
#include "analysis/results/scoped_figures.hpp"
#include "analysis/run/stage.hpp"

#include <array>
#include <optional>
#include <string_view>

namespace kvreplay {

/// The metrics of channels.csv, in the order of export. Definitions: sim/channels/CHANNELS.md.
enum class ChannelMetric {
  reconstruction_error,
  relative_reconstruction_error,
  reconstruction_gain,
  lower_bound,
  proven,
  output_error,
  output_gain,
  layer_output_error,
  layer_output_gain,
  bytes
};
inline constexpr std::array kChannelMetrics{ChannelMetric::reconstruction_error,
                                            ChannelMetric::relative_reconstruction_error,
                                            ChannelMetric::reconstruction_gain,
                                            ChannelMetric::lower_bound,
                                            ChannelMetric::proven,
                                            ChannelMetric::output_error,
                                            ChannelMetric::output_gain,
                                            ChannelMetric::layer_output_error,
                                            ChannelMetric::layer_output_gain,
                                            ChannelMetric::bytes};
std::string_view name_of(ChannelMetric metric);

/// The figures of all heads, read as the metrics of channels.csv.
class ChannelTable {
 public:
  ChannelTable(const ChannelPlan& plan, const ChannelColumns& columns, const HeadFigures& figures,
               bool with_layer_output);

  /// Empty where the metric is not there for such a scope, rows and case; nan where it has no value.
  std::optional<double> value(std::size_t which, Scope scope, ChannelMetric metric, RowSet rows) const;
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
  std::optional<double> gain(std::size_t which, Scope scope, ChannelMetric error, RowSet rows) const;
  std::optional<double> layer_output_error(std::size_t which, Scope scope, RowSet rows) const;
  bool bounded(std::size_t which, RowSet rows) const;
  std::size_t write_channels(const ResultFolder& folder) const;
  void write_maps(const ResultFolder& folder) const;

  const ChannelPlan& plan_;
  const ChannelColumns& columns_;
  const HeadFigures& figures_;
  ScopedFigures scoped_;
  bool with_layer_output_;
};

}  // namespace kvreplay
