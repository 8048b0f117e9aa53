#pragma once

#include "analysis/engine/engine.hpp"
#include "analysis/recommend/levers.hpp"

#include <cstddef>
#include <optional>
#include <span>
#include <string>
#include <vector>

// Which lever each head takes.

namespace kvreplay::recommend {

/// What may be done to the cache: evict, store in fewer bits, or both.
enum class Use { both, tokens, bits };
/// Where: in each layer and head what suits it, or the same everywhere.
enum class Where { each, everywhere };

struct UseFacts {
  Use id;
  std::string_view name, word;
};
inline constexpr auto kUses = facts_table<UseFacts>({
    {Use::both, "tokens and bits", "both"},
    {Use::tokens, "tokens alone", "tokens"},
    {Use::bits, "bits alone", "bits"},
});

struct Wish {
  double bytes = 0;  ///< the share of the whole prompt's in 16 bits
  Use use = Use::both;
  Where where = Where::each;
  Engine engine = Engine::any;
};

/// Means over prompts: [levers][layers x n_kv].
struct Means {
  Matrix<double> bytes, nats;
};
/// Of all prompts but those left out, by their numbers.
Means means_of(const MeasuredLevers& measured, std::span<const std::size_t> left_out = {});

struct Chosen {
  std::vector<std::size_t> levers;  ///< numbers of MeasuredLevers::levers, [layers x n_kv]
  double bytes = 0, nats = 0;
  double bound = 0;  ///< nothing that was allowed costs less
};
/// What costs least within the bytes; nothing where all that is allowed takes more. The heads of a layer
/// share a policy and a format, and a budget too where the policy chooses for all heads of a layer.
std::optional<Chosen> choose(const MeasuredLevers& measured, const Means& means, const Wish& wish);

Recipe recipe_of(const MeasuredLevers& measured, const Chosen& chosen);
/// What asks an engine for a recipe's caches: options of its command line, one line; of `any` the engines that
/// run the recipe.
std::string engine_flags(const MeasuredLevers& measured, Engine engine, const Recipe& recipe);

}  // namespace kvreplay::recommend
