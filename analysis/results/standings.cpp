#include "analysis/results/standings.hpp"

#include "analysis/options/option.hpp"
#include "analysis/results/figures.hpp"
#include "analysis/results/main_figures.hpp"
#include "analysis/results/over_dumps.hpp"
#include "analysis/results/student.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace kvreplay {
namespace {

using Item = ComparedItems::Item;

/// Of the items that `counts`, the one with the best mean over prompts; null where there is none.
template <class Counts>
const Item* best_of(const ComparedItems& items, const Counts& counts) {
  const Item* best = nullptr;
  double of_best = 0;
  for (const Item& item : items.items) {
    if (item.oracle || !counts(item)) continue;
    RunningMean over(items.facts->scale);
    for (const double value : item.values) over.add(value);
    const double mean = over.result().center();
    if (std::isnan(mean)) continue;
    if (best != nullptr && !(items.better() == Better::smaller ? mean < of_best : mean > of_best)) continue;
    best = &item;
    of_best = mean;
  }
  return best;
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
    for (const Item& item : items.items)
      if (mine(item) && &item != standing.best)
        standing.others.push_back({&items, &item, standing.best, items.pair(item, *standing.best)});
    adjust(standing.others);
    foresee(standing.others);
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
                       over.prompts == 1 ? "one prompt tells" : "two prompts tell");
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
  std::vector<Comparison> all;
  for (const Item& item : items.items) {
    if (!holds(item.name, names)) continue;
    const Item* const best = best_of(items, [&](const Item& other) {
      return !holds(other.name, names) &&
             (other.semantics == item.semantics || item.semantics == "given" || other.semantics == "given");
    });
    if (best != nullptr) all.push_back({&items, &item, best, items.pair(item, *best)});
  }
  adjust(all);
  foresee(all);
  return all;
}

std::vector<StandingTable> main_standings(const std::vector<ComparedItems>& all) {
  std::vector<StandingTable> tables;
  std::vector<std::vector<std::string>> keys;
  const auto has_future = [&](const ComparedItems& items) {
    return std::any_of(all.begin(), all.end(), [&](const ComparedItems& other) {
      return other.table == items.table && other.metric == items.metric && other.rows == "future";
    });
  };
  for (const ComparedItems& items : all) {
    if (items.facts->main.empty() || items.table == Table::agreement) continue;
    if (items.rows == "window" && has_future(items)) continue;
    const bool several_phases = std::any_of(all.begin(), all.end(), [&](const ComparedItems& other) {
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
    if (std::none_of(items.begin(), items.end(), [&](const auto* name) { return *name == item.name; }))
      items.push_back(&item.name);
  };
  for (const ComparedItems::Item& item : table.columns.front().of->items)
    for (const Standing& column : table.columns)
      if (&item == column.best || std::any_of(column.others.begin(), column.others.end(),
                                              [&](const Comparison& c) { return c.left->name == item.name; }))
        note(item);
  std::vector<std::vector<std::string>> lines{{""}};
  lines[0].insert(lines[0].end(), table.headings.begin(), table.headings.end());
  for (const std::string* const name : items) {
    std::vector<std::string> line{*name};
    bool oracle = false;
    for (const Standing& column : table.columns) {
      const auto other = std::find_if(column.others.begin(), column.others.end(),
                                      [&](const Comparison& c) { return c.left->name == *name; });
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

}  // namespace kvreplay
