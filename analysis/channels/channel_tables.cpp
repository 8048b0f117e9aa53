#include "analysis/channels/channel_stage.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <span>
#include <vector>

namespace kvreplay {

namespace {

using C = ChannelColumns;
struct Share {
  ChannelFigure figure;
  C::Head column;
};
constexpr std::array kShares{Share{ChannelFigure::off_diagonal_share, C::off_diagonal_share},
                             Share{ChannelFigure::rope_pair_share, C::rope_pair_share}};

}  // namespace

std::optional<double> ChannelTable::gain(std::size_t which, Scope scope, ChannelFigure error,
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

std::optional<double> ChannelTable::value(std::size_t which, Scope scope, ChannelFigure figure,
                                          RowSet rows) const {
  const bool window = rows == RowSet::window;
  const FigureFacts& facts = facts_of(figure);
  if (scoped_.empty() || !facts.rows.has(rows) || !facts.levels.has(level_of(scope))) return std::nullopt;
  if (rows == RowSet::future && plan_.future.count() == 0) return std::nullopt;
  const auto reconstruction = [&] {
    return sum(scope, columns_.of(which, window ? C::window_reconstruction : C::future_reconstruction));
  };
  switch (figure) {
    case ChannelFigure::off_diagonal_share:
    case ChannelFigure::rope_pair_share:
      return std::nullopt;  // of no case
    case ChannelFigure::reconstruction_error:
      return reconstruction();
    case ChannelFigure::relative_reconstruction_error:
      return relative_error(reconstruction(), sum(scope, columns_.of(which, window ? C::window_logits_sq
                                                                                   : C::future_logits_sq)));
    case ChannelFigure::reconstruction_gain:
      return gain(which, scope, ChannelFigure::reconstruction_error, rows);
    case ChannelFigure::lower_bound:
      if (!plan_.bounds(plan_.cases[which])) return std::nullopt;
      return sum(scope, columns_.of(which, C::lower_bound));
    case ChannelFigure::proven:
      if (!plan_.bounds(plan_.cases[which])) return std::nullopt;
      return scoped_.mean(scope, columns_.of(which, C::proven));
    case ChannelFigure::output_error:
      return output_error(which, scope, rows);
    case ChannelFigure::layer_output_error:
      return layer_output_error(which, scope, rows);
    case ChannelFigure::output_gain:
      return gain(which, scope, ChannelFigure::output_error, rows);
    case ChannelFigure::layer_output_gain:
      return gain(which, scope, ChannelFigure::layer_output_error, rows);
    case ChannelFigure::bytes:
      return sum(scope, columns_.of(which, C::bytes));
    case ChannelFigure::loss_row:
    case ChannelFigure::loss_head:
    case ChannelFigure::loss_layer:
    case ChannelFigure::loss_step:
    case ChannelFigure::loss_joint:
    case ChannelFigure::dnll:
      return loss(which, scope, name_of(figure), rows);
  }
  return std::nullopt;
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
  TableWriter csv(folder, Table::channels);
  for (const Scope scope : scoped_.scopes()) {
    const auto begin = [&](const ChannelSetting& setting) -> TableWriter& {
      csv.at(scoped_.layer_of(scope), scope.head);
      return csv.set("semantics", name_of(setting.semantics)).set("recent", setting.recent);
    };
    begin(plan_.setting).set("rows", name_of(RowSet::window));
    for (const Share& share : kShares)
      if (has_pairs() || share.figure != ChannelFigure::rope_pair_share)
        csv.add(share.figure, this->share(scope, share.column));
    for (std::size_t c = 0; c < plan_.cases.size(); ++c) {
      const ChannelCase& which = plan_.cases[c];
      begin(plan_.setting_of(which))
          .set("method", plan_.rules[which.rule].name)
          .set("ratio", which.ratio_label);
      if (const auto channels = pruned(c, scope)) csv.set("pruned", *channels);
      for (const ChannelFigure figure : kChannelFigures.all())
        for (const RowSet rows : kRowSets)
          if (const auto found = value(c, scope, figure, rows))
            csv.set("rows", name_of(rows)).add(figure, *found);
    }
  }
  return csv.finish();
}

void ChannelTable::write_maps(const ResultFolder& folder) const {
  for (const Share& share : kShares)
    if (has_pairs() || share.figure != ChannelFigure::rope_pair_share)
      write_map_of(folder,
                   {.table = Table::channels,
                    .figure = std::string(name_of(share.figure)),
                    .against = std::string(name_of(RowSet::window))},
                   [&](Scope scope) { return std::optional(this->share(scope, share.column)); });
  for (std::size_t c = 0; c < plan_.cases.size(); ++c)
    write_maps_of(
        folder, Table::channels, kChannelFigures, plan_.cases[c].file_name,
        [&](Scope scope, ChannelFigure figure, RowSet rows) { return value(c, scope, figure, rows); });
}

std::size_t ChannelTable::write(const ResultFolder& folder) const {
  const std::size_t rows = write_channels(folder);
  write_maps(folder);
  return rows;
}

Json ChannelTable::totals() const {
  Json errors = Json::object();
  for (std::size_t c = 0; c < plan_.cases.size(); ++c)
    if (const auto found = value(c, {}, ChannelFigure::output_error, best_rows()))
      errors[plan_.cases[c].file_name] = *found;
  return errors;
}

namespace {

std::string whole_percent(double share) { return fmt::format("{:.0f} %", 100 * share); }

std::string cell(const ChannelTable& table, std::size_t which, ChannelFigure error, ChannelFigure gain,
                 RowSet rows) {
  std::string text =
      with_median_head(*table.value(which, {}, error, rows), table.median_head(which, error, rows));
  if (const auto over = table.value(which, {}, gain, rows); over && !std::isnan(*over))
    text += fmt::format(" ({:+.0f} %)", 100 * *over);
  return text;
}

std::string table_of(const ChannelPlan& plan, const ChannelTable& table, ChannelFigure error,
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
      if (plan.cases[c].rule == r) text += fmt::format("  {:>28}", cell(table, c, error, gain, rows));
    text += '\n';
  }
  return text;
}

/// The methods that prune fewer channels than a ratio asks for.
std::string fewer_pruned(const ChannelPlan& plan, const ChannelTable& table) {
  std::vector<std::string> names;
  for (std::size_t c = 0; c < plan.cases.size(); ++c) {
    const std::string& name = plan.rules[plan.cases[c].rule].name;
    if (table.pruned(c, {}) != plan.cases[c].pruned && (names.empty() || names.back() != name))
      names.push_back(name);
  }
  return names.empty() ? ""
                       : fmt::format("fewer channels pruned than asked for: {}\n", fmt::join(names, ", "));
}

std::string bounds(const ChannelPlan& plan, const ChannelTable& table) {
  double proven = 0, error = 0, bound = 0, ratios = 0;
  for (std::size_t c = 0; c < plan.cases.size(); ++c)
    if (const auto share = table.value(c, {}, ChannelFigure::proven, RowSet::window)) {
      ratios += 1;
      proven += *share;
      error += *table.value(c, {}, ChannelFigure::reconstruction_error, RowSet::window);
      bound += *table.value(c, {}, ChannelFigure::lower_bound, RowSet::window);
    }
  if (ratios == 0) return "";
  std::string text =
      fmt::format("convex: proven for {} of the heads and ratios", whole_percent(proven / ratios));
  if (error > bound && bound > 0)
    text += fmt::format("; all together at most {:.2g} % above the optimum", 100 * (error / bound - 1));
  return text + '\n';
}

}  // namespace

std::string channel_report(const ChannelPlan& plan, const ChannelTable& table) {
  std::string text = fmt::format("interaction between channels: {} of it off the diagonal",
                                 whole_percent(table.share({}, ChannelColumns::off_diagonal_share)));
  if (table.has_pairs())
    text += fmt::format(", {} of that within rotation pairs",
                        whole_percent(table.share({}, ChannelColumns::rope_pair_share)));
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
