#include "analysis/budgets/allocation.hpp"

#include "analysis/budgets/optimal.hpp"

#include <optional>
#include <stdexcept>

namespace kvreplay {
namespace {

Budgets shared_out(const BudgetDivision& division, const AllocationInput& input) {
  const BudgetMethod method = division.method;
  const auto& [frame, semantics, pinned, curves, usual, scores, profile] = input;
  std::optional<HullGreedy> lowered;  // of a total that cannot give every head its lower bound
  if (kBudgetMethods[method].is_oracle && frame.lower < usual.lower()) lowered.emplace(curves, frame.lower);
  const HullGreedy& greedy = lowered ? *lowered : usual;
  switch (method) {
    case BudgetMethod::uniform:
      return uniform(frame);
    case BudgetMethod::pyramid:
      return pyramid(frame, {.semantics = semantics,
                             .beta = division.beta.value_or(PyramidOptions{}.beta),
                             // kvpress' is that of its SnapKV.
                             .window = semantics == Semantics::kvpress ? 64 : PyramidOptions{}.window});
    case BudgetMethod::ada:
      // The authors' README has alpha 0.5; what leads every order stands for their pinned window.
      return ada(
          frame, scores,
          {.semantics = semantics,
           .alpha = division.alpha.value_or(semantics == Semantics::official ? 0.5 : AdaOptions{}.alpha),
           .window = semantics == Semantics::official ? pinned : AdaOptions{}.window});
    case BudgetMethod::lu:
      return greedy.budgets(frame.total);
    case BudgetMethod::lu_without_gap:
      return HullGreedy(by_importance(curves), greedy.lower()).budgets(frame.total);
    case BudgetMethod::optimal:
      return optimal(frame, curves, greedy);
    case BudgetMethod::profile:
      return semantics == Semantics::kvpress ? kvpress_profile_budgets(*profile, frame.sigma, frame.l)
                                             : profile_budgets(*profile, frame);
  }
  return {};
}

}  // namespace

BudgetDivision::BudgetDivision(BudgetMethod of) : method(of), name(name_of(of)) {}

Allocation allocate(const BudgetDivision& division, const AllocationInput& input) {
  const BudgetMethodFacts& facts = kBudgetMethods[division.method];
  const auto scores = static_cast<std::size_t>(input.frame.all_heads() * input.frame.l);
  if ((facts.needs_scores && input.scores.size() != scores) ||
      (facts.needs_profile && input.profile == nullptr))
    throw std::invalid_argument("allocate: " + std::string(facts.name) + " lacks what it needs");
  Allocation result{shared_out(division, input), {}};
  for (Index head = 0; head < input.curves.all_heads(); ++head)
    result.loss.push_back(input.curves.loss(head)[result.budgets[head]]);
  return result;
}

}  // namespace kvreplay
