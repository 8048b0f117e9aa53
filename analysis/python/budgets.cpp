#include "analysis/budgets/allocation.hpp"
#include "analysis/budgets/budget_options.hpp"
#include "analysis/python/arrays.hpp"
#include "analysis/python/calls.hpp"
#include "analysis/python/layer.hpp"
#include "data/error.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <limits>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace kvreplay::python {
namespace {

BoundOptions options_of(BudgetOptions& options) {
  using namespace budget_option;
  options.methods.clear();  // a call is asked for one
  options.sigmas.clear();
  options.floor = 0;  // the origin of the curves is unknown
  return those_of(bound(options), [](const OptionFacts* facts) {
    return facts == &method || facts == &sigma || facts == &keep || facts == &budget || facts == &semantics ||
           facts == &budget_option::floor;
  });
}
Keywords<BudgetOptions> g_budget_keywords(options_of);

LossCurves curves_of(const std::vector<double>& losses, Index heads, Index l) {
  LossCurves curves(heads, l);
  for (Index head = 0; head < heads; ++head) {
    const auto* const loss = losses.data() + head * (l + 1);
    for (Index b = 0; b < l; ++b)
      if (loss[b] < loss[b + 1])
        throw InputError("curves", "losses that never rise with the budget",
                         fmt::format("one that does at head {}, budget {}", head, b + 1));
    curves.set_losses(head, std::span(loss, extent(l + 1)));
  }
  return curves;
}

/// The total as it was asked for: in tokens, or as a share of all.
BudgetFrame frame_of(const BudgetOptions& options, std::optional<Index> total, bool shared, Index layers,
                     Index heads, Index l) {
  const Index all = layers * heads * l,
              lower = static_cast<Index>(*options.floor * static_cast<double>(l) + 0.5);
  if (!(*options.floor >= 0 && *options.floor <= 1))
    throw OptionError(budget_option::floor, "a share from 0 to 1", fmt::format("{}", *options.floor));
  if (total.has_value() == shared)
    throw InputError("total", "it, or keep, sigma or budget", shared ? "both" : "neither");
  if (!total) {
    require_one_budget(budget_option::keep, options.sigmas);
    const Budget& budget = options.sigmas.front();
    if (!budget.tokens) return budget_frame(layers, heads, l, budget.sigma, lower);
    total = *budget.tokens * layers * heads;
  }
  if (*total < 0 || *total > all)
    throw InputError("total", fmt::format("0 to {} tokens, those of all heads", all),
                     fmt::format("{}", *total));
  BudgetFrame frame{layers, heads, l, *total, 0, 1 - static_cast<double>(*total) / static_cast<double>(all)};
  frame.lower = std::min({lower, l, *total / (layers * heads)});
  return frame;
}

nb::tuple allocate_budgets(nb::handle curves, std::optional<Index> total, nb::handle scores, bool shared,
                           const nb::dict& keywords) {
  const BudgetOptions options = g_budget_keywords.read(keywords);
  require_one(budget_option::method, options.methods.size());
  const BudgetDivision& division = options.methods.front();
  std::vector<Index> shape = {-1, -1, -1};
  const std::vector<double> losses = numbers_of("curves", curves, shape);
  const Index layers = shape[0], heads = shape[1], l = shape[2] - 1;
  if (l < 1) throw InputError("curves", "losses of budgets 0 to l, [layers, n_kv, l + 1]", "one budget");
  const BudgetFrame frame = frame_of(options, total, shared, layers, heads, l);
  std::vector<double> ranked;
  if (kBudgetMethods[division.method].needs_scores) {
    if (scores.is_none())
      throw OptionError(
          option_text("{}: {} is unavailable: it needs scores, [layers, n_kv, l] in the curves' order",
                      budget_option::method, division.name));
    std::vector<Index> extents = {layers, heads, l};
    ranked = numbers_of("scores", scores, extents);
    for (Index head = 0; head < layers * heads; ++head)
      if (!std::is_sorted(ranked.rbegin() + head * l, ranked.rbegin() + (head + 1) * l))
        throw InputError("scores", "scores in the order's own order, never rising",
                         fmt::format("others at head {}", layers * heads - 1 - head));
  }
  Allocation found;
  {
    const nb::gil_scoped_release unlocked;
    const LossCurves all = curves_of(losses, layers * heads, l);
    const HullGreedy greedy(all, frame.lower);
    found = allocate(division, {frame, kBudgetSemantics[options.semantics].divides, 0, all, greedy, ranked});
  }
  const std::vector<std::size_t> extents = {extent(layers), extent(heads)};
  std::vector<std::int64_t> budgets(found.budgets.begin(), found.budgets.end());
  return nb::make_tuple(numpy_of(std::move(budgets), extents), numpy_of(std::move(found.loss), extents));
}

}  // namespace

void bind_budgets(nb::module_& module) {
  module.def("allocate", allocate_budgets, nb::arg("curves"), nb::arg("total").none(),
             nb::arg("scores").none(), nb::arg("shared"), nb::arg("options"),
             "(budgets [layers, n_kv], losses [layers, n_kv]).");
  module.def("budget_options", [] { return g_budget_keywords.described(); });
}

}  // namespace kvreplay::python
