#pragma once

#include "viewer/panels/budgets/budget_figures.hpp"
#include "viewer/panels/panel.hpp"
#include "viewer/work/budget_results.hpp"

#include <memory>
#include <string>
#include <vector>

namespace kvreplay::viewer {

/// The budgets that the selected run's result folder holds, for a run without its dump. Drawing thread only.
class BudgetResultSource final : public BudgetFigures {
 public:
  /// Asks for the tables and takes what is there. `order` and `sigma` are brought to some that the folder
  /// has.
  void look(PanelContext& context, std::string& order, std::string& sigma);

  std::vector<std::string> orders() const;
  /// Of an order, as the table has them.
  std::vector<std::string> sigmas(const std::string& order) const;
  std::vector<std::string> methods() const;
  bool normalised() const { return results_ != nullptr && results_->normalised; }

  Index heads() const override { return heads_; }
  const BudgetShare* find(const std::string& method) const override;
  const std::vector<double>& loss(Index head) override;
  std::vector<double> kept(Index head) const override;

 private:
  std::shared_ptr<const BudgetResults> results_;
  const BudgetResults::Division* division_ = nullptr;  // within results_
  std::shared_ptr<const BudgetResultCurves> curves_;
  Key curves_key_;
  Index heads_ = 0;
};

}  // namespace kvreplay::viewer
