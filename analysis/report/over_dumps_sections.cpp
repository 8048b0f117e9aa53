#include "analysis/report/allocation_figure.hpp"
#include "analysis/report/over_dumps_table.hpp"
#include "analysis/report/sections.hpp"
#include "analysis/report/text.hpp"
#include "analysis/results/budget_methods.hpp"
#include "analysis/results/kept_text.hpp"

#include <fmt/format.h>

#include <algorithm>

namespace kvreplay::report {
namespace {

constexpr const char* kDots =
    " Small dots are the dumps, the large one is their mean, the bar its 95 % confidence interval (cut off "
    "where it ends in an arrow). ";

/// A picture of a table over dumps.
struct PageFigure {
  Table table;
  bool gains;  ///< over `uniform`, instead of the figures themselves
  const char *name, *heading;
  const char* reading;
  std::string more;  ///< behind what the dots are
  const char* item;
  std::vector<std::string> labels;
  /// The keys that the lists choose by; "against" is a reference with its rows.
  std::vector<const char*> picked;
  const char *first_key = nullptr, *first = nullptr;  ///< what the lists begin with
};

/// What a figure is picked by: rows in words.
std::string pick_of(const OverDumpsTable& table, const MeanEntry& entry, std::string_view key) {
  if (key == "against")
    return fmt::format("{} ({})", table.key(entry, "reference"), rows_text(table.key(entry, "rows")));
  if (key == "rows") return rows_text(table.key(entry, key));
  return key == "budget" || key == "sigma" ? kept_text(table.key(entry, key)) : table.key(entry, key);
}

std::optional<Figure> figure_over_dumps(const OverDumpsTable& table, const PageFigure& wanted) {
  MeanFigure figure{wanted.name,
                    wanted.heading,
                    fmt::format("{}{}{}", wanted.reading, kDots, wanted.more),
                    wanted.item,
                    wanted.gains ? offered_gains(wanted.table) : offered_means(wanted.table),
                    wanted.labels,
                    [&](const MeanEntry& entry) {
                      std::vector<std::string> picks;
                      for (const char* const key : wanted.picked) picks.push_back(pick_of(table, entry, key));
                      return picks;
                    },
                    {}};
  if (wanted.first_key != nullptr)
    figure.first = [&](const MeanEntry& entry) { return table.key(entry, wanted.first_key) == wanted.first; };
  return figure_of(table, figure);
}

/// The pictures of an analysis, and what would make them.
struct PagePart {
  std::vector<PageFigure> figures;
  const char* missing;
  std::vector<std::optional<Figure> (*)(const OverDumpsReader&)> by_dump = {};  ///< a line a dump
};

std::vector<PagePart> page_parts() {
  return {
      {{{Table::agreement,
         false,
         "agreement",
         "Scores against exact errors",
         "Every row is a score that eviction methods rank tokens by, the best first: its rank correlation "
         "with the exact error, or the share of the costliest tokens that it finds, in each dump the median "
         "of its heads. 1 is perfect.",
         "",
         "score",
         {"metric", "against", "window", "last tokens reserved"},
         {"against", "window", "reserve"},
         "reference",
         "exact_remove"}},
       "No agreement of scores with exact errors; kvreplay tokens DUMP DUMP --out DIR measures it."},
      {{{Table::evictions,
         false,
         "policies",
         "What each policy loses",
         "Policies that keep the same number of tokens, the best first: of recall the largest, of errors, "
         "which are over all heads, the smallest.",
         "Overlapping bars do not make two policies alike: a hard prompt raises all of them. Oracles know "
         "the decoding steps.",
         "policy",
         {"metric", "on the", "phase", "semantics", "budget"},
         {"rows", "phase", "semantics", "budget"},
         "rows",
         "future"},
        {Table::decode,
         false,
         "decode",
         "Output error while decoding",
         "Policies whose cache is cut again at every decoding step, the best first: the error over the "
         "steps, in each dump the median of its heads.",
         "",
         "policy",
         {"over the steps", "semantics", "budget"},
         {"semantics", "budget"}}},
       "No evictions; kvreplay evict DUMP DUMP --out DIR measures them."},
      {{{Table::budgets,
         true,
         "budget-gains",
         "What a division of the budget saves of an even one's loss",
         "Every method keeps as many tokens as uniform does and divides them otherwise between the heads: "
         "the share of uniform's error that it saves, formed dump by dump.",
         fmt::format(
             "An interval right of the line at 0 is a gain that other prompts would show, too; what costs "
             "more than twice uniform's error stands on the left edge. {}; a profile of other prompts is "
             "what "
             "a method can have.",
             oracles_of_budgets()),
         "method",
         {"metric", "tokens ranked by", "budget"},
         {"order", "sigma"}},
        {Table::budgets,
         false,
         "budgets",
         "What is lost with a divided budget",
         "Methods that divide the same number of tokens between the heads, the best first.",
         oracles_of_budgets() + ".",
         "method",
         {"metric", "tokens ranked by", "budget"},
         {"order", "sigma"}}},
       "No budgets divided between heads; kvreplay budget DUMP DUMP --out DIR computes them.",
       {budget_layers_figure, allocation_figure}},
      {{{Table::channels,
         false,
         "selections",
         "What pruning key channels costs",
         "Selections of the channels to prune, the best first. A gain is the share of ThinK's error that a "
         "selection saves at the same ratio: above 0 it is better than ThinK, at -1 it doubles the error.",
         "",
         "method",
         {"metric", "on the", "semantics", "share pruned", "recent"},
         {"rows", "semantics", "ratio", "recent"},
         "rows",
         "future"}},
       "No channel interactions; kvreplay channels DUMP DUMP --out DIR computes them.",
       {channel_layers_figure}}};
}

}  // namespace

Section figures_over_dumps(const OverDumpsReader& results) {
  Section section{"figures", "The main figures over the dumps", "", {}, ""};
  for (const PagePart& part : page_parts()) {
    const std::size_t before = section.figures.size();
    for (const PageFigure& wanted : part.figures) {
      const OverDumpsTable means(results, wanted.table);
      if (auto figure = figure_over_dumps(wanted.gains ? means.gains("method", "uniform") : means, wanted))
        section.figures.push_back(std::move(*figure));
    }
    for (const auto by_dump : part.by_dump)
      if (auto figure = by_dump(results)) section.figures.push_back(std::move(*figure));
    if (section.figures.size() == before)
      section.html += fmt::format("<p class=\"missing\">{}</p>\n", escaped(part.missing));
  }
  return section;
}

}  // namespace kvreplay::report
