#pragma once

#include "analysis/budgets/budget_plan.hpp"
#include "analysis/measure/measured_layer.hpp"
#include "analysis/results/schema.hpp"
#include "analysis/results/scoped_figures.hpp"
#include "analysis/run/stage.hpp"

#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace kvreplay {

/// Head budgets, second pass: what every allocation does to the outputs. budgets.csv, maps/.
class BudgetMeasureStage final : public Stage {
 public:
  /// `allocations` has one for each of plan.cases, over `layers`.
  BudgetMeasureStage(const Dump& dump, const BudgetPlan& plan, std::vector<Index> layers,
                     std::vector<Allocation> allocations, const Compute& compute);

  std::string_view name() const override { return "budget"; }

  std::size_t figures_per_head() const override;
  std::size_t figures_per_layer() const override { return losses_.per_layer(); }
  void begin_layer(Index layer) override;
  void head(const HeadGroup<float>& group, std::span<double> figures) override;
  void head(const HeadGroup<double>& group, std::span<double> figures) override;
  void end_layer(const ResultFolder& folder, Index layer, LayerFigures figures) override;
  void save_head(Index kv_head, ByteWriter& out) const override;
  void load_head(Index kv_head, ByteReader& in) override;
  Json write_tables(const ResultFolder& folder, const HeadFigures& figures) override;
  std::string report(const HeadFigures& figures) const override;

 private:
  template <class T>
  void compute(const HeadGroup<T>& group, std::span<double> figures);
  Index row_of(Index layer, Index kv_head) const;
  double total_loss(std::size_t which) const;
  std::size_t write_budgets(const ResultFolder& folder, const HeadFigures& figures) const;
  /// Every allocation as shares of its tokens, by the model's layers and heads: Attention Matching's form.
  void write_head_budgets(const ResultFolder& folder) const;
  void write_maps(const ResultFolder& folder, const HeadFigures& figures) const;
  std::string label(std::size_t which) const;
  std::optional<double> loss_of(const ScopedFigures& figures, std::size_t which, Scope scope,
                                BudgetFigure figure) const;

  const BudgetPlan& plan_;
  std::vector<Index> layers_;
  std::vector<Allocation> allocations_;
  LossColumns losses_;
  KeptLayer kept_;
  MeasuredLayer measured_;
};

}  // namespace kvreplay
