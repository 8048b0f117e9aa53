#include "analysis/report/figure.hpp"
#include "analysis/report/picked_lines.hpp"
#include "analysis/report/plots.hpp"
#include "analysis/report/report.hpp"
#include "analysis/report/sections.hpp"
#include "analysis/report/text.hpp"
#include "analysis/results/budget_methods.hpp"
#include "analysis/results/comparisons.hpp"
#include "analysis/results/dump_set.hpp"
#include "analysis/results/kept_text.hpp"
#include "analysis/results/main_figures.hpp"
#include "analysis/results/metric_table.hpp"
#include "analysis/results/over_dumps.hpp"
#include "analysis/results/paired.hpp"
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

constexpr const char* kGain = " gain";

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
  void form_gains(std::string_view key, std::string_view base) {
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
};

/// A metric in the form that lists offer.
struct OfferedMean {
  std::string metric;
  const FigureFacts* facts;
};

/// Metrics that the schema offers for a table, exact ones first; with `gains`, their gains.
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
  for (const FigureFacts* const measured : measured_figures(table))
    means.push_back({std::string(measured->name), measured});
  // Exact metrics first: they are the reference for formulas that approximate them.
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
  const char *first_key = nullptr, *first = nullptr;  ///< the first choice of the lists
};

/// The list entries that select an entry's plot.
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

namespace {

/// A standing as a picture, and what it is picked by.
struct Picture {
  std::vector<std::string> picks;
  IntervalPlot plot;
};

/// Labels of the lists, in their order.
constexpr const char* kLabels[] = {"metric", "on the", "phase", "semantics", "budget"};

std::vector<std::string> picks_of(const Standing& standing) {
  const ComparedItems& of = *standing.of;
  return {of.metric, rows_text(of.rows), of.phase, standing.semantics,
          setting_text(facts_of(of.table).across, of.budget)};
}

/// Every item against the best, with a dot for each prompt.
IntervalPlot plot_of(const Standing& standing, const std::vector<std::string>& prompts) {
  const ComparedItems& of = *standing.of;
  const bool ratio = standing.others.front().over.by == PairedBy::ratio;
  IntervalPlot plot;
  plot.samples = prompts;
  plot.line = ratio ? 1 : 0;
  std::vector<std::string> names;
  for (const Comparison& other : standing.others) names.push_back(other.left->name);
  const std::vector<LineStyle> styles = styles_by_name(names);
  for (std::size_t i = 0; i < names.size(); ++i) {
    const Comparison& other = standing.others[i];
    IntervalPlot::Row row{other.told_apart() ? names[i] + " *" : names[i],
                          styles[i],
                          other.over.prompts,
                          other.over.center(),
                          other.over.lower(),
                          other.over.upper(),
                          {}};
    for (std::size_t p = 0; p < prompts.size(); ++p) {
      const double left = other.left->values[p], right = other.right->values[p];
      row.values.push_back(!ratio ? left - right : left == right ? 1 : left / right);
      if (!std::isfinite(row.values.back())) row.values.back() = kNan;
    }
    plot.rows.push_back(std::move(row));
  }
  std::erase_if(plot.rows, [](const auto& row) { return std::isnan(row.mean); });
  const std::string label = ratio ? fmt::format("{}, times that of {}", of.metric, standing.best->name)
                                  : fmt::format("{}, less that of {}", of.metric, standing.best->name);
  order_rows(plot, of.better(), label, ratio);
  plot.title = fmt::format("{}: {}", label, fmt::join(picks_of(standing), ", "));
  return plot;
}

std::optional<Figure> figure_of(Table table, const std::vector<ComparedItems>& all,
                                const std::vector<std::string>& prompts) {
  std::vector<Picture> pictures;
  for (const ComparedItems& items : all) {
    if (items.table != table) continue;
    for (const Standing& standing : standings_of(items)) {
      IntervalPlot plot = plot_of(standing, prompts);
      if (!plot.rows.empty()) pictures.push_back({picks_of(standing), std::move(plot)});
    }
  }
  const std::string future = rows_text("future");
  std::stable_partition(pictures.begin(), pictures.end(),
                        [&](const Picture& picture) { return picture.picks[1] == future; });
  const auto is_main = [&](const Picture& picture) {
    return std::ranges::any_of(all, [&](const ComparedItems& items) {
      return items.table == table && items.metric == picture.picks[0] && !items.facts->main.empty() &&
             items.facts->exact;
    });
  };
  std::stable_partition(pictures.begin(), pictures.end(), is_main);
  // Lists that offer a choice.
  std::vector<std::size_t> shown = {0};
  for (std::size_t k = 1; k < std::size(kLabels); ++k)
    if (std::ranges::any_of(
            pictures, [&](const Picture& picture) { return picture.picks[k] != pictures.front().picks[k]; }))
      shown.push_back(k);
  Variants variants(fmt::format("better-{}", name_of(table)));
  for (Picture& picture : pictures) {
    std::vector<std::string> picks;
    for (const std::size_t k : shown) picks.push_back(picture.picks[k]);
    variants.add(std::move(picks), std::move(picture.plot));
  }
  std::vector<std::string> labels;
  for (const std::size_t k : shown) labels.emplace_back(kLabels[k]);
  return variants.figure(
      labels, fmt::format("{}: each against the best", facts_of(table).title),
      "The best of those that can be run is the line; the others are set against it within every prompt, so "
      "that a hard prompt counts on both sides. Small dots are the prompts, the large one is their mean (of "
      "errors the geometric one), the bar its 95 % interval. A star: told apart from the best, all pairs of "
      "the picture asked at once. Oracles, which know the decoding steps, may stand left of the line.");
}

/// Comparison with the best, prompt by prompt.
Section better_section(const OverDumpsReader& results) {
  Comparisons comparisons;
  for (std::size_t i = 0; i < results.dumps().size(); ++i) {
    std::vector<ResultReader> prompt{results.dumps()[i]};
    if (const auto& others = results.left_one_out()[i]) prompt.push_back(*others);
    comparisons.add_prompt(prompt);
  }
  const std::vector<ComparedItems> all = comparisons.all();
  Section section{"better", "Who is better, prompt by prompt", "", {}, ""};
  for (const StandingTable& table : main_standings(all)) {
    if (!table.columns.front().of->facts->exact) continue;  // what stands for a loss decides nothing here
    for (std::size_t c = 0; c < table.columns.size(); ++c)
      section.findings.push_back(
          fmt::format("{}, {}: {}.", table.title, table.headings[c], verdict(table.columns[c])));
  }
  for (const Table table :
       {Table::evictions, Table::decode, Table::budgets, Table::channels, Table::agreement})
    if (auto figure = figure_of(table, all, results.names())) section.figures.push_back(std::move(*figure));
  if (section.figures.empty()) section.missing = "Nothing in these results is compared in two prompts.";
  return section;
}

constexpr std::size_t kOpenDumps = 6;  // more would push the figures off the first screen

/// "61 tokens", "47 to 61 tokens"
std::string range_text(const std::vector<Index>& values, const char* one) {
  const auto [least, most] = std::ranges::minmax_element(values);
  return *least == *most ? counted(*most, one) : fmt::format("{} to {}", *least, counted(*most, one));
}

std::string lead_over(const OverDumpsReader& results) {
  const DumpShape& s = results.dumps().front().shape();
  std::vector<Index> candidates, steps;
  for (const ResultReader& dump : results.dumps()) {
    candidates.push_back(dump.shape().l);
    steps.push_back(dump.shape().T - dump.shape().l);
  }
  return fmt::format("{} of one model: {} x {}, {} to each, head dimension {}; prompts of {}, {}",
                     counted(std::ssize(results.dumps()), "dump"), counted(s.layers, "layer"),
                     counted(s.n_kv, "KV head"), counted(s.n_q / s.n_kv, "query head"), s.d,
                     range_text(candidates, "token"), range_text(steps, "decoding step"));
}

/// Facts about the runs that all dumps share.
std::vector<std::pair<std::string, std::string>> common_facts(const OverDumpsReader& results) {
  auto facts = facts_of(results.dumps().front());
  for (const ResultReader& dump : results.dumps()) {
    const auto its = facts_of(dump);
    std::erase_if(facts, [&](const auto& fact) { return !is_in(its, fact); });
  }
  return facts;
}

/// The evictions of every dump, compared within it.
std::vector<JudgedCase> judged_over_dumps(const OverDumpsReader& results) {
  std::vector<JudgedCase> all;
  for (std::size_t i = 0; i < results.dumps().size(); ++i)
    for (JudgedCase& one : judged_cases(results.dumps()[i])) {
      one.setting += fmt::format(" {}", i);
      all.push_back(std::move(one));
    }
  return all;
}

/// The notes of all dumps, each once, those of most dumps first; with the number of dumps unless all have the
/// note.
std::vector<std::string> common_remarks(const OverDumpsReader& results) {
  std::vector<std::vector<std::string>> dumps;
  for (const ResultReader& dump : results.dumps()) dumps.push_back(remarks_of(dump));
  auto counts = counted_lines(dumps);
  std::ranges::stable_sort(counts, [](const auto& a, const auto& b) { return a.second > b.second; });
  const auto n = std::ssize(results.dumps());
  std::vector<std::string> remarks = {
      fmt::format("Intervals are 95 % confidence intervals of the mean over the {} dumps, by Student's t: "
                  "over dumps, never over heads, which are no independent sample; of errors, which are "
                  "positive, they are of the geometric mean, on the scale of ratios, of rank correlations on "
                  "that of Fisher's z, and none goes beyond what the figure can be.{}",
                  n,
                  n < kFewestPrompts    ? fmt::format(" Fewer than {} dumps have none.", kFewestPrompts)
                  : n == kFewestPrompts ? " Of so few dumps they are wide."
                                        : ""),
      how_large(judged_over_dumps(results))};
  for (const auto& [remark, count] : counts) remarks.push_back(line_of_dumps(remark, count, dumps.size()));
  return remarks;
}

Section dumps_section(const OverDumpsReader& results) {
  Section section{"overview", "What was run over", "", {}, ""};
  std::string rows;
  for (std::size_t i = 0; i < results.dumps().size(); ++i) {
    const ResultReader& dump = results.dumps()[i];
    const auto& its = dump.summary()["dump"];
    rows += fmt::format("<tr><th scope=\"row\">{}</th><td>{}</td><td>{}</td><td>{}</td><td>{}</td></tr>\n",
                        escaped(results.names()[i]), escaped(text_in(its, "model")), dump.shape().l,
                        dump.shape().T - dump.shape().l, escaped(text_in(its, "fingerprint")));
  }
  const std::string table =
      table_html({"dump", "model", "prompt tokens", "decoding steps", "fingerprint"}, rows, false) + "\n";
  section.html =
      results.dumps().size() <= kOpenDumps
          ? table
          : fmt::format("<details><summary>{} dumps</summary>{}</details>\n", results.dumps().size(), table);
  return section;
}

Section settings_section(const OverDumpsReader& results) {
  return {"run", "How it was run", "", {}, settings_table(results.summary(), {"options"})};
}

}  // namespace

Page make_page(const OverDumpsReader& results, const std::string& title) {
  Page page;
  const std::string first = text_in(results.dumps().front().summary()["dump"], "model");
  const bool alike = std::all_of(
      results.dumps().begin(), results.dumps().end(),
      [&](const ResultReader& dump) { return text_in(dump.summary()["dump"], "model") == first; });
  const std::string model = alike ? first : model_of(first);
  page.title = !title.empty() ? title : model.empty() ? "kvreplay results" : model;
  page.lead = lead_over(results);
  page.facts = common_facts(results);
  if (!title.empty() && !model.empty()) page.facts.insert(page.facts.begin(), {"model", model});
  page.remarks = common_remarks(results);
  for (Section (*section)(const OverDumpsReader&) :
       {better_section, dumps_section, figures_over_dumps, claims_over_dumps, settings_section})
    page.sections.push_back(section(results));
  if (auto recipes = recipe_section(results))
    page.sections.insert(page.sections.begin() + 1, std::move(*recipes));
  return page;
}

}  // namespace kvreplay::report
