#include "analysis/results/budget_methods.hpp"

#include <fmt/format.h>

#include <vector>

namespace kvreplay {

std::string shown_name(BudgetMethod method) {
  const BudgetMethodFacts& facts = kBudgetMethods[method];
  const std::string shown(facts.shown.empty() ? facts.name : facts.shown);
  return facts.is_oracle ? shown + " (oracle)" : shown;
}

std::string shown_name(std::string_view method) {
  const auto known = kBudgetMethods.named(method);
  return known ? shown_name(*known) : std::string(method);
}

std::string oracles_of_budgets() {
  const auto is_oracle = [](const BudgetMethodFacts& facts) { return facts.is_oracle; };
  const std::vector<std::string> names = kBudgetMethods.names_where(is_oracle);
  return fmt::format("{} and {} are oracles: they look at the decoding steps that they are judged on",
                     fmt::join(names.begin(), names.end() - 1, ", "), names.back());
}

}  // namespace kvreplay
