#pragma once

#include "analysis/eviction/eviction_plan.hpp"
#include "sim/eviction/policy.hpp"

#include <nlohmann/json.hpp>

#include <optional>
#include <string>
#include <string_view>

namespace kvreplay::viewer {

/// What a user sets of a policy besides its name; unset: the policy's own. The words are those of `kvreplay
/// evict`.
struct PolicySettings {
  Semantics semantics = Semantics::paper;
  bool sigma_budget = true;  ///< `sigma` counts, else `budget`
  Index budget = 0;          ///< tokens kept a KV head
  double sigma = 0.8;        ///< compression ratio, between 0 and 1
  std::optional<Index> window, sinks, recent;
  std::optional<Pooling> pool;
  bool operator==(const PolicySettings&) const = default;
};

/// "max:7", "avg:5" or "none".
std::string text_of(const Pooling& pool);

/// The options of `evict` that they stand for; without policies and phases.
EvictionOptions options_of(const PolicySettings& settings);

/// For sessions. from_json takes absent and null values as their defaults and throws InputError, one line
/// that begins with `where`, for another type or an unknown word; ranges are the plan's matter.
nlohmann::json to_json(const PolicySettings& settings);
PolicySettings policy_settings(const nlohmann::json& json, const std::string& where);

/// Single values of a session's object, likewise.
class SettingsReader {
 public:
  SettingsReader(const nlohmann::json& json, std::string where);
  void read(const char* key, bool& value) const;
  void read(const char* key, double& value) const;
  void read(const char* key, Index& value) const;  ///< at least 0
  void read(const char* key, std::optional<Index>& value) const;
  void read(const char* key, std::string& value) const;
  void read(const char* key, std::vector<std::string>& values) const;
  std::string where(const char* key) const { return where_ + ": " + key; }

 private:
  /// The value, or null where there is none.
  const nlohmann::json* find(const char* key) const;

  const nlohmann::json& json_;
  std::string where_;
};

/// An InputError's line without the dashes of the command line's options: "budget: expected ..".
std::string without_dashes(std::string_view line);

}  // namespace kvreplay::viewer
