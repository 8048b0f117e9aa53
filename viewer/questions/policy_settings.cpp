#include "viewer/questions/policy_settings.hpp"

namespace kvreplay::viewer {

EvictionOptions options_of(const PolicySettings& settings) {
  EvictionOptions options;
  options.policies.clear();
  options.phases.clear();
  options.budgets = {settings.sigma_budget ? Budget{std::nullopt, settings.sigma}
                                           : Budget{settings.budget, 0}};
  options.semantics = {settings.semantics};
  options.window = settings.window;
  options.sinks = settings.sinks;
  options.recent = settings.recent;
  options.pool = settings.pool;
  return options;
}

double KeptBudget::ratio(Index l) const {
  if (sigma_budget || l < 1) return sigma;
  return std::clamp(1 - static_cast<double>(budget) / static_cast<double>(l), 0.001, 0.999);
}

BoundOptions bound(KeptBudget& budget) {
  static constexpr OptionFacts sigma_budget{.name = "sigma-budget"};
  return {bind_option(sigma_budget, budget.sigma_budget), bind_option(evict_option::budget, budget.budget),
          bind_option(evict_option::sigma, budget.sigma)};
}

BoundOptions bound(PolicySettings& settings) {
  using namespace evict_option;
  static constexpr OptionFacts linked{.name = "linked"};
  BoundOptions options = bound(static_cast<KeptBudget&>(settings));
  for (const BoundOption& one :
       {bind_option(semantics, settings.semantics), bind_option(linked, settings.linked),
        bind_option(window, settings.window), bind_option(sinks, settings.sinks),
        bind_option(recent, settings.recent), bind_option(pool, settings.pool)})
    options.push_back(one);
  return options;
}

}  // namespace kvreplay::viewer
