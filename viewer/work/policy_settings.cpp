#include "viewer/work/policy_settings.hpp"

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

BoundOptions bound(PolicySettings& settings) {
  using namespace evict_option;
  static constexpr OptionFacts sigma_budget{.name = "sigma-budget"};
  return {bind_option(semantics, settings.semantics), bind_option(sigma_budget, settings.sigma_budget),
          bind_option(budget, settings.budget),       bind_option(sigma, settings.sigma),
          bind_option(window, settings.window),       bind_option(sinks, settings.sinks),
          bind_option(recent, settings.recent),       bind_option(pool, settings.pool)};
}

}  // namespace kvreplay::viewer
