#include "analysis/channels/channel_tables.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace kvreplay {
namespace {

std::string percent(double share) { return fmt::format("{:.0f} %", 100 * share); }

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

std::string proofs(const ChannelPlan& plan, const ChannelTable& table) {
  double proven = 0, error = 0, bound = 0, ratios = 0;
  for (std::size_t c = 0; c < plan.cases.size(); ++c)
    if (const auto share = table.value(c, {}, ChannelFigure::proven, RowSet::window)) {
      ratios += 1;
      proven += *share;
      error += *table.value(c, {}, ChannelFigure::reconstruction_error, RowSet::window);
      bound += *table.value(c, {}, ChannelFigure::lower_bound, RowSet::window);
    }
  if (ratios == 0) return "";
  std::string text = fmt::format("optimal: proven for {} of the heads and ratios", percent(proven / ratios));
  if (error > bound && bound > 0)
    text += fmt::format("; all together at most {:.2g} % above the optimum", 100 * (error / bound - 1));
  return text + '\n';
}

}  // namespace

std::string channel_report(const ChannelPlan& plan, const ChannelTable& table) {
  std::string text = fmt::format("interaction between channels: {} of it off the diagonal",
                                 percent(table.share({}, ChannelColumns::off_diagonal_share)));
  if (table.has_pairs())
    text += fmt::format(", {} of that within rotation pairs",
                        percent(table.share({}, ChannelColumns::rope_pair_share)));
  text += " (means over heads)\n";
  if (plan.think_at(0)) text += "in brackets: the share of think's error that a method saves\n";
  text += fmt::format("\nrelative reconstruction error of the logits {} on the window rows\n", kOverHeads) +
          table_of(plan, table, ChannelFigure::relative_reconstruction_error,
                   ChannelFigure::reconstruction_gain, RowSet::window);
  for (const RowSet rows : {RowSet::window, RowSet::future})
    if (rows == RowSet::window || plan.future.count() > 0)
      text += fmt::format("\noutput error {} on the {} rows\n", kOverHeads, name_of(rows)) +
              table_of(plan, table, ChannelFigure::output_error, ChannelFigure::output_gain, rows);
  const std::string remarks = fewer_pruned(plan, table) + proofs(plan, table);
  return text + (remarks.empty() ? "" : "\n" + remarks);
}

}  // namespace kvreplay
