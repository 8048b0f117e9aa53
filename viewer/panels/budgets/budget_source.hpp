#pragma once

#include "viewer/panels/budgets/budget_figures.hpp"
#include "viewer/panels/panel.hpp"
#include "viewer/work/budget_view.hpp"

#include <memory>
#include <string>
#include <vector>

namespace kvreplay::viewer {

/// The selected run's loss curves and every method's budgets, as they come in. Drawing thread only.
class BudgetSource final : public BudgetFigures {
 public:
  /// Asks for what is missing and takes what is there. Where the settings cannot be followed error() says
  /// why, and what was known stays.
  void look(PanelContext& context, const BudgetSettings& settings);

  /// Whether budgets of an older order or total stand in.
  bool stale() const;

  Index heads() const override { return std::ssize(worths_); }

  const BudgetShare* find(const std::string& method) const override;
  const std::vector<double>& loss(Index head) override;
  std::vector<double> kept(Index head) const override;

 private:
  struct Method {
    std::string name;
    Answer<BudgetShare> share;
  };
  void ask_heads(PanelContext& context, Index selected);
  void ask_shares(PanelContext& context);

  Key run_key_, order_key_, curves_key_;
  BudgetSettings settings_;
  std::shared_ptr<const BudgetPlan> plan_;
  std::vector<std::shared_ptr<const HeadWorth>> worths_;  // [layers, n_kv]
  std::vector<std::vector<double>> losses_;               // [layers, n_kv], as far as they were looked at
  std::shared_ptr<const BudgetCurves> curves_;
  std::vector<Method> methods_;
};

}  // namespace kvreplay::viewer
