#include "analysis/report/over_dumps_sections.hpp"

#include "analysis/report/claims.hpp"
#include "analysis/report/over_dumps_table.hpp"
#include "analysis/report/text.hpp"

#include <fmt/format.h>

#include <algorithm>

namespace kvreplay::report {
namespace {

constexpr const char* kDots =
    " Small dots are the dumps, the large one is their mean, the bar its 95 % confidence interval (cut off "
    "where it ends in an arrow). ";

/// "decoding steps" for "future"; figures without rows are of both.
std::string on_rows(const std::string& rows) { return rows.empty() ? "" : rows_text(rows); }

/// "exact_remove (window)"
std::string against(const OverDumpsTable& table, const MeanEntry& entry) {
  return fmt::format("{} ({})", table.key(entry, "reference"), rows_text(table.key(entry, "rows")));
}

/// What an entry is picked by: its values of these columns, rows in words.
auto by(const OverDumpsTable& table, std::vector<std::string> columns) {
  return [&table, columns = std::move(columns)](const MeanEntry& entry) {
    std::vector<std::string> picks;
    for (const std::string& column : columns)
      picks.push_back(column == "rows" ? on_rows(table.key(entry, column)) : table.key(entry, column));
    return picks;
  };
}

/// Whether an entry has this value.
auto has(const OverDumpsTable& table, const char* column, const char* value) {
  return [&table, column, value](const MeanEntry& entry) { return table.key(entry, column) == value; };
}

/// Adds an analysis' figures, or where there are none of them what would make them.
void add_part(Section& section, std::vector<std::optional<Figure>> figures, const char* missing) {
  bool any = false;
  for (auto& figure : figures) {
    if (!figure) continue;
    any = true;
    section.figures.push_back(std::move(*figure));
  }
  if (!any) section.html += fmt::format("<p class=\"missing\">{}</p>\n", escaped(missing));
}

std::optional<Figure> budget_figure(const OverDumpsTable& table, bool gain) {
  const auto picks = by(table, {"order", "sigma"});
  if (gain)
    return figure_of(
        table,
        {"budget-gains",
         "What a division of the budget saves of an even one's loss",
         fmt::format(
             "Every method keeps as many tokens as uniform does and divides them otherwise between the "
             "heads: the share of uniform's error that it saves, formed dump by dump.{}An interval right "
             "of the line at 0 is a gain that other prompts would show, too; what costs more than "
             "twice uniform's error stands on the left edge.",
             kDots),
         "method",
         offered_gains(Table::budgets),
         {"metric", "tokens ranked by", "sigma"},
         picks,
         {}});
  return figure_of(
      table,
      {"budgets",
       "What is lost with a divided budget",
       fmt::format("Methods that divide the same number of tokens between the heads, the best first; sigma "
                   "is the share of tokens evicted.{}",
                   kDots),
       "method",
       offered_means(Table::budgets),
       {"metric", "tokens ranked by", "sigma"},
       picks,
       {}});
}

std::optional<Figure> decode_figure(const OverDumpsTable& table) {
  return figure_of(
      table,
      {"decode",
       "Output error while decoding",
       fmt::format("Policies whose cache is cut again at every decoding step, the best first: the error "
                   "over the steps, in each dump the median of its heads.{}",
                   kDots),
       "policy",
       offered_means(Table::decode),
       {"over the steps", "semantics", "budget"},
       by(table, {"semantics", "budget"}),
       {}});
}

void add_scores(Section& section, const OverDumpsReader& results) {
  const OverDumpsTable table(results, Table::agreement);
  add_part(
      section,
      {figure_of(
          table,
          {"agreement",
           "Scores against exact errors",
           fmt::format("Every row is a score that eviction methods rank tokens by, the best first: its rank "
                       "correlation with the exact error, or the share of the costliest tokens that it "
                       "finds, in each dump the median of its heads. 1 is perfect.{}",
                       kDots),
           "score",
           offered_means(Table::agreement),
           {"metric", "against", "last tokens left out"},
           [&](const MeanEntry& entry) {
             return std::vector{against(table, entry), table.key(entry, "reserve")};
           },
           has(table, "reference", "exact_remove")})},
      "No agreement of scores with exact errors; kvreplay tokens DUMP DUMP --out DIR measures it.");
}

void add_evictions(Section& section, const OverDumpsReader& results) {
  const OverDumpsTable evictions(results, Table::evictions), decode(results, Table::decode);
  add_part(
      section,
      {figure_of(evictions,
                 {"policies",
                  "What each policy loses",
                  fmt::format(
                      "Policies that keep the same number of tokens, the best first: of recall the largest, "
                      "of errors, which are over all heads, the smallest.{}Overlapping bars do not make two "
                      "policies alike: a hard prompt raises all of them. Oracles know the decoding steps.",
                      kDots),
                  "policy",
                  offered_means(Table::evictions),
                  {"metric", "on the", "phase", "semantics", "budget"},
                  by(evictions, {"rows", "phase", "semantics", "budget"}),
                  has(evictions, "rows", "future")}),
       decode_figure(decode)},
      "No evictions; kvreplay evict DUMP DUMP --out DIR measures them.");
}

void add_budgets(Section& section, const OverDumpsReader& results) {
  const OverDumpsTable table(results, Table::budgets);
  add_part(section, {budget_figure(table.gains("method", "uniform"), true), budget_figure(table, false)},
           "No budgets divided between heads; kvreplay budget DUMP DUMP --out DIR computes them.");
}

void add_channels(Section& section, const OverDumpsReader& results) {
  const OverDumpsTable table(results, Table::channels);
  add_part(
      section,
      {figure_of(
          table,
          {"selections",
           "What pruning key channels costs",
           fmt::format("Selections of the channels to prune, the best first. A gain is the share of ThinK's "
                       "error that a selection saves at the same ratio: above 0 it is better than ThinK, at "
                       "-1 it doubles the error.{}",
                       kDots),
           "method",
           offered_means(Table::channels),
           {"metric", "on the", "semantics", "share pruned", "recent"},
           by(table, {"rows", "semantics", "ratio", "recent"}),
           has(table, "rows", "future")})},
      "No channel interactions; kvreplay channels DUMP DUMP --out DIR computes them.");
}

}  // namespace

Section figures_over_dumps(const OverDumpsReader& results) {
  Section section{"figures", "The main figures over the dumps", "", {}, ""};
  add_scores(section, results);
  add_evictions(section, results);
  add_budgets(section, results);
  add_channels(section, results);
  return section;
}

Section claims_over_dumps(const OverDumpsReader& results) {
  struct Count {
    std::string text;
    std::size_t yes = 0, part = 0, no = 0;
    std::string measured;
  };
  std::vector<Count> counts;
  for (std::size_t i = 0; i < results.dumps().size(); ++i)
    for (const Claim& claim : claims_of(Tables(results.dumps()[i]))) {
      if (claim.verdict.empty()) continue;
      auto at = std::find_if(counts.begin(), counts.end(),
                             [&](const Count& count) { return count.text == claim.text; });
      if (at == counts.end()) at = counts.insert(at, {claim.text, 0, 0, 0, ""});
      ++(claim.verdict == "yes" ? at->yes : claim.verdict == "no" ? at->no : at->part);
      at->measured += fmt::format("<li>{}: {} ({})</li>", escaped(results.names()[i]),
                                  escaped(claim.measured), escaped(claim.verdict));
    }
  Section section{"claims", "What papers claim, replayed", "", {}, ""};
  if (counts.empty()) {
    section.missing = "These results decide none of the claims that this report knows.";
    return section;
  }
  section.html =
      "<p>In how many of the dumps a claim holds, each decided by its own numbers alone; comparisons between "
      "equal "
      "numbers do not count.</p>\n<div class=\"scroll\"><table><thead><tr><th>claim</th><th>holds</th><th>in "
      "part</th><th>does not</th></tr></thead><tbody>\n";
  const auto cell = [](const char* kind, std::size_t n) {
    return n == 0 ? std::string("<td>0</td>") : fmt::format("<td class=\"holds-{}\">{}</td>", kind, n);
  };
  for (const Count& count : counts)
    section.html += fmt::format(
        "<tr><td>{}<details><summary>dump by dump</summary><ul>{}</ul></details></td>{}{}{}</tr>\n",
        escaped(count.text), count.measured, cell("yes", count.yes), cell("part", count.part),
        cell("no", count.no));
  section.html += "</tbody></table></div>\n";
  return section;
}

}  // namespace kvreplay::report
