#include "analysis/budgets/head_orders.hpp"

#include "analysis/budgets/allocation.hpp"
#include "analysis/budgets/optimal.hpp"
#include "analysis/budgets/profile.hpp"

namespace kvreplay {
namespace {

Budgets budgets_of(const BudgetPlan& plan, const BudgetCase& which, const BudgetFrame& frame,
                   const LossCurves& curves, const HullGreedy& greedy, std::span<const double> scores) {
  switch (which.method) {
    case Method::uniform:
      return uniform(frame);
    case Method::pyramid: {
      PyramidOptions options{.semantics = plan.semantics};
      if (plan.semantics == Semantics::kvpress) options.window = 64;  // its SnapKV's
      return pyramid(frame, options);
    }
    case Method::ada:
      // The authors' README has alpha 0.5; what leads every order stands for their pinned window.
      if (plan.semantics == Semantics::official)
        return ada(frame, scores, {plan.semantics, 0.5, plan.pinned});
      return ada(frame, scores, {.semantics = plan.semantics});
    case Method::lu:
      return greedy.budgets(frame.total);
    case Method::optimal:
      return optimal(frame, curves, greedy);
    case Method::profile:
      return plan.semantics == Semantics::kvpress
                 ? kvpress_profile_budgets(*plan.profile, which.sigma, frame.l)
                 : profile_budgets(*plan.profile, frame);
  }
  return {};
}

}  // namespace

Allocation allocate(const BudgetPlan& plan, const BudgetCase& which, const BudgetFrame& frame,
                    const LossCurves& curves, const HullGreedy& greedy, std::span<const double> scores) {
  Allocation result{budgets_of(plan, which, frame, curves, greedy, scores), {}};
  for (Index head = 0; head < curves.all_heads(); ++head)
    result.loss.push_back(curves.loss(head)[static_cast<std::size_t>(result.budgets[head])]);
  return result;
}

}  // namespace kvreplay
