#include "analysis/report/picked_lines.hpp"
#include "analysis/report/report.hpp"
#include "analysis/report/row_plots.hpp"
#include "analysis/report/sections.hpp"
#include "analysis/report/text.hpp"
#include "analysis/results/comparisons.hpp"
#include "analysis/results/dump_set.hpp"
#include "analysis/results/kept_text.hpp"
#include "analysis/results/main_figures.hpp"
#include "analysis/results/paired.hpp"

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

/// Who is better, prompt by prompt.
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

/// What is known of every dump's run and alike in all.
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

/// The notes of all dumps, each once, those of most dumps first; with their number where it is not that of
/// all.
std::vector<std::string> common_remarks(const OverDumpsReader& results) {
  std::vector<std::pair<std::string, std::size_t>> counts;
  for (const ResultReader& dump : results.dumps())
    for (std::string& remark : remarks_of(dump)) {
      const auto known =
          std::ranges::find_if(counts, [&](const auto& count) { return count.first == remark; });
      if (known == counts.end())
        counts.emplace_back(std::move(remark), 1);
      else
        ++known->second;
    }
  std::ranges::stable_sort(counts, [](const auto& a, const auto& b) { return a.second > b.second; });
  const auto n = std::ssize(results.dumps());
  std::vector<std::string> remarks = {
      fmt::format("Intervals are 95 % confidence intervals of the mean over the {} dumps, by Student's t: "
                  "over dumps, never over heads, which are no independent sample; of errors, which are "
                  "positive, they are of the geometric mean, on the scale of ratios, of rank correlations on "
                  "that of Fisher's z, and none goes beyond what the figure can be.{}",
                  n,
                  n < kFewestPrompts    ? " Fewer than three dumps have none."
                  : n == kFewestPrompts ? " Of so few dumps they are wide."
                                        : ""),
      how_large(judged_over_dumps(results))};
  for (const auto& [remark, count] : counts)
    remarks.push_back(static_cast<std::ptrdiff_t>(count) == n
                          ? remark
                          : fmt::format("{} ({} of {} dumps)", remark, count, n));
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
  const std::string table = fmt::format(
      "<div class=\"scroll\"><table><thead><tr><th>dump</th><th>model</th><th>prompt tokens</th><th>decoding "
      "steps</th><th>fingerprint</th></tr></thead><tbody>\n{}</tbody></table></div>\n",
      rows);
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
  return page;
}

}  // namespace kvreplay::report
