#pragma once

#include "analysis/budgets/budget_plan.hpp"
#include "analysis/budgets/loss_curve.hpp"
#include "analysis/run/stage.hpp"

#include <memory>
#include <string>
#include <vector>

namespace kvreplay {

/// Head budgets, first pass over the dump: every head's order and what every token of it is worth, from which
/// the loss curves follow: curves/<order>.npy, budget_curves.npy. Its follow-up divides the budgets and
/// measures them.
class BudgetStage final : public Stage {
 public:
  /// `layers` are those of the run, which share one budget.
  BudgetStage(const Dump& dump, const BudgetOptions& options, const std::vector<Index>& layers,
              const Compute& compute);

  std::string_view name() const override { return "budget"; }
  std::vector<std::string> on_cpu() const override {
    std::vector<std::string> parts = {"rankings"};
    if (plan_.losses.any()) parts.emplace_back("predicted losses");
    return parts;
  }
  Json options() const override;
  std::vector<LeftOut> left_out() const override { return plan_.left_out; }
  std::vector<OptionText> notes() const override;

  std::size_t figures_per_head() const override;
  void head(const HeadGroup<float>& group, std::span<double> figures) override;
  void head(const HeadGroup<double>& group, std::span<double> figures) override;
  bool joins_layers() const override { return true; }
  Json write_tables(const ResultFolder& folder, const HeadFigures& figures) override;
  std::unique_ptr<Stage> follow_up(const HeadFigures& figures) const override;

 private:
  template <class T>
  void compute(const HeadGroup<T>& group, std::span<double> figures);
  /// The loss curves under one order; importance divided by its layer's sum where asked for.
  LossCurves curves(std::size_t order, const HeadFigures& figures) const;

  BudgetOptions options_;
  BudgetPlan plan_;
  std::vector<Index> layers_;
};

}  // namespace kvreplay
