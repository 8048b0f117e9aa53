#pragma once

#include "analysis/eviction/eviction_options.hpp"
#include "data/error.hpp"
#include "sim/eviction/policy.hpp"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <optional>
#include <string>

namespace kvreplay::viewer {

/// Number of tokens that a KV head keeps.
struct KeptBudget {
  bool sigma_budget = true;  ///< `sigma` counts, else `budget`
  Index budget = 0;          ///< tokens kept a KV head
  double sigma = 0.8;        ///< compression ratio, between 0 and 1
  bool operator==(const KeptBudget&) const = default;

  /// Number of kept tokens of a prompt of length l.
  Index tokens(Index l, Semantics semantics) const {
    return sigma_budget ? kept_tokens(sigma, l, semantics) : std::min(budget, l);
  }
  /// Budget as a compression ratio, clamped to valid ratios.
  double ratio(Index l) const;
};
BoundOptions bound(KeptBudget& budget);

/// Settings of a policy that a user may override; unset: the policy's default.
struct PolicySettings : KeptBudget {
  Semantics semantics = Semantics::paper;
  bool linked = true;  ///< the budget is the queue's, and the window where the policy has none of its own
  std::optional<Index> window, sinks, recent;
  std::optional<Pooling> pool;
  bool operator==(const PolicySettings&) const = default;
};

/// The options of `evict` that they stand for; without policies and phases.
EvictionOptions options_of(const PolicySettings& settings);
BoundOptions bound(PolicySettings& settings);

/// Settings as a session keeps them. Reading takes absent and null values as their defaults and throws
/// InputError, one line that begins with `where`, for another type or an unknown word; ranges are the plan's
/// matter.
template <class Settings>
requires requires(Settings& settings) { bound(settings); }
nlohmann::json to_json(Settings settings) { return to_json(bound(settings)); }
template <class Settings>
Settings settings_from(const nlohmann::json& json, const std::string& where) {
  Settings settings;
  read_json(bound(settings), json, where);
  return settings;
}
/// Settings under a key that may be missing; the defaults where they cannot be read.
template <class Settings>
void read_settings(const nlohmann::json& json, const char* key, Settings& into) {
  if (!json.contains(key)) return;
  try {
    into = settings_from<Settings>(json[key], key);
  } catch (const InputError&) {
    into = {};
  }
}

}  // namespace kvreplay::viewer
