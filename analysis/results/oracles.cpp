#include "analysis/results/oracles.hpp"

#include "analysis/results/budget_methods.hpp"
#include "sim/eviction/policy.hpp"

namespace kvreplay {
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

std::string shown_key(Table table, std::string_view key, const std::string& value) {
  return names_budget_method(table, key) ? shown_name(value) : value;
}

}  // namespace kvreplay
