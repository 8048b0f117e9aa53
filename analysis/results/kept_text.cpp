#include "analysis/results/kept_text.hpp"

#include "analysis/options/option.hpp"
#include "analysis/results/budget_methods.hpp"
#include "analysis/results/csv.hpp"
#include "sim/eviction/policy.hpp"

#include <fmt/format.h>

#include <cmath>
#include <cstdlib>

namespace kvreplay {
namespace {

std::optional<double> sigma_of(std::string_view label) {
  const std::string text(label);
  char* end = nullptr;
  const double sigma = std::strtod(text.c_str(), &end);
  return !text.empty() && *end == 0 && sigma > 0 && sigma < 1 ? std::optional(sigma) : std::nullopt;
}

double rounded(double value) {
  constexpr double kDigits = 1e12;
  return std::round(value * kDigits) / kDigits;
}

}  // namespace

double rest_of(double share) { return rounded(1 - share); }

std::optional<double> kept_share(std::string_view label, std::ptrdiff_t l) {
  if (const auto tokens = index_in(label, kNoLimit))
    return l > 0 ? std::optional(static_cast<double>(*tokens) / static_cast<double>(l)) : std::nullopt;
  const auto sigma = sigma_of(label);
  return sigma ? std::optional(rest_of(*sigma)) : std::nullopt;
}

std::string percent(double share) { return fmt::format("{} %", shortest(rounded(100 * share))); }

std::string kept_text(std::string_view label) {
  if (const auto tokens = index_in(label, kNoLimit)) return "kept " + counted(*tokens, "token");
  const auto sigma = sigma_of(label);
  return sigma ? fmt::format("kept {}", percent(rest_of(*sigma))) : std::string(label);
}

std::string kept_with_share(std::string_view label, double share) {
  if (!index_in(label, kNoLimit)) return kept_text(label);
  const double hundredths = 100 * share;
  return fmt::format("{} ({} %)", kept_text(label),
                     hundredths < 1 ? fmt::format("{:.2g}", hundredths) : fmt::format("{:.1f}", hundredths));
}

std::string rows_text(std::string_view rows) {
  return std::string(rows == "future" ? "decoding steps" : rows);
}

namespace {

bool names_budget_method(Table table, std::string_view key) {
  return table == Table::budgets && key == "method";
}

}  // namespace

bool is_oracle(Table table, std::string_view key, std::string_view value) {
  if (names_budget_method(table, key)) {
    const auto method = kBudgetMethods.named(value);
    return method && kBudgetMethods[*method].is_oracle;
  }
  return key == "policy" && knows_the_future(value);
}

std::string shown_key(Table table, std::string_view key, std::string_view value) {
  if (key == "rows") return rows_text(value);
  if (key == "budget" || key == "sigma") return kept_text(value);
  return names_budget_method(table, key) ? shown_name(value) : std::string(value);
}

std::vector<std::string> shown_keys(Table table,
                                    std::span<const std::pair<std::string_view, std::string_view>> keys) {
  std::vector<std::string> shown;
  for (const auto& [key, value] : keys) shown.push_back(shown_key(table, key, value));
  return shown;
}

}  // namespace kvreplay
