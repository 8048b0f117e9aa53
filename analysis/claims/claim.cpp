#include "analysis/claims/claim.hpp"

#include "analysis/budgets/budget_options.hpp"
#include "analysis/results/csv.hpp"
#include "analysis/results/figures.hpp"
#include "analysis/results/kept_text.hpp"
#include "analysis/results/over_dumps.hpp"
#include "analysis/results/paired.hpp"
#include "analysis/results/validation.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>

namespace kvreplay {
namespace {

constexpr std::string_view kTrueLoss = "kl";

const MetricTable& table_in(const FigureTables& tables, Table table) {
  for (const MetricTable* const one :
       {&tables.agreement, &tables.decode, &tables.budgets, &tables.channels, &tables.compensation})
    if (one->table() == table) return *one;
  return tables.evictions;
}

bool has_column(const MetricTable& table, std::string_view column) {
  const auto& columns = table.key_columns();
  return is_in(columns, column);
}

/// The entry with the values of all of `keys` whose columns the table has.
const MetricEntry* entry_with(const MetricTable& table, std::initializer_list<const Keys*> keys) {
  Wanted wanted;
  for (const Keys* const some : keys)
    for (const auto& [column, value] : *some)
      if (has_column(table, column)) wanted.emplace_back(column, value);
  return table.find(wanted);
}

/// "h2o[window=16]" of "h2o+joint[window=16]"; empty where the name does not have the ending.
std::string without(const std::string& name, std::string_view ending) {
  const std::size_t end = std::min(name.find('['), name.size());
  if (!std::string_view(name).substr(0, end).ends_with(ending)) return "";
  return name.substr(0, end - ending.size()) + name.substr(end);
}

std::vector<std::pair<Keys, Keys>> sides_of(const ClaimFacts& claim, const MetricTable& table) {
  if (claim.endings.empty()) return claim.sides;
  std::vector<std::pair<Keys, Keys>> sides;
  for (const std::string& name : table.distinct(claim.ended))
    for (const std::string_view ending : claim.endings)
      if (const std::string base = without(name, ending); !base.empty())
        sides.push_back({{{claim.ended, name}}, {{claim.ended, base}}});
  return sides;
}

/// Every combination of values of the columns in claim.each, the last column changing fastest.
std::vector<Keys> settings_of(const ClaimFacts& claim, const MetricTable& table) {
  std::vector<Keys> settings{{}};
  for (const auto& [column, listed] : claim.each) {
    if (!has_column(table, column)) continue;
    std::vector<Keys> longer;
    for (const Keys& setting : settings)
      for (const std::string& value : table.distinct(column)) {
        if (!listed.empty() && !is_in(listed, value)) continue;
        longer.push_back(setting);
        longer.back().emplace_back(column, value);
      }
    settings = std::move(longer);
  }
  return settings;
}

/// A value as a setting has it.
std::string words(std::string_view column, const std::string& value) {
  if (column == "budget" || column == "sigma") return kept_text(value);
  if (column == "ratio") return fmt::format("pruned {}", percent(number_in(value)));
  if (column == "rows") return rows_text(value);
  if (column == "window") return value == "all" ? "all rows" : fmt::format("window {}", value);
  if (column == "reserve" || column == "recent")
    return fmt::format("{} {}", value, column == "recent" ? "recent" : "reserved");
  return value == kTrueLoss ? "true KL" : value;
}

std::string joined_words(const Keys& keys, std::string_view between) {
  std::vector<std::string> parts;
  for (const auto& [column, value] : keys) parts.push_back(words(column, value));
  return fmt::format("{}", fmt::join(parts, between));
}

/// Windows by what was asked for: the rows that "all" comes to differ between prompts.
void name_windows(Keys& keys, const ClaimTables& tables) {
  const std::vector<std::string> rows = tables.agreement.distinct("window");
  for (auto& [column, value] : keys) {
    if (column != "window") continue;
    const auto place = static_cast<std::size_t>(std::ranges::find(rows, value) - rows.begin());
    if (place < tables.windows.size()) value = tables.windows[place];
  }
}

std::string setting_text(const ClaimFacts& claim, const ClaimTables& tables, const Keys& left,
                         const Keys& right, const Keys& each) {
  Keys said = each;
  name_windows(said, tables);
  for (const auto& [column, value] : claim.of)
    if (column == "metric" || column == "rows") said.emplace_back(column, value);
  std::string text = joined_words(left, "~");
  if (!right.empty()) text += (claim.effect == Effect::difference ? " - " : " / ") + joined_words(right, "~");
  if (!said.empty()) text += ", " + joined_words(said, ", ");
  return claim.table == Table::budgets ? text + tables.divided : text;
}

double reduced(const MetricEntry& entry, Reduced how) {
  switch (how) {
    case Reduced::model:
      return entry.model;
    case Reduced::mean_of_heads:
      return mean(entry.heads);
    case Reduced::median_of_heads:
      return median(entry.heads);
    case Reduced::largest_head:
      return largest(entry.heads);
  }
  return kNan;
}

double layers_won(const MetricEntry& left, const MetricEntry& right, Better better) {
  double won = 0, differ = 0;
  for (std::size_t i = 0; i < left.layers.size(); ++i) {
    const double a = left.layers[i], b = right.layers[i];
    if (std::isnan(a) || std::isnan(b) || a == b) continue;
    won += (a < b) == (better == Better::smaller), ++differ;
  }
  return differ == 0 ? kNan : won / differ;
}

void add_true_losses(FigureTables& tables, const ResultReader& results) {
  for (MetricTable* const table : {&tables.evictions, &tables.budgets, &tables.compensation})
    for (MetricEntry& entry : measured_metrics(results, *table)) table->add(std::move(entry));
}

/// ", semantics raw", ", sinks 8": what was asked for beside the papers' setting.
std::string divided_text(const ResultReader& results) {
  const auto asked = [&](const char* key) { return results.option("budget", key); };
  const auto semantics = asked("semantics");
  const auto named = semantics.is_string() ? kBudgetSemantics.named(semantics.get<std::string>())
                                           : std::optional(BudgetSemantics::paper);
  if (!named) return "";
  const BudgetSemanticsFacts& own = kBudgetSemantics[*named];
  std::string text = *named == BudgetSemantics::paper ? "" : fmt::format(", semantics {}", own.name);
  for (const auto& [key, usual] : std::initializer_list<std::pair<const char*, nlohmann::ordered_json>>{
           {"loss", "importance"},
           {"normalise", own.normalise == Normalise::layer ? "layer" : "none"},
           {"floor", own.floor},
           {"sinks", own.sinks},
           {"recent", nullptr}})
    if (const auto value = asked(key); !value.is_null() && value != usual)
      text += fmt::format(", {} {}", key, unquoted(value));
  return text;
}

}  // namespace

ClaimTables claim_tables(const ResultReader& results, const ResultReader* left_one_out) {
  ClaimTables tables{Tables(results), asked_windows(results), divided_text(results)};
  add_true_losses(tables, results);
  if (left_one_out != nullptr) {
    FigureTables others = Tables(*left_one_out);
    add_true_losses(others, *left_one_out);
    for (const MetricEntry& entry : others.budgets.entries()) tables.budgets.add(entry);
  }
  return tables;
}

std::vector<MeasuredClaim> measured_claims(const ClaimTables& tables) {
  std::vector<MeasuredClaim> found;
  for (const ClaimFacts& claim : claim_table()) {
    if (tables.shape.l <= claim.longer_than) continue;
    const MetricTable& table = table_in(tables, claim.table);
    for (const auto& [left, right] : sides_of(claim, table))
      for (const Keys& setting : settings_of(claim, table)) {
        const MetricEntry *const a = entry_with(table, {&claim.of, &left, &setting}),
                                 *const b = right.empty() ? nullptr
                                                          : entry_with(table, {&claim.of, &right, &setting});
        if (a == nullptr || (b == nullptr && !right.empty())) continue;
        const double value = reduced(*a, claim.reduced),
                     other = b == nullptr ? 0 : reduced(*b, claim.reduced);
        if (std::isnan(value) || std::isnan(other)) continue;
        found.push_back({&claim, setting_text(claim, tables, left, right, setting), value, other,
                         b == nullptr ? kNan : layers_won(*a, *b, claim.better)});
      }
  }
  return found;
}

namespace {

/// An interval that contains no effect and ends within this distance of it excludes a large effect.
constexpr double kAlikeRatio = 0.2, kAlikeDifference = 0.05;

/// The largest distance of the interval from the bound.
double furthest(const ClaimEffect& effect) {
  return std::max(std::abs(effect.low - effect.claim->bound), std::abs(effect.high - effect.claim->bound));
}

/// NaN where a ratio would be 0 or infinite.
double effect_of(const MeasuredClaim& one) {
  switch (one.claim->effect) {
    case Effect::ratio:
      if (one.left == one.right) return 1;
      return one.left > 0 && one.right > 0 ? one.left / one.right : kNan;
    case Effect::difference:
      return one.left - one.right;
    case Effect::correlation:
      return one.left;
  }
  return kNan;
}

void average(ClaimEffect& effect, const std::vector<double>& left, const std::vector<double>& right) {
  const ClaimFacts& claim = *effect.claim;
  if (claim.effect == Effect::correlation) {
    const OverDumps over = over_dumps(left, FigureScale::correlation);
    effect.mean = over.center(), effect.low = over.low, effect.high = over.high;
  } else {
    const Paired over = paired(left, right, claim.better,
                               claim.effect == Effect::ratio ? FigureScale::log : FigureScale::share);
    effect.mean = over.center(), effect.low = over.lower(), effect.high = over.upper();
  }
  if (effect.prompts < static_cast<std::size_t>(kFewestPrompts)) effect.low = effect.high = kNan;
  if (effect.prompts == 1)  // itself, not by way of its logarithm
    effect.mean = *std::ranges::find_if_not(effect.dumps, [](double value) { return std::isnan(value); });
}

}  // namespace

std::string claimed_text(const ClaimFacts& claim) {
  constexpr const char* kNames[] = {"ratio", "difference", "correlation"};
  return fmt::format("{} {} {}", kNames[static_cast<std::size_t>(claim.effect)],
                     claim.better == Better::smaller ? "<" : ">", shortest(claim.bound));
}

Verdict ClaimEffect::verdict() const {
  if (std::isnan(low) || std::isnan(high)) return Verdict::none;
  const bool smaller = claim->better == Better::smaller;
  if (smaller ? high < claim->bound : low > claim->bound) return Verdict::holds;
  if (smaller ? low > claim->bound : high < claim->bound) return Verdict::fails;
  const double no_effect = claim->effect == Effect::ratio ? 1 : 0;
  if (claim->effect == Effect::correlation || claim->bound != no_effect) return Verdict::undecided;
  return furthest(*this) <= (claim->effect == Effect::ratio ? kAlikeRatio : kAlikeDifference)
             ? Verdict::alike
             : Verdict::undecided;
}

std::string ClaimEffect::verdict_text() const {
  switch (verdict()) {
    case Verdict::none:
      return "";
    case Verdict::holds:
      return "holds";
    case Verdict::fails:
      return "does not hold";
    case Verdict::alike:
      return claim->effect == Effect::ratio
                 ? fmt::format("no difference at this size (up to {:.2g} %)", 100 * furthest(*this))
                 : fmt::format("no difference at this size (up to {:.2g})", furthest(*this));
    case Verdict::undecided:
      return fmt::format("undecided: between {} and {}", text_of(low), text_of(high));
  }
  return "";
}

std::string ClaimEffect::text_of(double value) const {
  if (std::isnan(value)) return "-";
  switch (claim->effect) {
    case Effect::ratio:
      return std::abs(value - 1) < 0.01 ? fmt::format("{:.4f}", value) : short_number(value);
    case Effect::difference:
      return fmt::format("{:+.3f}", value);
    case Effect::correlation:
      return fmt::format("{:.3f}", value);
  }
  return "";
}

std::string ClaimEffect::text() const {
  return std::isnan(low) ? text_of(mean)
                         : fmt::format("{} [{}, {}]", text_of(mean), text_of(low), text_of(high));
}

std::vector<ClaimEffect> claim_effects(std::span<const std::vector<MeasuredClaim>> prompts) {
  struct Sides {
    std::vector<double> left, right;
    RunningMean layers;
  };
  std::vector<ClaimEffect> effects;
  std::vector<Sides> sides;
  std::map<std::pair<const ClaimFacts*, std::string>, std::size_t> places;
  for (std::size_t i = 0; i < prompts.size(); ++i)
    for (const MeasuredClaim& one : prompts[i]) {
      const double value = effect_of(one);
      if (std::isnan(value)) continue;
      const auto [at, is_new] = places.emplace(std::pair(one.claim, one.setting), effects.size());
      if (is_new) {
        const std::vector<double> none(prompts.size(), kNan);
        effects.push_back({.claim = one.claim, .setting = one.setting, .dumps = none});
        sides.push_back({none, none, RunningMean()});
      }
      Sides& of = sides[at->second];
      of.left[i] = one.left, of.right[i] = one.right;
      of.layers.add(one.layers);
      effects[at->second].dumps[i] = value;
      ++effects[at->second].prompts;
    }
  for (std::size_t k = 0; k < effects.size(); ++k) {
    average(effects[k], sides[k].left, sides[k].right);
    effects[k].layers = sides[k].layers.result().mean;
  }
  std::ranges::stable_sort(effects,
                           [](const ClaimEffect& a, const ClaimEffect& b) { return a.claim < b.claim; });
  return effects;
}

}  // namespace kvreplay
