#include "analysis/report/row_plots.hpp"
#include "analysis/report/sections.hpp"
#include "analysis/report/series.hpp"
#include "analysis/results/kept_text.hpp"
#include "analysis/results/main_figures.hpp"
#include "analysis/results/standings.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace kvreplay::report {
namespace {

/// A standing as a picture, and what it is picked by.
struct Picture {
  std::vector<std::string> picks;
  IntervalPlot plot;
};

/// What the lists choose by, in their order.
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
  const bool larger = of.better() == Better::larger;
  std::stable_sort(plot.rows.begin(), plot.rows.end(), [larger](const auto& a, const auto& b) {
    return larger ? a.mean > b.mean : a.mean < b.mean;
  });
  const std::string label = ratio ? fmt::format("{}, times that of {}", of.metric, standing.best->name)
                                  : fmt::format("{}, less that of {}", of.metric, standing.best->name);
  plot.x = interval_axis(label, plot.rows, ratio);
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
  if (pictures.empty()) return std::nullopt;
  const std::string future = rows_text("future");
  std::stable_partition(pictures.begin(), pictures.end(),
                        [&](const Picture& picture) { return picture.picks[1] == future; });
  const auto is_main = [&](const Picture& picture) {
    return std::any_of(all.begin(), all.end(), [&](const ComparedItems& items) {
      return items.table == table && items.metric == picture.picks[0] && !items.facts->main.empty() &&
             items.facts->exact;
    });
  };
  std::stable_partition(pictures.begin(), pictures.end(), is_main);
  // Lists that offer a choice.
  std::vector<std::size_t> shown = {0};
  for (std::size_t k = 1; k < std::size(kLabels); ++k)
    if (std::any_of(pictures.begin(), pictures.end(),
                    [&](const Picture& picture) { return picture.picks[k] != pictures.front().picks[k]; }))
      shown.push_back(k);
  Variants variants(fmt::format("better-{}", name_of(table)));
  for (Picture& picture : pictures) {
    std::vector<std::string> picks;
    for (const std::size_t k : shown) picks.push_back(picture.picks[k]);
    picture.plot.id = variants.next_id();
    variants.add(std::move(picks), picture.plot);
  }
  std::vector<std::string> labels;
  for (const std::size_t k : shown) labels.emplace_back(kLabels[k]);
  Figure figure = variants.figure(labels);
  figure.heading = fmt::format("{}: each against the best", facts_of(table).title);
  figure.reading =
      "The best of those that can be run is the line; the others are set against it within every prompt, so "
      "that a hard prompt counts on both sides. Small dots are the prompts, the large one is their mean (of "
      "errors the geometric one), the bar its 95 % interval. A star: told apart from the best, all pairs of "
      "the picture asked at once. Oracles, which know the decoding steps, may stand left of the line.";
  return figure;
}

}  // namespace

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

}  // namespace kvreplay::report
