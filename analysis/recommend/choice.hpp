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

/// The cost that a choice makes small, over prompts.
enum class By { mean, worst };

struct ByFacts {
  By id;
  std::string_view name, lowest;
};
inline constexpr auto kBy = facts_table<ByFacts>({
    {By::mean, "mean", "lowest mean"},
    {By::worst, "worst", "lowest worst prompt"},
});

struct Wish {
  double bytes = 0;  ///< the share of the whole prompt's in 16 bits
  Use use = Use::both;
  Where where = Where::each;
  Engine engine = Engine::any;
};

/// What levers come to over some prompts: [levers][layers x n_kv].
struct Means {
  By by = By::mean;
  std::vector<std::size_t> prompts;  ///< by their numbers
  std::optional<Index> context;      ///< tokens that bytes are of; nothing: of the prompts
  Matrix<double> bytes, asked;
  Matrix<double> nats;  ///< of a head; by worst, on the prompt on which it costs most
};
/// Of all prompts but those left out.
Means means_of(const MeasuredLevers& measured, By by, std::optional<Index> context = {},
               std::span<const std::size_t> left_out = {});

/// A budget between two that were measured, of one policy and format: every head takes it.
struct Between {
  std::size_t more = 0;  ///< the lever of the larger budget
  double sigma = 0;
  bool operator==(const Between&) const = default;
};

struct Chosen {
  std::vector<std::size_t> levers = {};  ///< numbers of MeasuredLevers::levers, [layers x n_kv]
  double bytes = 0, nats = 0;
  double bound = 0;                     ///< nothing that was allowed costs less
  std::optional<Between> between = {};  ///< `levers` have the smaller budget
};
/// What costs least within the bytes; nothing where all that is allowed takes more. The heads of a layer
/// share a policy and a format, and a budget too where the policy chooses for all heads of a layer. The same
/// everywhere may have a budget between two measured ones, so that it fills the bytes.
std::optional<Chosen> choose(const MeasuredLevers& measured, const Means& means, const Wish& wish);
/// The lever that takes least; nothing where the engine can run none.
std::optional<std::size_t> smallest(const MeasuredLevers& measured, const Means& means, Engine engine);

/// What a choice comes to on a prompt. Between two measured budgets bytes are counted, and the logarithm of
/// nats is linear in that of the budget; where nats are 0 at one end, nats are linear.
CountedBytes bytes_on(const MeasuredLevers& measured, const Chosen& chosen, const MeasuredPrompt& prompt);
double nats_on(const MeasuredLevers& measured, const Chosen& chosen, const MeasuredPrompt& prompt);

Recipe recipe_of(const MeasuredLevers& measured, const Chosen& chosen);
/// What asks an engine for a recipe's caches: options of its command line, one line; of `any` the engines
/// that run the recipe.
std::string engine_flags(const MeasuredLevers& measured, Engine engine, const Recipe& recipe);

}  // namespace kvreplay::recommend

namespace kvreplay {
template <>
struct OptionValue<recommend::By> : NamedValue<recommend::kBy, Listed::one_of> {};
}  // namespace kvreplay
