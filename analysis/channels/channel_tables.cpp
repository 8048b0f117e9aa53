#include "analysis/channels/channel_tables.hpp"

#include "data/npy_write.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <span>
#include <vector>

namespace kvreplay {
namespace {

using C = ChannelColumns;
constexpr std::array kRowSets{RowSet::window, RowSet::future, RowSet::none};
struct Share {
  C::Head figure;
  const char* name;
};
constexpr std::array kShares{Share{C::off_diagonal_share, "off_diagonal_share"},
                             Share{C::rope_pair_share, "rope_pair_share"}};

}  // namespace

std::string_view name_of(ChannelMetric metric) {
  constexpr std::array<std::string_view, kChannelMetrics.size()> names{"reconstruction_error",
                                                                       "relative_reconstruction_error",
                                                                       "reconstruction_gain",
                                                                       "lower_bound",
                                                                       "proven",
                                                                       "output_error",
                                                                       "output_gain",
                                                                       "layer_output_error",
                                                                       "layer_output_gain",
                                                                       "bytes"};
  return names[static_cast<std::size_t>(metric)];
}

ChannelTable::ChannelTable(const ChannelPlan& plan, const ChannelColumns& columns, const HeadFigures& figures,
                           bool with_layer_output)
    : plan_(plan),
      columns_(columns),
      figures_(figures),
      scoped_(figures),
      with_layer_output_(with_layer_output) {}

std::optional<double> ChannelTable::gain(std::size_t which, Scope scope, ChannelMetric error,
                                         RowSet rows) const {
  const auto think = plan_.think_at(which);
  // Sets of different sizes do not compare.
  if (!think || sum(scope, columns_.of(which, C::pruned)) != sum(scope, columns_.of(*think, C::pruned)))
    return std::nullopt;
  const auto found = value(which, scope, error, rows);
  if (!found) return std::nullopt;
  const double mine = *found, reference = *value(*think, scope, error, rows);
  if (mine == reference) return 0.0;
  return reference > 0 ? (reference - mine) / reference : std::numeric_limits<double>::quiet_NaN();
}

std::optional<double> ChannelTable::layer_output_error(std::size_t which, Scope scope, RowSet rows) const {
  if (!with_layer_output_ || !scope.layer || scope.head) return std::nullopt;
  const bool window = rows == RowSet::window;
  const Scope first{scope.layer, 0};  // every head carries its layer's figure
  return relative_error(
      sum(first, columns_.of(which, window ? C::window_layer_change_sq : C::future_layer_change_sq)),
      sum(first, columns_.of(window ? C::window_layer_full_sq : C::future_layer_full_sq)));
}

std::optional<double> ChannelTable::value(std::size_t which, Scope scope, ChannelMetric metric,
                                          RowSet rows) const {
  const bool window = rows == RowSet::window;
  if (scoped_.empty() || (rows == RowSet::none) != (metric == ChannelMetric::bytes)) return std::nullopt;
  if (rows == RowSet::future && plan_.future.count() == 0) return std::nullopt;
  const auto reconstruction = [&] {
    return sum(scope, columns_.of(which, window ? C::window_reconstruction : C::future_reconstruction));
  };
  switch (metric) {
    case ChannelMetric::reconstruction_error:
      return reconstruction();
    case ChannelMetric::relative_reconstruction_error:
      return relative_error(reconstruction(),
                            sum(scope, columns_.of(window ? C::window_logits_sq : C::future_logits_sq)));
    case ChannelMetric::reconstruction_gain:
      return gain(which, scope, ChannelMetric::reconstruction_error, rows);
    case ChannelMetric::lower_bound:
      if (!bounded(which, rows)) return std::nullopt;
      return sum(scope, columns_.of(which, C::lower_bound));
    case ChannelMetric::proven:
      if (!bounded(which, rows)) return std::nullopt;
      return scoped_.mean(scope, columns_.of(which, C::proven));
    case ChannelMetric::output_error:
      return relative_error(
          sum(scope, columns_.of(which, window ? C::window_change_sq : C::future_change_sq)),
          sum(scope, columns_.of(window ? C::window_full_sq : C::future_full_sq)));
    case ChannelMetric::layer_output_error:
      return layer_output_error(which, scope, rows);
    case ChannelMetric::output_gain:
      return gain(which, scope, ChannelMetric::output_error, rows);
    case ChannelMetric::layer_output_gain:
      return gain(which, scope, ChannelMetric::layer_output_error, rows);
    case ChannelMetric::bytes:
      return sum(scope, columns_.of(which, C::bytes));
  }
  return std::nullopt;
}

/// A bound is on what the search minimises: in ThinK's code that is not what is measured.
bool ChannelTable::bounded(std::size_t which, RowSet rows) const {
  return rows == RowSet::window && !plan_.per_query_head() &&
         kChannelMethods[plan_.rules[plan_.cases[which].rule].method].proves;
}

std::optional<Index> ChannelTable::pruned(std::size_t which, Scope scope) const {
  const auto channels = scoped_.common(scope, columns_.of(which, C::pruned));
  if (!channels || *channels != std::floor(*channels)) return std::nullopt;
  return static_cast<Index>(*channels);
}

bool ChannelTable::has_pairs() const {
  return std::none_of(plan_.left_out.begin(), plan_.left_out.end(),
                      [](const LeftOut& left) { return left.what == "rope_pair_share"; });
}

std::size_t ChannelTable::write_channels(const ResultFolder& folder) const {
  CsvFile csv(folder.path() / "channels.csv",
              "layer,kv_head,method,semantics,ratio,recent,pruned,rows,metric,value");
  const auto begin_row = [&](Scope scope, std::string_view method) {
    scoped_.add_to(csv, scope);
    csv.add(method).add(name_of(plan_.setting.semantics));
  };
  for (const Scope scope : scoped_.scopes()) {
    for (const Share& share : kShares) {
      if (share.figure == C::rope_pair_share && !has_pairs()) continue;
      begin_row(scope, "");
      csv.add(std::string_view()).add(plan_.setting.recent).add(std::string_view());
      csv.add(name_of(RowSet::window))
          .add(std::string_view(share.name))
          .add(this->share(scope, share.figure));
      csv.end_row();
    }
    for (std::size_t c = 0; c < plan_.cases.size(); ++c)
      for (const ChannelMetric metric : kChannelMetrics)
        for (const RowSet rows : kRowSets) {
          const auto found = value(c, scope, metric, rows);
          if (!found) continue;
          begin_row(scope, plan_.rules[plan_.cases[c].rule].name);
          csv.add(plan_.cases[c].ratio_label).add(plan_.setting.recent);
          const auto channels = pruned(c, scope);
          csv.add(channels ? fmt::format("{}", *channels) : std::string());
          csv.add(name_of(rows)).add(name_of(metric)).add(*found);
          csv.end_row();
        }
  }
  csv.finish();
  return csv.rows();
}

void ChannelTable::write_maps(const ResultFolder& folder) const {
  const std::size_t shape[] = {figures_.layers.size(), static_cast<std::size_t>(figures_.n_kv)};
  const auto write = [&](const std::string& name, const std::vector<double>& map) {
    write_npy(folder.path() / "maps" / (name + ".npy"), shape, std::span<const double>(map));
  };
  // nan for heads without a value; empty where none has one.
  const auto over_heads = [&](const auto& value_of) {
    std::vector<double> map;
    bool any = false;
    for (const Scope scope : scoped_.scopes()) {
      if (!scope.head) continue;
      const std::optional<double> found = value_of(scope);
      map.push_back(found.value_or(std::numeric_limits<double>::quiet_NaN()));
      any = any || found;
    }
    return any ? map : std::vector<double>();
  };
  for (const Share& share : kShares)
    if (!scoped_.empty() && (share.figure != C::rope_pair_share || has_pairs()))
      write(share.name,
            over_heads([&](Scope scope) { return std::optional(this->share(scope, share.figure)); }));
  for (std::size_t c = 0; c < plan_.cases.size(); ++c)
    for (const ChannelMetric metric : kChannelMetrics)
      for (const RowSet rows : {RowSet::window, RowSet::future})
        if (const auto map = over_heads([&](Scope scope) { return value(c, scope, metric, rows); });
            !map.empty())
          write(fmt::format("{}~{}~{}", plan_.cases[c].file_name, name_of(rows), name_of(metric)), map);
}

std::size_t ChannelTable::write(const ResultFolder& folder) const {
  const std::size_t rows = write_channels(folder);
  write_maps(folder);
  return rows;
}

Json ChannelTable::totals() const {
  Json errors = Json::object();
  for (std::size_t c = 0; c < plan_.cases.size(); ++c)
    if (const auto found = value(c, {}, ChannelMetric::output_error, best_rows()))
      errors[plan_.cases[c].file_name] = *found;
  return errors;
}

}  // namespace kvreplay
