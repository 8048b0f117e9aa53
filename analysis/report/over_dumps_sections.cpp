#include "analysis/report/figure.hpp"
#include "analysis/report/row_plots.hpp"
#include "analysis/report/sections.hpp"
#include "analysis/report/text.hpp"
#include "analysis/results/budget_methods.hpp"
#include "analysis/results/figure_table.hpp"
#include "analysis/results/kept_text.hpp"
#include "analysis/results/over_dumps.hpp"
#include "analysis/results/validation.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace kvreplay::report {
namespace {

/// The figures of the model in a table over dumps; without entries where the folder has none.
class OverDumpsTable : public KeyedTable<OverDumpsReader::Figure> {
 public:
  OverDumpsTable(const OverDumpsReader& results, Table table) : KeyedTable(table) {
    columns_ = figure_keys(table);
    columns_.erase(columns_.begin(), columns_.begin() + 2);  // layer, kv_head
    entries_ = results.model_figures(table);
  }

  /// In the place of the entries what they save of what those with `base` under the column `key` lose, all
  /// else alike: 1 - value / (value of base), formed dump by dump, so that what is hard about a prompt counts
  /// on both sides. The metric is "<metric> gain"; `base` itself has no entries.
  void form_gains(std::string_view key, std::string_view base);
};

constexpr const char* kGain = " gain";

void OverDumpsTable::form_gains(std::string_view key, std::string_view base) {
  std::vector<OverDumpsReader::Figure> gains;
  for (const OverDumpsReader::Figure& entry : entries_) {
    if (this->key(entry, key) == base) continue;
    Wanted wanted;
    for (std::size_t k = 0; k < columns_.size(); ++k)
      wanted.emplace_back(columns_[k], columns_[k] == key ? base : std::string_view(entry.key[k]));
    const OverDumpsReader::Figure* const other = find(wanted);
    if (other == nullptr) continue;
    OverDumpsReader::Figure& gain = gains.emplace_back(entry);
    gain.key.back() += kGain;
    for (std::size_t i = 0; i < gain.dumps.size(); ++i) {
      const double whole = other->dumps[i];
      gain.dumps[i] = whole > 0 ? 1 - entry.dumps[i] / whole : kNan;
    }
    gain.over = over_dumps(gain.dumps, FigureScale::gain);
  }
  entries_ = std::move(gains);
}

/// A figure as lists offer it.
struct OfferedMean {
  std::string metric;
  const FigureFacts* facts;
};

/// What the schema offers of a table, exact figures first, or their gains.
std::vector<OfferedMean> offered_means(Table table, bool gains) {
  static const FigureFacts gain{
      {.unit = "share of the error", .better = Better::larger, .scale = FigureScale::gain},
      "gain",
      "Gain",
      "Share of the error that is saved"};
  std::vector<OfferedMean> means;
  for (const FigureFacts* const facts : offered_figures(table))
    for (const char* const of : {"", kMedianHead})
      if (*of == '\0' || is_error_of_heads(*facts))
        means.push_back({fmt::format("{}{}", facts->name, of), facts});
  if (const FigureFacts* const measured = measured_figure(table))
    means.push_back({std::string(measured->name), measured});
  // What is measured first: formulas that stand for it are what it judges.
  std::stable_partition(means.begin(), means.end(),
                        [](const OfferedMean& mean) { return mean.facts->exact; });
  if (gains)
    for (OfferedMean& mean : means) mean = {mean.metric + kGain, &gain};
  return means;
}

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

/// What a figure is picked by.
std::vector<std::string> picks_of(const OverDumpsTable& table, const OverDumpsReader::Figure& entry,
                                  const PageFigure& wanted) {
  std::vector<std::string> picks;
  for (const std::string_view key : wanted.picked)
    picks.push_back(key == "against" ? fmt::format("{} ({})", table.key(entry, "reference"),
                                                   rows_text(table.key(entry, "rows")))
                                     : shown_key(table.table(), key, table.key(entry, key)));
  return picks;
}

/// Entries that are alike in everything but the item, the best first.
IntervalPlot plot_of(const OverDumpsTable& table, const PageFigure& wanted, const FigureFacts& facts,
                     const std::vector<const OverDumpsReader::Figure*>& entries) {
  const std::vector<std::string> items = table.distinct(wanted.item);
  const std::vector<LineStyle> styles = styles_by_name(items);
  IntervalPlot plot;
  if (facts.scale == FigureScale::gain) plot.line = 0;
  for (const OverDumpsReader::Figure* const entry : entries) {
    const std::string& item = table.key(*entry, wanted.item);
    const auto style = std::ranges::find(items, item) - items.begin();
    plot.rows.push_back({shown_key(table.table(), wanted.item, item), styles[style], entry->over.n,
                         entry->over.center(), entry->over.low, entry->over.high, entry->dumps, item});
  }
  order_rows(plot, facts.better, table.key(*entries.front(), "metric"), facts.scale == FigureScale::log);
  // The ends of an axis that the figure cannot pass, or that lie far enough out.
  const auto [least, most] = range_of(facts.scale);
  plot.x.low = std::max(plot.x.low, facts.scale == FigureScale::gain ? -1 : least);
  plot.x.high = std::min(plot.x.high, most);
  return plot;
}

/// Nothing where the folder has no such figures.
std::optional<Figure> figure_over_dumps(const OverDumpsReader& results, const PageFigure& wanted) {
  struct Picture {
    std::vector<std::string> picks;
    std::vector<const OverDumpsReader::Figure*> entries;
  };
  OverDumpsTable table(results, wanted.table);
  if (wanted.gains) table.form_gains("method", "uniform");
  Variants variants(wanted.name);
  std::vector<const FigureFacts*> shows;
  for (const auto& [metric, facts] : offered_means(wanted.table, wanted.gains)) {
    if (shows.empty() || shows.back() != facts) shows.push_back(facts);
    std::vector<Picture> pictures;
    for (const OverDumpsReader::Figure& entry : table.entries()) {
      if (table.key(entry, "metric") != metric || std::isnan(entry.over.mean)) continue;
      const std::vector<std::string> picks = picks_of(table, entry, wanted);
      auto at = std::ranges::find(pictures, picks, &Picture::picks);
      if (at == pictures.end()) at = pictures.insert(at, {picks, {}});
      at->entries.push_back(&entry);
    }
    if (wanted.first_key != nullptr)
      std::stable_partition(pictures.begin(), pictures.end(), [&](const Picture& picture) {
        return table.key(*picture.entries.front(), wanted.first_key) == wanted.first;
      });
    for (Picture& picture : pictures) {
      IntervalPlot plot = plot_of(table, wanted, *facts, picture.entries);
      plot.title = fmt::format("{}, {}", metric, fmt::join(picture.picks, ", "));
      plot.samples = results.names();
      picture.picks.insert(picture.picks.begin(), metric);
      variants.add(std::move(picture.picks), std::move(plot));
    }
  }
  return variants.figure(wanted.labels, wanted.heading,
                         fmt::format("{}{}{}", wanted.reading, kDots, wanted.more), std::move(shows));
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
    for (const PageFigure& wanted : part.figures)
      if (auto figure = figure_over_dumps(results, wanted)) section.figures.push_back(std::move(*figure));
    for (const auto by_dump : part.by_dump)
      if (auto figure = by_dump(results)) section.figures.push_back(std::move(*figure));
    if (section.figures.size() == before)
      section.html += fmt::format("<p class=\"missing\">{}</p>\n", escaped(part.missing));
  }
  return section;
}

}  // namespace kvreplay::report
