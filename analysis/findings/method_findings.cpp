#include "analysis/findings/candidates.hpp"
#include "analysis/results/kept_text.hpp"
#include "analysis/results/oracles.hpp"
#include "sim/compensation/compensation_facts.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

// What is done besides choosing tokens: compensation.csv, budgets.csv, channels.csv.

namespace kvreplay {
namespace {

std::string rows_that_judge(const FigureTable& table) {
  const std::vector<std::string> rows = table.distinct("rows", {{"metric", "output_error"}});
  return std::find(rows.begin(), rows.end(), "future") != rows.end() ? "future" : "window";
}

std::string judged_on(const std::string& rows) { return rows == "future" ? "decoding steps" : "window"; }

}  // namespace

std::vector<Finding> compensation_findings(const FigureTable& table) {
  const std::string rows = rows_that_judge(table);
  struct Extreme {
    double ratio = kNan, before = 0, after = 0;
    Wanted place;
  } best, worst;
  for (const FigureEntry& entry : table.entries()) {
    if (!table.matches(entry, {{"metric", "output_error"}, {"rows", rows}}) ||
        table.key(entry, "method") == name_of(Compensation::none))
      continue;
    Wanted place;
    for (const char* column : {"policy", "semantics", "phase", "budget"})
      place.emplace_back(column, table.key(entry, column));
    place.insert(place.end(), {{"rows", rows}, {"metric", "output_error"}});
    const FigureEntry* const plain = table.find(with(place, "method", name_of(Compensation::none)));
    if (plain == nullptr || !(plain->model > 0) || std::isnan(entry.model)) continue;
    place.emplace_back("method", table.key(entry, "method"));
    const Extreme here{entry.model / plain->model, plain->model, entry.model, std::move(place)};
    if (!(here.ratio >= best.ratio)) best = here;
    if (!(here.ratio <= worst.ratio)) worst = here;
  }
  std::vector<Finding> found;
  const auto say = [&](FindingKind kind, const Extreme& one, const char* what, double weight) {
    const auto value_of = [&](std::string_view column) {
      return std::find_if(one.place.begin(), one.place.end(),
                          [&](const auto& key) { return key.first == column; })
          ->second;
    };
    Finding finding{
        kind,
        fmt::format("{}: {} on what {} keeps ({}) leaves {} times the output error on the {} ({} "
                    "instead of {}).",
                    what, value_of("method"), value_of("policy"), kept_text(value_of("budget")),
                    value_text(one.ratio), judged_on(rows), value_text(one.after), value_text(one.before)),
        weight,
        {Table::compensation, {}}};
    for (const auto& [column, value] : one.place) finding.place.keys.emplace_back(column, value);
    found.push_back(std::move(finding));
  };
  constexpr double kLeast = 1e-6;
  if (best.ratio < 1)
    say(FindingKind::compensation, best, "The most that any method makes up for",
        1 / std::max(best.ratio, kLeast));
  if (worst.ratio > 1) say(FindingKind::cost, worst, "The most that any method costs", worst.ratio);
  return found;
}

std::optional<Finding> shared_budget(const FigureTable& budgets) {
  if (budgets.empty()) return std::nullopt;
  const std::string order = budgets.distinct("order").front();
  const Wanted common = {{"order", order}, {"metric", "output_error"}};
  struct Saving {
    double ratio = kNan;
    std::string method;
  };
  /// The lowest error in shares of uniform's, of oracles or of the others.
  const auto lowest = [&](const std::string& sigma, bool oracles) {
    Saving saving;
    const Wanted here = with(common, "sigma", sigma);
    const FigureEntry* const uniform = budgets.find(with(here, "method", "uniform"));
    if (uniform == nullptr || !(uniform->model > 0)) return saving;
    for (const FigureEntry& entry : budgets.entries()) {
      if (&entry == uniform || !budgets.matches(entry, here) || std::isnan(entry.model) ||
          is_oracle(Table::budgets, "method", budgets.key(entry, "method")) != oracles)
        continue;
      if (!(entry.model / uniform->model >= saving.ratio))
        saving = {entry.model / uniform->model, budgets.key(entry, "method")};
    }
    return saving;
  };
  Saving best;
  std::string sigma;
  for (const std::string& one : budgets.distinct("sigma", common))
    for (const bool oracles : {false, true})
      if (Saving saving = lowest(one, oracles); saving.ratio < 1 && !(saving.ratio >= best.ratio))
        best = std::move(saving), sigma = one;
  if (sigma.empty()) return std::nullopt;
  Finding finding{
      FindingKind::budgets,
      fmt::format("Sharing one budget between the heads by {} saves up to {:.0f} % of uniform's output "
                  "error ({}, tokens ranked by {})",
                  shown_key(Table::budgets, "method", best.method), 100 * (1 - best.ratio), kept_text(sigma),
                  order),
      1 / std::max(best.ratio, 1e-6),
      {Table::budgets,
       {{"order", order}, {"method", best.method}, {"sigma", sigma}, {"metric", "output_error"}}}};
  if (is_oracle(Table::budgets, "method", best.method))
    if (const Saving fair = lowest(sigma, false); !std::isnan(fair.ratio))
      finding.text += fair.ratio < 1 ? fmt::format("; {}, which does not know the future, saves {:.0f} %",
                                                   fair.method, 100 * (1 - fair.ratio))
                                     : std::string("; no method that does not know the future saves any");
  finding.text += '.';
  return finding;
}

std::optional<std::string> middle_ratio(const FigureTable& channels, const Wanted& common) {
  std::vector<std::string> ratios = channels.distinct("ratio", common);
  if (ratios.empty()) return std::nullopt;
  std::sort(ratios.begin(), ratios.end(),
            [](const std::string& a, const std::string& b) { return number_in(a) < number_in(b); });
  return ratios[(ratios.size() - 1) / 2];
}

std::optional<Finding> pruned_channels(const FigureTable& channels) {
  const std::string rows = rows_that_judge(channels);
  Wanted common = {{"metric", "output_error"}, {"rows", rows}};
  const std::optional<std::string> middle = middle_ratio(channels, common);
  if (!middle) return std::nullopt;
  const std::string& ratio = *middle;
  common = with(common, "ratio", ratio);
  const FigureEntry *best = nullptr, *worst = nullptr;
  for (const FigureEntry& entry : channels.entries()) {
    if (!channels.matches(entry, common) || std::isnan(entry.model)) continue;
    if (best == nullptr || entry.model < best->model) best = &entry;
    if (worst == nullptr || entry.model > worst->model) worst = &entry;
  }
  if (best == nullptr || best == worst || !(best->model > 0)) return std::nullopt;
  const FigureEntry* const think = channels.find(with(common, "method", "think"));
  const FigureEntry& other = think != nullptr && think != best ? *think : *worst;
  const std::string& method = channels.key(*best, "method");
  return Finding{
      FindingKind::channels,
      fmt::format("Of the ways to prune {:g} of the key channels {} costs least: output error {} on the "
                  "{}, {} costs {} times as much{}.",
                  number_in(ratio), method, value_text(best->model), judged_on(rows),
                  channels.key(other, "method"), factor_text(other.model / best->model),
                  &other == worst ? ""
                                  : fmt::format(" and {} {} times", channels.key(*worst, "method"),
                                                factor_text(worst->model / best->model))),
      other.model / best->model,
      {Table::channels, {{"method", method}, {"ratio", ratio}, {"rows", rows}, {"metric", "output_error"}}}};
}

}  // namespace kvreplay
