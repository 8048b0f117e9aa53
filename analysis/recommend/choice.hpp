#pragma once

#include "analysis/engine/engine.hpp"
#include "analysis/recommend/levers.hpp"

#include <cstddef>
#include <optional>
#include <span>
#include <string>
#include <vector>

// Choice of a lever for each head.

namespace kvreplay::recommend {

/// Techniques that a choice may use: evict, store in fewer bits, or both.
enum class Use { both, tokens, bits };
/// Granularity of a choice: for each layer and head separately, or one choice everywhere.
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

/// The objective of a choice: the mean cost over prompts, or that of the worst prompt.
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

/// Bytes and costs of all configurations over some prompts: [levers][layers x n_kv].
struct Means {
  By by = By::mean;
  std::vector<std::size_t> prompts;  ///< indices of prompts
  std::optional<Index> context;      ///< context length for bytes; unset: the prompts' own lengths
  Matrix<double> bytes, asked;
  Matrix<double> nats;  ///< per head; for By::worst, on the prompt with the largest cost
};
/// The means over all prompts except those left out.
Means means_of(const MeasuredLevers& measured, By by, std::optional<Index> context = {},
               std::span<const std::size_t> left_out = {});

/// A budget between two measured ones, of one policy and format, for all heads.
struct Between {
  std::size_t more = 0;  ///< the configuration with the larger budget
  Budget keeps;
  bool operator==(const Between&) const = default;
};

struct Chosen {
  std::vector<std::size_t> levers = {};  ///< indices into MeasuredLevers::levers, [layers x n_kv]
  double bytes = 0, nats = 0;
  double bound = 0;                     ///< lower bound on the cost of every permitted choice
  std::optional<Between> between = {};  ///< set: `levers` have the smaller budget
};
/// The cheapest choice within the bytes; nothing if every permitted choice takes more. The heads of a layer
/// share a policy and a format, and a budget if the policy chooses for the whole layer. A uniform choice may
/// have a budget between two measured ones, to use up the bytes.
std::optional<Chosen> choose(const MeasuredLevers& measured, const Means& means, const Wish& wish);
/// The configuration with the fewest bytes; nothing if the engine can run none.
std::optional<std::size_t> smallest(const MeasuredLevers& measured, const Means& means, Engine engine);

/// Bytes and nats of a choice on a prompt. Between two measured budgets, bytes are counted, and log nats are
/// linear in the log of the budget. If nats are 0 at one end, nats are linear in the budget.
CountedBytes bytes_on(const MeasuredLevers& measured, const Chosen& chosen, const MeasuredPrompt& prompt);
double nats_on(const MeasuredLevers& measured, const Chosen& chosen, const MeasuredPrompt& prompt);

Recipe recipe_of(const MeasuredLevers& measured, const Chosen& chosen);
/// The engine's command-line options for a recipe's caches, in one line. For `any`: the engines that run the
/// recipe.
std::string engine_flags(const MeasuredLevers& measured, Engine engine, const Recipe& recipe);

}  // namespace kvreplay::recommend

namespace kvreplay {
template <>
struct OptionValue<recommend::By> : NamedValue<recommend::kBy, Listed::one_of> {};
}  // namespace kvreplay
