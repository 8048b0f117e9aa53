#pragma once

#include "viewer/work/budget_view.hpp"

#include <cstdint>
#include <string>
#include <vector>

namespace kvreplay::viewer {

/// What the budgets panel shows, as far as it is known. Heads are numbered row-major over [layers, n_kv].
class BudgetFigures {
 public:
  BudgetFigures() = default;
  BudgetFigures(const BudgetFigures&) = delete;
  BudgetFigures& operator=(const BudgetFigures&) = delete;
  virtual ~BudgetFigures() = default;

  virtual Index heads() const = 0;
  /// Null where the method is unknown or has no budgets yet.
  virtual const BudgetShare* find(const std::string& method) const = 0;
  /// L(0..l) of a head, in the importance's unit or, normalised, as a share of its layer's; empty while it is
  /// unknown.
  virtual const std::vector<double>& loss(Index head) = 0;
  /// The share that `lu` keeps of a head's tokens at sigma 0.01 .. 0.99; empty while it is unknown.
  virtual std::vector<double> kept(Index head) const = 0;

  const std::string& error() const { return error_; }
  const std::vector<std::string>& notes() const { return notes_; }
  /// Heads that are still to come.
  Index missing() const { return missing_; }
  bool pending() const { return pending_; }
  /// Another number whenever loss() of any head is another.
  std::uint64_t version() const { return version_; }

 protected:
  std::string error_;
  std::vector<std::string> notes_;
  Index missing_ = 0;
  bool pending_ = false;
  std::uint64_t version_ = 0;
};

}  // namespace kvreplay::viewer
