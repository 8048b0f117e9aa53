#pragma once

#include "analysis/results/result_reader.hpp"
#include "viewer/work/budget_view.hpp"

#include <optional>
#include <string>
#include <vector>

// What a result folder holds of `kvreplay budget`, in the shapes of budget_view.hpp. Heads count all layers
// of the dump; those of layers that the run left out have no budget and a loss of NaN.

namespace kvreplay::viewer {

/// budgets.csv.
struct BudgetResults {
  /// One total shared between all heads under one order.
  struct Division {
    std::string order, sigma;  ///< as the table has them
    std::vector<BudgetShare> methods;
  };
  std::vector<Division> divisions;  ///< in the table's order
  bool normalised = false;          ///< losses are shares of their layer's

  /// Null where there is none.
  const Division* find(const std::string& order, const std::string& sigma) const;
};
std::size_t bytes_of(const BudgetResults& results);

/// Why there is nothing to read, as one clause; nothing where there is.
std::optional<std::string> why_no_budget_results(const ResultReader& results);
/// Throws InputError, one line, where the table is not what it should be.
BudgetResults read_budgets(const ResultReader& results);

/// curves/<order>.npy: L(0..l) of every head, empty for layers that the run left out. Throws InputError where
/// the file is missing or of another shape.
struct BudgetResultCurves {
  std::vector<std::vector<double>> loss;  ///< [layers x n_kv]
  /// The share that `lu` keeps of a head's tokens at sigma 0.01 .. 0.99, of curves/<order>~lu.npy: [layers x
  /// n_kv], empty where unknown.
  std::vector<std::vector<double>> kept;
};
std::size_t bytes_of(const BudgetResultCurves& curves);
BudgetResultCurves read_budget_curves(const ResultReader& results, const std::string& order);

}  // namespace kvreplay::viewer
