#include "analysis/results/validation.hpp"

#include "analysis/results/agreement.hpp"
#include "analysis/results/kept_text.hpp"
#include "analysis/results/recorded_files.hpp"
#include "sim/compensation/compensation_facts.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <system_error>

namespace kvreplay {
namespace {

namespace fs = std::filesystem;

constexpr const char* kTable = "validate.csv";
constexpr const char* kAnswers = "answers.csv";
constexpr const char* kStored = "stored";  ///< the protocol of folders that do not say it
constexpr const char* kHow = "validate.json";
constexpr std::string_view kChannels = "channels:";

/// A budget's policy is "<order>~<method>", that of a compensated eviction too, a selection of channels
/// "channels:<method>".
Table table_of(const ResultReader& results, const std::string& policy) {
  if (policy.starts_with(kChannels)) return Table::channels;
  const bool compensated = kCompensations.named(policy.substr(policy.rfind('~') + 1)).has_value();
  if (compensated && results.has(Table::compensation)) return Table::compensation;
  // An eviction may be called by a name of the user's that holds "~" as well.
  return policy.find('~') != std::string::npos && results.has(Table::budgets) ? Table::budgets
                                                                              : Table::evictions;
}

bool has_oracle(Table table, const std::string& policy) {
  const std::string kept_by = policy.substr(0, policy.rfind('~'));
  if (table == Table::compensation) return is_oracle(Table::evictions, "policy", kept_by);
  if (table != Table::budgets) return table == Table::evictions && is_oracle(table, "policy", policy);
  return is_oracle(table, "method", policy.substr(policy.rfind('~') + 1));
}

/// The case of an entry, in the words of validate.csv. Cases of budgets have no semantics: the run has a
/// single one.
std::vector<std::string> case_of(const MetricEntry& entry, const MetricTable& table) {
  const auto key = [&](std::string_view column) { return table.key(entry, column); };
  switch (table.table()) {
    case Table::compensation:
      return {key("policy") + "~" + key("method"), key("semantics"), key("phase"), key("budget")};
    case Table::budgets:
      return {key("order") + "~" + key("method"), "", "prefill", key("sigma")};
    case Table::channels:
      return {std::string(kChannels) + key("method"), key("semantics"), "prefill", key("ratio")};
    case Table::evictions:
    case Table::heads:
    case Table::agreement:
    case Table::decode:
    case Table::diff:
      break;
  }
  return {key("policy"), key("semantics"), key("phase"), key("budget")};
}

std::vector<std::string> keys_of(const ValidatedCase& one) {
  return {one.policy, one.table == Table::budgets ? "" : one.semantics, one.phase, one.budget};
}

/// Calls visit(entry, case) for the entries of the whole model on the decoding steps.
template <class Visit>
void each_case(const MetricTable& table, const Visit& visit) {
  for (const MetricEntry& entry : table.entries())
    if (const std::string& rows = table.key(entry, "rows");
        has_row(entry.model) && (rows == name_of(RowSet::future) || !is_in(table.key_columns(), "rows")))
      visit(entry, case_of(entry, table));
}

std::vector<ValidatedCase> read_cases(const ResultReader& results) {
  CsvReader csv(results.folder() / kTable);
  const std::size_t policy = csv.need("policy"), semantics = csv.need("semantics"), phase = csv.need("phase"),
                    budget = csv.need("budget"), metric = csv.need("metric"), value = csv.need("value");
  const std::optional<std::size_t> protocol = csv.column("protocol");
  std::vector<ValidatedCase> cases;
  for (std::vector<std::string> row; csv.next(row);) {
    ValidatedCase one{table_of(results, row[policy]),
                      row[policy],
                      row[semantics],
                      row[phase],
                      row[budget],
                      protocol ? row[*protocol] : kStored,
                      false,
                      {}};
    if (cases.empty() || keys_of(cases.back()) != keys_of(one) || cases.back().protocol != one.protocol) {
      one.is_oracle = has_oracle(one.table, one.policy);
      one.measured.fill(kNan);
      cases.push_back(std::move(one));
    }
    const auto figure = kValidationFigures.named(row[metric]);
    if (!figure) csv.fail("a figure that kvvalidate.py writes", row[metric]);
    cases.back().measured[static_cast<std::size_t>(*figure)] = csv.number_or_nan(row, value);
  }
  return cases;
}

/// Adds the figures of answers.csv to the cases, if the file exists.
void add_answers(const ResultReader& results, std::vector<ValidatedCase>& cases) {
  std::error_code ignored;
  if (!fs::is_regular_file(results.folder() / kAnswers, ignored)) return;
  CsvReader csv(results.folder() / kAnswers);
  std::array<std::size_t, 4> keys;
  std::ranges::transform(std::array{"policy", "semantics", "phase", "budget"}, keys.begin(),
                         [&](const char* key) { return csv.need(key); });
  std::vector<std::pair<ValidationFigure, std::size_t>> columns;
  for (const auto& figure : kValidationFigures.all())
    if (figure >= ValidationFigure::right)
      columns.emplace_back(
          figure,
          csv.need(figure == ValidationFigure::answer_nll ? "nll" : std::string(facts_of(figure).name)));
  std::map<std::vector<std::string>, ValidatedCase*> found;
  const std::optional<std::size_t> protocol = csv.column("protocol");
  for (ValidatedCase& one : cases)
    found.emplace(std::vector{one.policy, one.semantics, one.phase, one.budget, one.protocol}, &one);
  for (std::vector<std::string> row; csv.next(row);) {
    std::vector<std::string> key;
    for (const std::size_t column : keys) key.push_back(row[column]);
    key.push_back(protocol ? row[*protocol] : kStored);
    const auto one = found.find(key);
    if (one == found.end()) continue;
    for (const auto& [figure, column] : columns)
      one->second->measured[static_cast<std::size_t>(figure)] = csv.number_or_nan(row, column);
  }
}

void add_predictions(const ResultReader& results, std::vector<ValidatedCase>& cases) {
  std::multimap<std::pair<Table, std::vector<std::string>>, ValidatedCase*> found;
  for (ValidatedCase& one : cases) found.emplace(std::pair(one.table, keys_of(one)), &one);
  for (const Table table : kValidatedTables) {
    if (!results.has(table)) continue;
    each_case(MetricTable(results, table), [&](const MetricEntry& entry, const auto& which) {
      const auto [begin, end] = found.equal_range({table, which});
      for (auto one = begin; one != end; ++one) one->second->predicted.emplace(entry.metric(), entry.model);
    });
  }
}

std::string budget_text(const ValidatedCase& one) {
  return one.table == Table::channels ? fmt::format("pruned {}", percent(number_in(one.budget)))
                                      : kept_text(one.budget);
}

}  // namespace

std::string shown_policy(const ValidatedCase& one) {
  return one.is_oracle && one.table == Table::budgets ? one.policy + " (oracle)" : one.policy;
}

std::string setting_text(const ValidatedCase& one) {
  std::vector<std::string> parts;
  if (!one.budget.empty()) parts.push_back(budget_text(one));
  if (one.semantics != "paper") parts.push_back(one.semantics);
  if (one.phase == "given") parts.emplace_back("kept sets given");
  if (one.phase != "given" && one.phase != "prefill") parts.push_back(one.phase);
  if (one.is_written()) parts.push_back(one.protocol);
  return fmt::format("{}", fmt::join(parts, ", "));
}

double ValidatedCase::predicted_by(std::string_view figure) const {
  const auto it = predicted.find(figure);
  return it == predicted.end() ? kNan : it->second;
}

bool ValidatedCase::is_beside(const ValidatedCase& other) const {
  return table == other.table && semantics == other.semantics && phase == other.phase &&
         budget == other.budget && protocol == other.protocol;
}

std::vector<ValidationFigure> Validation::measured() const {
  std::vector<ValidationFigure> all;
  for (const ValidationFigure figure : kValidationFigures.all())
    if (std::ranges::any_of(cases, [&](const auto& one) { return !std::isnan(one.measured_as(figure)); }))
      all.push_back(figure);
  return all;
}

std::vector<const FigureFacts*> Validation::predictors(Table table) const {
  std::vector<const FigureFacts*> all;
  for (const FigureFacts* const facts : offered_figures(table)) {
    const bool predicts = std::ranges::any_of(cases, [&](const ValidatedCase& one) {
      return one.table == table && !std::isnan(one.predicted_by(facts->name));
    });
    if (facts->better == Better::smaller && predicts) all.push_back(facts);
  }
  return all;
}

std::size_t bytes_of(const Validation& validation) {
  return sizeof(Validation) + validation.cases.size() * (sizeof(ValidatedCase) + 512);
}

Validation read_validation(const ResultReader& results) {
  Validation validation;
  std::error_code ignored;
  if (!fs::is_regular_file(results.folder() / kTable, ignored)) {
    validation.missing =
        "Not measured: data/capture/kvvalidate.py --model MODEL --results DIR runs the model over what every "
        "case "
        "leaves of the prompt.";
    return validation;
  }
  constexpr std::uintmax_t kMost = 1 << 24;
  const std::string where = (results.folder() / kHow).string();
  const Json how = parse_json_object(file_text(where, kMost), where);
  const JsonFields fields(how, where);
  if (fields.at("results") != results.summary().value(kHashOfFiles, Json())) {
    validation.missing =
        "What was measured is of results that stood in this folder before; kvvalidate.py --force measures "
        "these.";
    return validation;
  }
  validation.finished = fields.boolean("finished").value_or(false);
  validation.cases = read_cases(results);
  add_answers(results, validation.cases);
  add_predictions(results, validation.cases);
  if (validation.cases.empty()) validation.missing = "kvvalidate.py has not measured any case yet.";
  return validation;
}

std::span<const FigureFacts* const> measured_figures(Table table) {
  static constexpr std::array kCompared{
      &facts_of(ValidationFigure::kl), &facts_of(ValidationFigure::perplexity),
      &facts_of(ValidationFigure::right), &facts_of(ValidationFigure::kl_answer)};
  return is_in(kValidatedTables, table) ? std::span<const FigureFacts* const>(kCompared)
                                        : std::span<const FigureFacts* const>();
}

std::vector<MetricEntry> measured_metrics(const ResultReader& results, const MetricTable& table,
                                          bool written) {
  std::vector<MetricEntry> found;
  if (measured_figures(table.table()).empty() || table.empty()) return found;
  const Validation validation = read_validation(results);
  std::map<std::vector<std::string>, const ValidatedCase*> measured;  // each is taken once
  for (const ValidatedCase& one : validation.cases)
    if (one.table == table.table() && one.is_written() == written) measured.emplace(keys_of(one), &one);
  each_case(table, [&](const MetricEntry& entry, const auto& which) {
    const auto one = measured.find(which);
    if (one == measured.end()) return;
    for (const FigureFacts* const facts : measured_figures(table.table())) {
      const double value = one->second->measured_as(*kValidationFigures.named(facts->name));
      if (std::isnan(value)) continue;
      MetricEntry& metric = found.emplace_back(table.blank(entry.key));
      metric.key.back() = facts->name;
      metric.model = value;
      metric.kept = entry.kept;
    }
    measured.erase(one);
  });
  return found;
}

MetricTable table_and_measured(const ResultReader& results, Table table) {
  MetricTable all(results, table);
  for (MetricEntry& entry : measured_metrics(results, all)) all.add(std::move(entry));
  return all;
}

OrderByFigure order_by(std::string_view figure, std::span<const ValidatedCase* const> cases,
                       ValidationFigure by) {
  std::vector<double> predicted, measured, ratios;
  for (const ValidatedCase* const one : cases) {
    const double p = one->predicted_by(figure), kl = one->measured_as(by);
    if (std::isnan(p) || std::isnan(kl)) continue;
    predicted.push_back(p);
    measured.push_back(kl);
    if (kl > 0) ratios.push_back(p / kl);
  }
  OrderByFigure found{.cases = predicted.size(), .spearman = kNan, .ratio = kNan};
  for (std::size_t i = 0; i < predicted.size(); ++i)
    for (std::size_t j = 0; j < predicted.size(); ++j)
      if (measured[i] >= kApart * measured[j] && measured[i] > 0) {
        ++found.pairs;
        found.in_order += predicted[i] > predicted[j];
      }
  constexpr std::size_t kRanked = 3;
  if (predicted.size() >= kRanked)
    found.spearman = agreement(predicted, measured, false)[AgreementFigure::spearman];
  if (!ratios.empty()) found.ratio = quantile(ratios, 0.5);
  return found;
}

std::vector<std::vector<const ValidatedCase*>> settings_of(const Validation& validation, Table table) {
  std::vector<std::vector<const ValidatedCase*>> settings;
  for (const ValidatedCase& one : validation.cases) {
    if (one.table != table) continue;
    const auto place =
        std::ranges::find_if(settings, [&](const auto& setting) { return setting.front()->is_beside(one); });
    if (place == settings.end())
      settings.push_back({&one});
    else
      place->push_back(&one);
  }
  std::erase_if(settings, [](const auto& setting) { return setting.size() < 2; });
  return settings;
}

}  // namespace kvreplay
