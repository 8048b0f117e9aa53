#include "analysis/channels/channel_report.hpp"

#include <fmt/format.h>

#include <algorithm>

namespace kvreplay {
namespace {

std::string cell(const ChannelTable& table, std::size_t which, ChannelMetric error, ChannelMetric gain,
                 RowSet rows) {
  std::string text = fmt::format("{:.3g}", *table.value(which, {}, error, rows));
  if (const auto over = table.value(which, {}, gain, rows)) text += fmt::format(" ({:+.0f} %)", 100 * *over);
  return text;
}

std::string table_of(const ChannelPlan& plan, const ChannelTable& table, ChannelMetric error,
                     ChannelMetric gain, RowSet rows) {
  std::size_t width = 6;
  for (const ChannelRule& rule : plan.rules) width = std::max(width, rule.name.size());
  std::string text = fmt::format("{:{}}", "method", width);
  for (const double ratio : plan.ratios) text += fmt::format("  {:>18}", fmt::format("{:g} pruned", ratio));
  text += '\n';
  for (std::size_t r = 0; r < plan.rules.size(); ++r) {
    text += fmt::format("{:{}}", plan.rules[r].name, width);
    for (std::size_t c = 0; c < plan.cases.size(); ++c)
      if (plan.cases[c].rule == r) text += fmt::format("  {:>18}", cell(table, c, error, gain, rows));
    text += '\n';
  }
  return text;
}

}  // namespace

std::string channel_report(const ChannelPlan& plan, const ChannelTable& table) {
  const bool compared = table.value(0, {}, ChannelMetric::output_gain, RowSet::window).has_value();
  const char* brackets = compared ? " (in brackets: the share of think's error that it saves)" : "";
  return fmt::format(
      "{:.0f} % of the interaction between channels lies off the diagonal (mean over heads)\n\n"
      "relative reconstruction error of the logits on the window rows{}\n{}\n"
      "output error over all heads on the {} rows\n{}",
      100 * table.share({}, ChannelColumns::off_diagonal_share), brackets,
      table_of(plan, table, ChannelMetric::relative_reconstruction_error, ChannelMetric::reconstruction_gain,
               RowSet::window),
      name_of(table.best_rows()),
      table_of(plan, table, ChannelMetric::output_error, ChannelMetric::output_gain, table.best_rows()));
}

}  // namespace kvreplay
