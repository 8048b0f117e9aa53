#include "analysis/budgets/budget_options.hpp"
#include "analysis/claims/claim.hpp"
#include "analysis/results/csv_reader.hpp"
#include "analysis/results/figures.hpp"
#include "analysis/results/kept_text.hpp"
#include "analysis/results/validation.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace kvreplay {
namespace {

constexpr std::string_view kTrueLoss = "kl";

const FigureTable& table_in(const FigureTables& tables, Table table) {
  switch (table) {
    case Table::agreement:
      return tables.agreement;
    case Table::decode:
      return tables.decode;
    case Table::budgets:
      return tables.budgets;
    case Table::channels:
      return tables.channels;
    case Table::compensation:
      return tables.compensation;
    case Table::evictions:
    case Table::heads:
    case Table::diff:
      break;
  }
  return tables.evictions;
}

bool has_column(const FigureTable& table, std::string_view column) {
  const auto& columns = table.key_columns();
  return std::find(columns.begin(), columns.end(), column) != columns.end();
}

/// The entry with the values of all of `keys` whose columns the table has.
const FigureEntry* entry_with(const FigureTable& table, std::initializer_list<const Keys*> keys) {
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

std::vector<std::pair<Keys, Keys>> sides_of(const ClaimFacts& claim, const FigureTable& table) {
  if (claim.endings.empty()) return claim.sides;
  std::vector<std::pair<Keys, Keys>> sides;
  for (const std::string& name : table.distinct(claim.ended))
    for (const std::string_view ending : claim.endings)
      if (const std::string base = without(name, ending); !base.empty())
        sides.push_back({{{claim.ended, name}}, {{claim.ended, base}}});
  return sides;
}

/// Every combination of values of the columns in claim.each, the last column changing fastest.
std::vector<Keys> settings_of(const ClaimFacts& claim, const FigureTable& table) {
  std::vector<Keys> settings{{}};
  for (const auto& [column, listed] : claim.each) {
    if (!has_column(table, column)) continue;
    std::vector<Keys> longer;
    for (const Keys& setting : settings)
      for (const std::string& value : table.distinct(column)) {
        if (!listed.empty() && std::find(listed.begin(), listed.end(), value) == listed.end()) continue;
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
    const auto place = static_cast<std::size_t>(std::find(rows.begin(), rows.end(), value) - rows.begin());
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

double reduced(const FigureEntry& entry, Reduced how) {
  switch (how) {
    case Reduced::model:
      return entry.model;
    case Reduced::mean_of_heads:
      return mean(entry.heads);
    case Reduced::median_of_heads:
      return median(entry.heads);
    case Reduced::largest_layer:
      return largest(entry.layers);
  }
  return kNan;
}

double layers_won(const FigureEntry& left, const FigureEntry& right, Better better) {
  double won = 0, differ = 0;
  for (std::size_t i = 0; i < left.layers.size(); ++i) {
    const double a = left.layers[i], b = right.layers[i];
    if (std::isnan(a) || std::isnan(b) || a == b) continue;
    won += (a < b) == (better == Better::smaller), ++differ;
  }
  return differ == 0 ? kNan : won / differ;
}

/// The key that a case of validate.csv has in its table.
std::vector<std::string> key_of(const ValidatedCase& one, const FigureTable& table) {
  const std::size_t tilde = one.policy.rfind('~');
  const std::string first = one.policy.substr(0, tilde),
                    last = tilde == std::string::npos ? "" : one.policy.substr(tilde + 1);
  std::vector<std::string> key;
  for (const std::string& column : table.key_columns())
    key.push_back(column == "metric" ? std::string(kTrueLoss)
                  : column == "rows" ? "future"
                  : column == "policy" || column == "order"
                      ? (one.table == Table::evictions ? one.policy : first)
                  : column == "method"                      ? last
                  : column == "semantics"                   ? one.semantics
                  : column == "phase"                       ? one.phase
                  : column == "budget" || column == "sigma" ? one.budget
                                                            : "");
  return key;
}

void add_true_losses(FigureTables& tables, const ResultReader& results) {
  for (const ValidatedCase& one : read_validation(results).cases) {
    const bool known =
        one.table == Table::evictions || one.table == Table::budgets || one.table == Table::compensation;
    const double kl = one.measured_as(ValidationFigure::kl);
    if (!known || std::isnan(kl)) continue;
    FigureTable& table = one.table == Table::budgets        ? tables.budgets
                         : one.table == Table::compensation ? tables.compensation
                                                            : tables.evictions;
    table.add({key_of(one, table), {}, {}, kl, ""});
  }
}

/// The options of one command in a run's summary; null where it did not run.
const nlohmann::ordered_json* options_of(const ResultReader& results, const char* command) {
  const nlohmann::ordered_json* at = &results.summary();
  for (const char* const key : {"options", command}) {
    if (!at->is_object() || !at->contains(key)) return nullptr;
    at = &(*at)[key];
  }
  return at->is_object() ? at : nullptr;
}

std::string text_of(const nlohmann::ordered_json& value) {
  return value.is_string() ? value.get<std::string>() : value.dump();
}

/// ", semantics raw", ", sinks 8": what was asked for beside the papers' setting.
std::string divided_text(const ResultReader& results) {
  const auto* const options = options_of(results, "budget");
  const auto asked = [&](const char* key) {
    return options != nullptr && options->contains(key) ? (*options)[key] : nlohmann::ordered_json();
  };
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
      text += fmt::format(", {} {}", key, text_of(value));
  return text;
}

}  // namespace

ClaimTables claim_tables(const ResultReader& results, const ResultReader* left_one_out) {
  ClaimTables tables{Tables(results), asked_windows(results), divided_text(results)};
  add_true_losses(tables, results);
  if (left_one_out != nullptr) {
    FigureTables others = Tables(*left_one_out);
    add_true_losses(others, *left_one_out);
    for (const FigureEntry& entry : others.budgets.entries()) tables.budgets.add(entry);
  }
  return tables;
}

std::vector<MeasuredClaim> measured_claims(const ClaimTables& tables) {
  std::vector<MeasuredClaim> found;
  for (const ClaimFacts& claim : claim_table()) {
    if (tables.shape.l <= claim.longer_than) continue;
    const FigureTable& table = table_in(tables, claim.table);
    for (const auto& [left, right] : sides_of(claim, table))
      for (const Keys& setting : settings_of(claim, table)) {
        const FigureEntry *const a = entry_with(table, {&claim.of, &left, &setting}),
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

}  // namespace kvreplay
