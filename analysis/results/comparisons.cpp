#include "analysis/results/comparisons.hpp"

#include "analysis/results/csv.hpp"
#include "analysis/results/figures.hpp"
#include "analysis/results/kept_text.hpp"
#include "analysis/results/oracles.hpp"
#include "analysis/results/over_dumps.hpp"
#include "analysis/results/validation.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>

namespace kvreplay {
namespace {

constexpr double kNoNumber = std::numeric_limits<double>::quiet_NaN();
constexpr std::string_view kGiven = "given";  // the semantics of a kept set of the user's

bool is_oracle(Table table, const TableFigure& figure) {
  const std::vector<std::string> keys = split_list(facts_of(table).compared);
  return std::any_of(keys.begin(), keys.end(),
                     [&](const std::string& key) { return kvreplay::is_oracle(table, key, figure[key]); });
}

/// The value of a key that a table may not have.
std::string value_of(const TableFigure& figure, std::string_view key) {
  const bool there = std::find(figure.names.begin(), figure.names.end(), key) != figure.names.end();
  return there ? figure[key] : std::string();
}

std::string item_of(const TableFigure& figure, Table table) {
  std::string name;
  for (const std::string& key : split_list(facts_of(table).compared))
    name += (name.empty() ? "" : "~") + figure[key];
  return name;
}

std::string metric_of(const TableFigure& figure, Table table) {
  return table == Table::agreement ? fmt::format("{}~{}", figure["reference"], figure.metric())
                                   : figure.metric();
}

/// What else tells settings apart, behind the budget.
std::string budget_of(const TableFigure& figure, Table table) {
  if (table == Table::agreement) return "";
  const std::string& budget = figure[facts_of(table).across];
  return table == Table::channels && figure["recent"] != "32"
             ? fmt::format("{} recent {}", budget, figure["recent"])
             : budget;
}

/// Those of comparisons asked at once that Holm adjusts together: with an oracle, and without.
std::array<std::vector<Comparison*>, 2> families(std::vector<Comparison>& asked) {
  std::array<std::vector<Comparison*>, 2> both;
  for (Comparison& one : asked) both[one.left->oracle || one.right->oracle ? 1 : 0].push_back(&one);
  return both;
}

}  // namespace

Paired ComparedItems::pair(const Item& left, const Item& right) const {
  return paired(left.values, right.values, better(), facts->scale);
}

std::vector<Comparison> comparisons_of(const ComparedItems& items) {
  std::vector<Comparison> all;
  for (std::size_t i = 0; i < items.items.size(); ++i)
    for (std::size_t j = i + 1; j < items.items.size(); ++j) {
      const ComparedItems::Item &left = items.items[i], &right = items.items[j];
      if (left.name != right.name && left.semantics != right.semantics && left.semantics != kGiven &&
          right.semantics != kGiven)
        continue;
      all.push_back({&items, &left, &right, items.pair(left, right)});
    }
  adjust(all);
  return all;
}

void adjust(std::vector<Comparison>& asked) {
  for (const std::vector<Comparison*>& mine : families(asked)) {
    std::vector<double> p;
    for (const Comparison* const one : mine) p.push_back(one->over.p);
    const std::vector<double> adjusted = holm(p);
    for (std::size_t i = 0; i < mine.size(); ++i) {
      mine[i]->p = adjusted[i];
      mine[i]->pairs = mine.size();
    }
  }
}

void foresee(std::vector<Comparison>& asked) {
  for (const std::vector<Comparison*>& mine : families(asked)) {
    std::vector<Paired> over;
    for (const Comparison* const one : mine) over.push_back(one->over);
    const auto needed = prompts_needed(over);
    for (std::size_t i = 0; i < mine.size(); ++i) mine[i]->needed = needed[i];
  }
}

void Comparisons::add_prompt(const std::vector<ResultReader>& results) {
  ++prompts_;
  lengths_.push_back(results.front().shape().l);
  for (const Table table : kTables.all())
    for (const ResultReader& part : results)
      if (!facts_of(table).compared.empty() && part.has(table)) add(part, table);
}

void Comparisons::add(const ResultReader& results, Table table) {
  std::vector<const FigureFacts*> offered = offered_figures(table);
  if (const FigureFacts* const measured = measured_figure(table)) offered.push_back(measured);
  FirstOfSwept of_first(table, figure_keys(table));
  const auto note_kept = [&](auto& kept, const std::string& name, std::string_view tokens) {
    kept[name].resize(prompts_);
    if (kept[name].back().empty()) kept[name].back() = tokens;
  };
  each_figure_median_and_measured(results, table, [&](const TableFigure& figure) {
    if (figure.level() != Level::model) return;
    const auto facts = std::find_if(offered.begin(), offered.end(),
                                    [&](const FigureFacts* one) { return one->name == figure.metric(); });
    if (facts == offered.end() || !paired_by((*facts)->better, (*facts)->scale)) return;
    if (!of_first(figure.keys)) return;
    const std::string item = item_of(figure, table), semantics = value_of(figure, "semantics"),
                      phase = value_of(figure, "phase"), budget = budget_of(figure, table),
                      rows = value_of(figure, "rows"), metric = metric_of(figure, table);
    if (table == Table::evictions) {
      if (semantics == kGiven)
        note_kept(given_kept_, item, figure.derived);
      else if (phase == "prefill")
        note_kept(kept_, budget, figure.derived);
    }
    const auto [at, is_new] =
        numbers_.try_emplace({std::string(name_of(table)), phase, budget, rows, metric}, entries_.size());
    if (is_new) entries_.push_back({{table, *facts, phase, budget, rows, metric, {}}, {}});
    Entry& entry = entries_[at->second];
    const auto [place, is_first] = entry.places.try_emplace({item, semantics}, entry.items.items.size());
    if (is_first) entry.items.items.push_back({item, semantics, is_oracle(table, figure), {}});
    std::vector<double>& values = entry.items.items[place->second].values;
    values.resize(prompts_, kNoNumber);
    values.back() = figure.value;
  });
}

std::vector<ComparedItems> Comparisons::all() const {
  std::vector<ComparedItems> all;
  for (const Entry& entry : entries_) {
    ComparedItems items = entry.items;
    if (items.table == Table::evictions && items.budget.empty()) continue;  // with the policies
    if (items.table == Table::evictions)
      for (const auto& [name, tokens] : given_kept_) {
        const auto kept = kept_.find(items.budget);
        const auto given =
            numbers_.find({std::string(name_of(items.table)), items.phase, "", items.rows, items.metric});
        if (kept == kept_.end() || given == numbers_.end() || kept->second != tokens) continue;
        const Entry& sets = entries_[given->second];
        if (const auto place = sets.places.find({name, std::string(kGiven)}); place != sets.places.end())
          items.items.push_back(sets.items.items[place->second]);
      }
    for (ComparedItems::Item& item : items.items) item.values.resize(prompts_, kNoNumber);
    if (items.table != Table::channels && items.table != Table::agreement) {
      RunningMean share;
      for (const Index l : lengths_) share.add(kept_share(items.budget, l).value_or(kNoNumber));
      items.kept_share = share.result().mean;
    }
    all.push_back(std::move(items));
  }
  std::stable_sort(all.begin(), all.end(),
                   [](const ComparedItems& a, const ComparedItems& b) { return a.table < b.table; });
  return all;
}

std::size_t write_comparisons(const std::vector<ComparedItems>& all, const ResultFolder& folder) {
  std::optional<CsvFile> csv;
  for (const ComparedItems& items : all)
    for (const Comparison& one : comparisons_of(items)) {
      if (one.over.prompts < 2) continue;
      if (!csv)
        csv.emplace(folder.file("comparisons.csv"), fmt::format("{},{}", kComparisonKeys, kPairedColumns));
      const auto& [left, right] = std::tie(*one.left, *one.right);
      csv->add(name_of(items.table)).add(left.name).add(right.name);
      csv->add(left.semantics == right.semantics ? left.semantics : left.semantics + "/" + right.semantics);
      csv->add(items.phase).add(items.budget).add(items.kept_share).add(items.rows).add(items.metric);
      csv->add(one.over.prompts);
      add_paired(*csv, one.over, one.p);
      csv->end_row();
    }
  if (!csv) return 0;
  csv->finish();
  return csv->rows();
}

}  // namespace kvreplay
