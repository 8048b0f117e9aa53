#include "analysis/budgets/allocation.hpp"

#include "analysis/budgets/optimal.hpp"

#include <stdexcept>

namespace kvreplay {
namespace detail {

Budgets share_uniform(const AllocationInput& input) { return uniform(input.frame); }

Budgets share_pyramid(const AllocationInput& input) {
  PyramidOptions options{.semantics = input.semantics};
  if (input.semantics == Semantics::kvpress) options.window = 64;  // its SnapKV's
  return pyramid(input.frame, options);
}

Budgets share_ada(const AllocationInput& input) {
  // The authors' README has alpha 0.5; what leads every order stands for their pinned window.
  if (input.semantics == Semantics::official)
    return ada(input.frame, input.scores, {input.semantics, 0.5, input.pinned});
  return ada(input.frame, input.scores, {.semantics = input.semantics});
}

Budgets share_lu(const AllocationInput& input) { return input.greedy.budgets(input.frame.total); }

Budgets share_optimal(const AllocationInput& input) {
  return optimal(input.frame, input.curves, input.greedy);
}

Budgets share_profile(const AllocationInput& input) {
  return input.semantics == Semantics::kvpress
             ? kvpress_profile_budgets(*input.profile, input.frame.sigma, input.frame.l)
             : profile_budgets(*input.profile, input.frame);
}

}  // namespace detail

Allocation allocate(BudgetMethod method, const AllocationInput& input) {
  const BudgetMethodFacts& facts = kBudgetMethods[method];
  const auto scores = static_cast<std::size_t>(input.frame.all_heads() * input.frame.l);
  if ((facts.needs_scores && input.scores.size() != scores) ||
      (facts.needs_profile && input.profile == nullptr))
    throw std::invalid_argument("allocate: " + std::string(facts.name) + " lacks what it needs");
  Allocation result{facts.share(input), {}};
  for (Index head = 0; head < input.curves.all_heads(); ++head)
    result.loss.push_back(input.curves.loss(head)[result.budgets[head]]);
  return result;
}

}  // namespace kvreplay
