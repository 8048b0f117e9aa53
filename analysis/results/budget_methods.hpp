#pragma once

#include "data/facts_table.hpp"

#include <string>
#include <string_view>

namespace kvreplay {

/// Methods that share a budget between heads: the words in the column `method` of budgets.csv. Definitions:
/// analysis/budgets/BUDGETS.md.
enum class BudgetMethod { uniform, pyramid, ada, duo, lu, lu_without_gap, optimal, profile };

struct BudgetMethodFacts {
  BudgetMethod id;
  std::string_view name;
  std::string_view meaning;     ///< one line
  std::string_view shown = {};  ///< as people read it, where the name does not say it
  bool needs_scores = false;    ///< of all heads
  bool is_oracle = false;       ///< divides by the curves, which look at the steps that it is judged on
  bool needs_profile = false;   ///< is there with a profile, and not asked for by name
  bool is_slow = false;         ///< may take seconds
  bool is_usual = true;         ///< runs where no method is asked for
};

inline constexpr auto kBudgetMethods = facts_table<BudgetMethodFacts>({
    {.id = BudgetMethod::uniform, .name = "uniform", .meaning = "Every head keeps the same"},
    {.id = BudgetMethod::pyramid,
     .name = "pyramid",
     .meaning = "PyramidKV: falls linearly over layers, beta = 20"},
    {.id = BudgetMethod::ada,
     .name = "ada",
     .meaning = "AdaKV: the best scores over a layer's heads, after each head's own top 20 %",
     .needs_scores = true},
    {.id = BudgetMethod::duo,
     .name = "duo",
     .meaning = "DuoAttention: heads that lose most keep everything, the others their pinned tokens",
     .is_oracle = true,
     .is_usual = false},
    {.id = BudgetMethod::lu,
     .name = "lu",
     .meaning = "LU-KV: the largest gains of every curve's lower convex hull, greedily",
     .is_oracle = true},
    {.id = BudgetMethod::lu_without_gap,
     .name = "lu_without_gap",
     .meaning = "LU-KV's ablation: lu as if every head's order were that of the importance itself",
     .is_oracle = true,
     .is_usual = false},
    {.id = BudgetMethod::optimal,
     .name = "optimal",
     .meaning = "The least total loss that integer budgets can have (multiple-choice knapsack)",
     .is_oracle = true,
     .is_slow = true},
    {.id = BudgetMethod::profile,
     .name = "profile",
     .meaning = "Shares measured on other dumps, averaged",
     .shown = "profile of other prompts",
     .needs_profile = true},
});
constexpr std::string_view name_of(BudgetMethod method) { return kBudgetMethods[method].name; }
/// As people read it, "lu (oracle)"; tables and options have the name.
std::string shown_name(BudgetMethod method);
/// A division's name as people read it; it stays as it is where no method has it.
std::string shown_name(std::string_view method);
/// "duo, lu, lu_without_gap and optimal are oracles: ...", what the reader of a list of methods has to know;
/// without a full stop.
std::string oracles_of_budgets();

}  // namespace kvreplay
