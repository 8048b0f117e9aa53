#include "analysis/results/comparisons.hpp"

#include "analysis/options/option.hpp"
#include "analysis/results/csv.hpp"
#include "analysis/results/figures.hpp"
#include "analysis/results/kept_text.hpp"
#include "analysis/results/main_figures.hpp"
#include "analysis/results/over_dumps.hpp"
#include "analysis/results/paired.hpp"
#include "analysis/results/validation.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <map>

namespace kvreplay {
namespace {

constexpr std::string_view kGiven = "given";  // the semantics of a kept set of the user's

bool is_oracle(const MetricTable& table, const MetricEntry& entry) {
  const std::vector<std::string> keys = split_list(facts_of(table.table()).compared);
  return std::ranges::any_of(keys, [&](const std::string& key) {
    return kvreplay::is_oracle(table.table(), key, table.key(entry, key));
  });
}

std::string item_of(const MetricTable& table, const MetricEntry& entry) {
  std::string name;
  for (const std::string& key : split_list(facts_of(table.table()).compared))
    name += (name.empty() ? "" : "~") + table.key(entry, key);
  return name;
}

/// The budget; for channels with other than 32 recent keys, their number too. Empty for agreement.
std::string budget_of(const MetricTable& table, const MetricEntry& entry) {
  if (table.table() == Table::agreement) return "";
  const std::string &budget = table.key(entry, facts_of(table.table()).across),
                    &recent = table.key(entry, "recent");
  return recent.empty() || recent == "32" ? budget : fmt::format("{} recent {}", budget, recent);
}

/// Comparisons asked at once, as Holm adjusts them together: with an oracle, and without.
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
  offered.insert(offered.end(), measured_figures(table).begin(), measured_figures(table).end());
  const MetricTable all = table_and_measured(results, table);
  FirstOfSwept of_first(table, all.key_columns());
  const auto note_kept = [&](auto& kept, const std::string& name, const std::string& tokens) {
    kept[name].resize(prompts_);
    if (kept[name].back().empty()) kept[name].back() = tokens;
  };
  for (const MetricEntry& entry : all.entries()) {
    const auto facts =
        std::ranges::find_if(offered, [&](const FigureFacts* one) { return one->name == entry.metric(); });
    if (!has_row(entry.model) || facts == offered.end() || !paired_by((*facts)->better, (*facts)->scale))
      continue;
    if (!of_first(entry.key)) continue;
    const std::string &semantics = all.key(entry, "semantics"), &phase = all.key(entry, "phase"),
                      &rows = all.key(entry, "rows");
    const std::string item = item_of(all, entry), budget = budget_of(all, entry);
    const std::string metric = table == Table::agreement
                                   ? fmt::format("{}~{}", all.key(entry, "reference"), entry.metric())
                                   : entry.metric();
    if (table == Table::evictions) {
      if (semantics == kGiven)
        note_kept(given_kept_, item, entry.kept_text());
      else if (phase == "prefill")
        note_kept(kept_, budget, entry.kept_text());
    }
    const auto [at, is_new] =
        numbers_.try_emplace({std::string(name_of(table)), phase, budget, rows, metric}, entries_.size());
    if (is_new) entries_.push_back({{table, *facts, phase, budget, rows, metric, {}}, {}});
    Entry& known = entries_[at->second];
    const auto [place, is_first] = known.places.try_emplace({item, semantics}, known.items.items.size());
    if (is_first) known.items.items.push_back({item, semantics, is_oracle(all, entry), {}});
    std::vector<double>& values = known.items.items[place->second].values;
    values.resize(prompts_, kNan);
    values.back() = entry.model;
  }
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
    for (ComparedItems::Item& item : items.items) item.values.resize(prompts_, kNan);
    if (items.table != Table::channels && items.table != Table::agreement) {
      RunningMean share;
      for (const Index l : lengths_) share.add(kept_share(items.budget, l).value_or(kNan));
      items.kept_share = share.result().mean;
    }
    all.push_back(std::move(items));
  }
  std::ranges::stable_sort(all,
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

namespace {

using Item = ComparedItems::Item;

/// The item with the best mean over prompts among those that `counts`; null where there is none.
template <class Counts>
const Item* best_of(const ComparedItems& items, const Counts& counts) {
  const Item* best = nullptr;
  double of_best = 0;
  for (const Item& item : items.items) {
    if (item.oracle || !counts(item)) continue;
    const double mean = over_dumps(item.values, items.facts->scale).center();
    if (std::isnan(mean)) continue;
    if (best != nullptr && !(items.better() == Better::smaller ? mean < of_best : mean > of_best)) continue;
    best = &item;
    of_best = mean;
  }
  return best;
}

/// The pairs that are `shown`, adjusted over all of them.
template <class Shown>
std::vector<Comparison> adjusted(std::vector<Comparison> pairs, const Shown& shown) {
  adjust(pairs);
  foresee(pairs);
  std::erase_if(pairs, [&](const Comparison& one) { return !shown(one); });
  return pairs;
}

std::string name_in(const Comparison& comparison, const Item& item) {
  return comparison.left->semantics == comparison.right->semantics || item.semantics.empty()
             ? item.name
             : fmt::format("{} ({})", item.name, item.semantics);
}

/// A name as a part of an item's: between '+', ':', '~' and '['.
bool holds(const std::string& item, const std::set<std::string>& names) {
  for (std::size_t begin = 0; begin <= item.size();) {
    const std::size_t end = std::min(item.find_first_of("+:~[", begin), item.size());
    if (names.contains(item.substr(begin, end - begin))) return true;
    begin = end + 1;
  }
  return false;
}

std::string interval_of(const Paired& over) {
  return std::isnan(over.low) ? "" : fmt::format(" {}", interval_text(over.lower(), over.upper()));
}

}  // namespace

std::vector<Standing> standings_of(const ComparedItems& items) {
  std::vector<std::string> semantics;
  for (const Item& item : items.items)
    if (item.semantics != "given") place_in(semantics, item.semantics);
  std::vector<Standing> all;
  for (const std::string& one : semantics) {
    const auto mine = [&](const Item& item) { return item.semantics == one || item.semantics == "given"; };
    Standing standing{&items, one, best_of(items, mine), {}};
    if (standing.best == nullptr) continue;
    // The data choose the best, so a pair with it is any pair: all pairs are asked.
    std::vector<const Item*> asked;
    for (const Item& item : items.items)
      if (mine(item)) asked.push_back(&item);
    std::vector<Comparison> pairs;
    for (std::size_t i = 0; i < asked.size(); ++i)
      for (std::size_t j = i + 1; j < asked.size(); ++j) {
        const auto [left, right] =
            asked[i] == standing.best ? std::pair(asked[j], asked[i]) : std::pair(asked[i], asked[j]);
        pairs.push_back({&items, left, right, items.pair(*left, *right)});
      }
    standing.others =
        adjusted(std::move(pairs), [&](const Comparison& one) { return one.right == standing.best; });
    if (!standing.others.empty()) all.push_back(std::move(standing));
  }
  return all;
}

std::string verdict(const Comparison& comparison) {
  const Paired& over = comparison.over;
  const std::string left = name_in(comparison, *comparison.left),
                    right = name_in(comparison, *comparison.right);
  if (over.prompts == 0) return fmt::format("{} and {} have no prompt in common", left, right);
  const bool ratio = over.by == PairedBy::ratio, more = over.mean >= 0;
  const bool left_worse = (comparison.of->better() == Better::smaller) == more;
  std::string text;
  if (std::isnan(over.mean))
    text = fmt::format("{} against {}: no ratio, one of them loses nothing", left, right);
  else if (ratio)
    text = fmt::format("{} loses {} times what {} loses{}", left, short_number(over.center()), right,
                       interval_of(over));
  else
    text = fmt::format("{} has {} {} {} than {}{}", left, short_number(std::abs(over.mean)),
                       more ? "more" : "less", comparison.of->metric, right, interval_of(over));
  text += fmt::format(", {} of {}", left_worse ? over.losses : over.wins, counted(over.prompts, "prompt"));
  if (comparison.told_apart()) return text;
  if (over.prompts < kFewestPrompts)
    return fmt::format("{}; {} nothing apart", text,
                       over.prompts == 1   ? "one prompt tells"
                       : over.prompts == 2 ? "two prompts tell"
                                           : "three prompts tell");
  if (over.p < kToldApart)
    return text +
           fmt::format("; not told apart: of {} pairs asked at once, one may look so by chance (p {:.2g})",
                       comparison.pairs, comparison.p);
  return text + (comparison.needed
                     ? fmt::format("; not told apart (about {} prompts would)", *comparison.needed)
                     : "; not told apart");
}

std::string verdict(const Standing& standing) {
  const bool smaller = standing.of->better() == Better::smaller;
  std::size_t runnable = 1, alike = 0;
  const Comparison* nearest = nullptr;
  for (const Comparison& other : standing.others) {
    if (other.left->oracle) continue;
    ++runnable;
    if (other.told_apart()) continue;
    ++alike;
    if (!std::isnan(other.over.mean) &&
        (nearest == nullptr ||
         (smaller ? other.over.mean < nearest->over.mean : other.over.mean > nearest->over.mean)))
      nearest = &other;
  }
  std::string text =
      fmt::format("{} {} of {}", standing.best->name, smaller ? "loses least" : "has most", runnable);
  if (runnable == 1) return text;
  if (alike == 0) return text + ", told apart from all others";
  text += alike == runnable - 1 ? std::string("; told apart from none of the others")
                                : fmt::format("; not told apart from {} of the others", alike);
  if (nearest == nullptr) return text;
  return text + fmt::format(", the nearest {}{}", nearest->left->name,
                            nearest->needed
                                ? fmt::format(" (about {} prompts would tell it)", *nearest->needed)
                                : "");
}

std::vector<Comparison> own_against_best(const ComparedItems& items, const std::set<std::string>& names) {
  std::vector<Comparison> pairs;
  std::map<const Item*, const Item*> best;
  for (const Item& item : items.items) {
    if (!holds(item.name, names)) continue;
    const auto beside = [&](const Item& other) {
      return !holds(other.name, names) &&
             (other.semantics == item.semantics || item.semantics == "given" || other.semantics == "given");
    };
    for (const Item& other : items.items)
      if (beside(other)) pairs.push_back({&items, &item, &other, items.pair(item, other)});
    best[&item] = best_of(items, beside);
  }
  return adjusted(std::move(pairs), [&](const Comparison& one) { return one.right == best.at(one.left); });
}

std::vector<StandingTable> main_standings(const std::vector<ComparedItems>& all) {
  std::vector<StandingTable> tables;
  std::vector<std::vector<std::string>> keys;
  const auto has_future = [&](const ComparedItems& items) {
    return std::ranges::any_of(all, [&](const ComparedItems& other) {
      return other.table == items.table && other.metric == items.metric && other.rows == "future";
    });
  };
  for (const ComparedItems& items : all) {
    if (items.facts->main.empty() || items.table == Table::agreement) continue;
    if (items.rows == "window" && has_future(items)) continue;
    const bool several_phases = std::ranges::any_of(all, [&](const ComparedItems& other) {
      return other.table == items.table && other.phase != items.phase;
    });
    for (Standing& standing : standings_of(items)) {
      const std::vector<std::string> key = {std::string(name_of(items.table)), items.metric, items.phase,
                                            standing.semantics};
      const std::size_t at = place_in(keys, key);
      if (at == tables.size()) {
        StandingTable& made = tables.emplace_back();
        made.title = items.facts->main;
        if (!items.rows.empty()) made.title += fmt::format(", {} rows", items.rows);
        if (several_phases) made.title += fmt::format(", {}", items.phase);
        if (!standing.semantics.empty() && standing.semantics != "paper")
          made.title += fmt::format(", {}", standing.semantics);
      }
      tables[at].headings.push_back(setting_text(facts_of(items.table).across, items.budget));
      tables[at].columns.push_back(std::move(standing));
    }
  }
  return tables;
}

std::string text_of(const StandingTable& table) {
  std::vector<const std::string*> items;
  const auto note = [&](const Item& item) {
    if (std::ranges::none_of(items, [&](const auto* name) { return *name == item.name; }))
      items.push_back(&item.name);
  };
  for (const ComparedItems::Item& item : table.columns.front().of->items)
    for (const Standing& column : table.columns)
      if (&item == column.best ||
          std::ranges::any_of(column.others, [&](const Comparison& c) { return c.left->name == item.name; }))
        note(item);
  std::vector<std::vector<std::string>> lines{{""}};
  lines[0].insert(lines[0].end(), table.headings.begin(), table.headings.end());
  for (const std::string* const name : items) {
    std::vector<std::string> line{*name};
    bool oracle = false;
    for (const Standing& column : table.columns) {
      const auto other =
          std::ranges::find_if(column.others, [&](const Comparison& c) { return c.left->name == *name; });
      if (column.best->name == *name) {
        line.emplace_back("best  ");
      } else if (other == column.others.end() || std::isnan(other->over.mean)) {
        line.emplace_back("-  ");
      } else {
        oracle = oracle || other->left->oracle;
        line.push_back(fmt::format("{}{} {}", short_number(other->over.center()), interval_of(other->over),
                                   other->told_apart() ? "*" : " "));
      }
    }
    if (oracle) line.front() += " (oracle)";
    lines.push_back(std::move(line));
  }
  std::string text =
      fmt::format("{}: times what the best loses, prompt by prompt\n{}", table.title, aligned(lines));
  for (std::size_t c = 0; c < table.columns.size(); ++c)
    text += fmt::format("  {}: {}\n", table.headings[c], verdict(table.columns[c]));
  return text;
}

namespace {

constexpr const char* kElsewhere =
    "how large is large: on three models of 135 to 494 million parameters output errors less than 1.1 times "
    "apart order the true KL rightly in 52 to 62 % of pairs, more than 1.5 times apart in 71 to 94 %";
constexpr double kNear = 1.1, kFar = 1.5;

/// Pairs that lie so far apart, and those of them that both figures order alike.
struct Order {
  std::size_t pairs = 0, alike = 0;
  std::string text() const {
    if (pairs == 0) return "(there is no such pair)";
    return fmt::format("in {:.0f} % of {}", 100 * static_cast<double>(alike) / static_cast<double>(pairs),
                       counted(static_cast<Index>(pairs), "pair"));
  }
};

}  // namespace

std::vector<JudgedCase> judged_cases(const ResultReader& results) {
  if (!results.has(Table::evictions)) return {};
  const std::string_view error = facts_of(EvictionFigure::output_error).name, nats = kLossStep.name;
  std::map<std::vector<std::string>, JudgedCase> found;  // by all keys but the metric
  const MetricTable table(results, Table::evictions);
  for (const MetricEntry& entry : table.entries()) {
    if (!has_row(entry.model) || (entry.metric() != error && entry.metric() != nats)) continue;
    const std::vector<std::string> key(entry.key.begin(), entry.key.end() - 1);
    JudgedCase& one = found.try_emplace(key, JudgedCase{"", kNan, kNan}).first->second;
    one.setting = fmt::format("{} {} {} {}", table.key(entry, "semantics"), table.key(entry, "phase"),
                              table.key(entry, "budget"), table.key(entry, "rows"));
    (entry.metric() == error ? one.output_error : one.nats) = entry.model;
  }
  std::vector<JudgedCase> cases, of_future;
  for (auto& [key, one] : found) {
    if (std::isnan(one.output_error) || std::isnan(one.nats)) continue;
    if (key.back() == name_of(RowSet::future)) of_future.push_back(one);
    cases.push_back(std::move(one));
  }
  return of_future.empty() ? cases : of_future;
}

std::string how_large(std::span<const JudgedCase> cases) {
  double least = std::numeric_limits<double>::infinity(), most = 0;
  Order near, far;
  for (const JudgedCase& one : cases) {
    least = std::min(least, one.nats);
    most = std::max(most, one.nats);
    for (const JudgedCase& other : cases) {
      if (one.setting != other.setting || !(one.output_error < other.output_error) || one.nats == other.nats)
        continue;
      const double apart = other.output_error / one.output_error;
      if (apart >= kNear && apart < kFar) continue;
      Order& order = apart < kNear ? near : far;
      ++order.pairs;
      order.alike += one.nats < other.nats;
    }
  }
  if (near.pairs + far.pairs == 0) return kElsewhere;
  return fmt::format(
      "how large is large: here output errors below {} times apart have the order of the predicted nats "
      "(loss_step) {}, above {} {}; the cases cost {:.3g} to {:.3g} nats a step",
      kNear, near.text(), kFar, far.text(), least, most);
}

}  // namespace kvreplay
