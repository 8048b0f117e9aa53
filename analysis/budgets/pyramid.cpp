#include "analysis/budgets/allocation.hpp"

#include <algorithm>
#include <cassert>
#include <cmath>

namespace kvreplay {
namespace {

/// Rounds half to even, as Python does.
Index round_even(double x) { return static_cast<Index>(std::nearbyint(x)); }

Budgets alike_in_layers(const BudgetFrame& frame, const std::vector<Index>& of_layer) {
  Budgets budgets;
  for (const Index budget : of_layer)
    budgets.insert(budgets.end(), static_cast<std::size_t>(frame.heads),
                   std::clamp<Index>(budget, 0, frame.l));
  return budgets;
}

Budgets official(const BudgetFrame& frame, const PyramidOptions& options) {
  const Index capacity = total_budget(frame.sigma, frame.l, 1);
  const Index window = std::min(options.window, capacity), mean = capacity - window;
  std::vector<Index> of_layer(frame.layers, capacity);
  if (frame.l < capacity || frame.l < 2 * mean || frame.layers == 1) return alike_in_layers(frame, of_layer);
  auto min = static_cast<Index>(std::floor(static_cast<double>(mean) / options.beta));
  Index max = 2 * mean - min;
  if (max >= frame.l - window) {
    max = frame.l - window;
    min = 2 * mean - max;
  }
  const auto step =
      static_cast<Index>(std::floor(static_cast<double>(max - min) / static_cast<double>(frame.layers - 1)));
  for (Index i = 0; i < frame.layers; ++i) of_layer[i] = max - i * step + window;
  return alike_in_layers(frame, of_layer);
}

Budgets kvpress(const BudgetFrame& frame, const PyramidOptions& options) {
  if (frame.sigma == 0) return Budgets(static_cast<std::size_t>(frame.all_heads()), frame.l);
  const double l = static_cast<double>(frame.l), window = static_cast<double>(options.window);
  // With that code's detour over l: it decides which way a half goes.
  const double capacity = window + l * (1 - frame.sigma), mean = capacity - window;
  double min = mean / options.beta, max = mean * 2 - min;
  if (max >= l - window) {
    max = l - window;
    min = mean * 2 - max;
  }
  std::vector<Index> of_layer(frame.layers, round_even(l * (1 - frame.sigma)));
  if (l >= max && max >= min && min >= window && frame.layers > 1) {
    const double step = (max - min) / static_cast<double>(frame.layers - 1);
    for (Index i = 0; i < frame.layers; ++i) of_layer[i] = round_even(max - static_cast<double>(i) * step);
  }
  return alike_in_layers(frame, of_layer);
}

}  // namespace

Budgets uniform(const BudgetFrame& frame) {
  const std::vector<double> shares(frame.all_heads(), frame.mean());
  return round_shares(shares, frame.total, frame.lower, frame.l);
}

Budgets pyramid(const BudgetFrame& frame, const PyramidOptions& options) {
  assert(options.beta >= 1);
  if (options.semantics == Semantics::official) return official(frame, options);
  if (options.semantics == Semantics::kvpress) return kvpress(frame, options);
  if (frame.layers == 1) return uniform(frame);

  const double mean = frame.mean();
  double min = mean / options.beta, max = 2 * mean - min;
  if (max > static_cast<double>(frame.l)) {
    max = static_cast<double>(frame.l);
    min = 2 * mean - max;
  }
  if (min < static_cast<double>(frame.lower)) {
    min = static_cast<double>(frame.lower);
    max = 2 * mean - min;
  }
  std::vector<double> shares;
  for (Index i = 0; i < frame.layers; ++i) {
    const double share = max - static_cast<double>(i) * (max - min) / static_cast<double>(frame.layers - 1);
    shares.insert(shares.end(), static_cast<std::size_t>(frame.heads), share);
  }
  return round_shares(shares, frame.total, frame.lower, frame.l);
}

}  // namespace kvreplay
