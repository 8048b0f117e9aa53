#include "analysis/channels/channel_stage.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace kvreplay {

namespace {

using C = ChannelColumns;

/// Shares of think's error that a method saves.
constexpr std::pair<ChannelFigure, ChannelFigure> kGains[] = {
    {ChannelFigure::reconstruction_gain, ChannelFigure::reconstruction_error},
    {ChannelFigure::output_gain, ChannelFigure::output_error},
    {ChannelFigure::layer_output_gain, ChannelFigure::layer_output_error}};
class ChannelFigures : public MeasuredTable<ChannelPlan, ChannelColumns> {
 public:
  using MeasuredTable::MeasuredTable;

  MetricTable table() const {
    MetricTable table = table_of(Table::channels);
    if (scoped_.empty()) return table;
    const auto& setting = plan_.setting;
    for (const auto& [metric, column] : {std::pair(ChannelFigure::off_diagonal_share, C::off_diagonal_share),
                                         std::pair(ChannelFigure::rope_pair_share, C::rope_pair_share)})
      if (metric != ChannelFigure::rope_pair_share || has_pairs())
        table
            .add(
                {"", std::string(name_of(setting.semantics)), "", fmt::format("{}", setting.recent),
                 std::string(name_of(RowSet::window)), std::string(name_of(metric))},
                [&, of = column](Scope scope) { return std::optional(scoped_.mean(scope, columns_.of(of))); })
            .map = name_of(metric);
    for (std::size_t c = 0; c < plan_.cases.size(); ++c) {
      const ChannelCase& which = plan_.cases[c];
      const ChannelSetting own = plan_.setting_of(which);
      table.add_case(
          kChannelFigures,
          {plan_.rules[which.rule].name, std::string(name_of(own.semantics)), which.ratio_label,
           fmt::format("{}", own.recent)},
          which.file_name, table.at_scopes([&](Scope scope) { return pruned(c, scope); }),
          [&](Scope scope, ChannelFigure metric, RowSet rows) { return value(c, scope, metric, rows); });
    }
    return table;
  }

 private:
  bool has_pairs() const {
    return std::ranges::find(plan_.left_out, name_of(ChannelFigure::rope_pair_share), &LeftOut::what) ==
           plan_.left_out.end();
  }
  /// Channels that a case prunes of every head in scope; empty where they differ.
  std::optional<double> pruned(std::size_t which, Scope scope) const {
    const auto channels = scoped_.common(scope, columns_.of(which, C::pruned));
    return channels && *channels == std::floor(*channels) ? channels : std::nullopt;
  }
  /// Empty where the metric is not there for such a scope, rows and case; nan where it has no value.
  std::optional<double> value(std::size_t which, Scope scope, ChannelFigure metric, RowSet rows) const {
    const FigureFacts& facts = facts_of(metric);
    if (!facts.rows.has(rows) || !facts.levels.has(level_of(scope))) return std::nullopt;
    if (rows == RowSet::future && plan_.future.count() == 0) return std::nullopt;
    if (metric == ChannelFigure::off_diagonal_share || metric == ChannelFigure::rope_pair_share)
      return std::nullopt;  // of no case
    if (metric == ChannelFigure::lower_bound || metric == ChannelFigure::proven)
      if (!plan_.bounds(plan_.cases[which])) return std::nullopt;
    if (metric == ChannelFigure::relative_reconstruction_error)
      return relative_error(
          kept_number(which, scope, ChannelFigure::reconstruction_error, rows),
          sum(scope, columns_.of(which, rows == RowSet::window ? C::window_logits_sq : C::future_logits_sq)));
    if (metric == ChannelFigure::output_error) return output_error(which, scope, rows);
    if (metric == ChannelFigure::layer_output_error) return layer_output_error(which, scope, rows);
    for (const auto& [saved, error] : kGains)
      if (metric == saved) return gain(which, scope, error, rows);
    return facts.over_heads == HeadTotal::formed ? loss(which, scope, facts.name, rows)
                                                 : kept_number(which, scope, metric, rows);
  }
  std::optional<double> gain(std::size_t which, Scope scope, ChannelFigure error, RowSet rows) const {
    const auto think = plan_.think_at(which);
    // Sets of different sizes do not compare.
    if (!think || sum(scope, columns_.of(which, C::pruned)) != sum(scope, columns_.of(*think, C::pruned)))
      return std::nullopt;
    const auto found = value(which, scope, error, rows);
    if (!found) return std::nullopt;
    const double mine = *found, reference = *value(*think, scope, error, rows);
    if (mine == reference) return 0.0;
    return reference > 0 ? (reference - mine) / reference : kNan;
  }
};

}  // namespace

MetricTable channel_table(const ChannelPlan& plan, const ChannelColumns& columns, const HeadFigures& figures,
                          bool with_layer_output) {
  return ChannelFigures(plan, columns, figures, with_layer_output).table();
}

namespace {

std::string whole_percent(double share) { return fmt::format("{:.0f} %", 100 * share); }

/// Null where the table has no such metric.
const MetricEntry* entry_of(const ChannelPlan& plan, const MetricTable& table, std::size_t which,
                            ChannelFigure metric, RowSet rows) {
  return table.of_case(plan.cases[which].file_name, name_of(metric), rows);
}

std::string cell(const ChannelPlan& plan, const MetricTable& table, std::size_t which, ChannelFigure error,
                 ChannelFigure gain, RowSet rows) {
  const MetricEntry& found = *entry_of(plan, table, which, error, rows);
  std::string text = with_median_head(found.model, median(found.heads));
  if (const MetricEntry* over = entry_of(plan, table, which, gain, rows); over && !std::isnan(over->model))
    text += fmt::format(" ({:+.0f} %)", 100 * over->model);
  return text;
}

std::string table_of(const ChannelPlan& plan, const MetricTable& table, ChannelFigure error,
                     ChannelFigure gain, RowSet rows) {
  std::size_t width = 6;
  for (const ChannelRule& rule : plan.rules) width = std::max(width, rule.name.size());
  std::string text = fmt::format("{:{}}", "method", width);
  for (std::size_t r = 0; r < plan.ratios.size(); ++r)
    text += fmt::format("  {:>28}",
                        fmt::format("{} ({} pruned)", plan.cases[r].ratio_label, plan.cases[r].pruned));
  text += '\n';
  for (std::size_t r = 0; r < plan.rules.size(); ++r) {
    text += fmt::format("{:{}}", plan.rules[r].name, width);
    for (std::size_t c = 0; c < plan.cases.size(); ++c)
      if (plan.cases[c].rule == r) text += fmt::format("  {:>28}", cell(plan, table, c, error, gain, rows));
    text += '\n';
  }
  return text;
}

/// The methods that prune fewer channels than a ratio asks for.
std::string fewer_pruned(const ChannelPlan& plan, const MetricTable& table) {
  std::vector<std::string> names;
  for (std::size_t c = 0; c < plan.cases.size(); ++c) {
    const std::string& name = plan.rules[plan.cases[c].rule].name;
    const double pruned = entry_of(plan, table, c, ChannelFigure::output_error, RowSet::window)->kept->model;
    if (pruned != static_cast<double>(plan.cases[c].pruned) && (names.empty() || names.back() != name))
      names.push_back(name);
  }
  return names.empty() ? ""
                       : fmt::format("fewer channels pruned than asked for: {}\n", fmt::join(names, ", "));
}

std::string bounds(const ChannelPlan& plan, const MetricTable& table) {
  double proven = 0, error = 0, bound = 0, ratios = 0;
  for (std::size_t c = 0; c < plan.cases.size(); ++c)
    if (const auto* const share = entry_of(plan, table, c, ChannelFigure::proven, RowSet::window)) {
      ratios += 1;
      proven += share->model;
      error += entry_of(plan, table, c, ChannelFigure::reconstruction_error, RowSet::window)->model;
      bound += entry_of(plan, table, c, ChannelFigure::lower_bound, RowSet::window)->model;
    }
  if (ratios == 0) return "";
  std::string text =
      fmt::format("convex: proven for {} of the heads and ratios", whole_percent(proven / ratios));
  if (error > bound && bound > 0)
    text += fmt::format("; all together at most {:.2g} % above the optimum", 100 * (error / bound - 1));
  return text + '\n';
}

}  // namespace

std::string channel_report(const ChannelPlan& plan, const MetricTable& table) {
  const auto share = [&](ChannelFigure metric) { return table.find({{"metric", name_of(metric)}}); };
  std::string text = fmt::format("interaction between channels: {} of it off the diagonal",
                                 whole_percent(share(ChannelFigure::off_diagonal_share)->model));
  if (const MetricEntry* const pairs = share(ChannelFigure::rope_pair_share))
    text += fmt::format(", {} of that within rotation pairs", whole_percent(pairs->model));
  text += " (means over heads)\n";
  if (plan.think_at(0)) text += "in brackets: the share of think's error that a method saves\n";
  text += fmt::format("\nrelative reconstruction error of the logits {} on the window rows\n", kOverHeads) +
          table_of(plan, table, ChannelFigure::relative_reconstruction_error,
                   ChannelFigure::reconstruction_gain, RowSet::window);
  for (const RowSet rows : {RowSet::window, RowSet::future})
    if (rows == RowSet::window || plan.future.count() > 0)
      text += fmt::format("\noutput error {} on the {} rows\n", kOverHeads, name_of(rows)) +
              table_of(plan, table, ChannelFigure::output_error, ChannelFigure::output_gain, rows);
  const std::string remarks = fewer_pruned(plan, table) + bounds(plan, table);
  return text + (remarks.empty() ? "" : "\n" + remarks);
}

}  // namespace kvreplay
