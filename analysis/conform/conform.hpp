#pragma once

#include "analysis/budgets/budget_options.hpp"
#include "analysis/conform/reading.hpp"
#include "analysis/eviction/cache_format.hpp"
#include "analysis/eviction/eviction_options.hpp"
#include "data/dump.hpp"
#include "sim/compute.hpp"

#include <functional>
#include <optional>
#include <string>
#include <vector>

// Comparison of the tokens that an implementation kept with those that a policy keeps. If they differ: where,
// at what cost, and under which reading of the policy they agree.

namespace kvreplay::conform {

struct ConformOptions {
  std::vector<std::string> kept;  ///< files, one a budget (analysis/conform/parts.hpp)
  std::string as;                 ///< the policy, or POLICY~DIVISION
  std::vector<Budget> budgets;
  Semantics semantics = Semantics::paper;
  std::string cache;         ///< folder of the cache's contents (analysis/conform/parts.hpp), with one budget
  std::string scores_found;  ///< .npy [layers, kv_heads, l]: the implementation's scores
  CacheFormatOptions stored;     ///< the expected format of the cache; none: exact numbers
  std::string head_budgets;      ///< .npy [layers, kv_heads]: tokens of every head, in place of a division
  std::optional<Dtype> numbers;  ///< dtype of the scores; unset: the dump's
  Index variants = 3;            ///< number of readings to report if something departs
  std::vector<NamedFile> scores;
  std::vector<Index> layers;
  std::function<void(Index done, Index total)> on_progress;
};

namespace conform_option {
inline constexpr OptionFacts kept{
    "kept", "FILES",
    "Kept set of the implementation, a file for each budget: .npy of booleans [layers, kv_heads, l] or of "
    "positions [layers, kv_heads, n], .npz with an array a layer or a head, or .json"},
    as{"as", "POLICY",
       "The expected policy: snapkv[window=32,pool=7], or with a division of the budget snapkv~ada; none: "
       "all "
       "of the prompt"},
    cache{"cache", "DIR",
          "Keys and values of the implementation's cache after the prompt, layer_XX/k.npy and v.npy "
          "[kv_heads, n, d]; "
          "without kept, the positions are found by them"},
    scores{"scores", "FILE",
           "Scores of the implementation, .npy [layers, kv_heads, l], higher is kept: checked apart from "
           "its choice"},
    head_budgets{"budgets", "FILE", "Expected number of tokens in every head, .npy [layers, kv_heads]"},
    numbers{"numbers", "NAME",
            "Number format of the scores, which decides ties: float32, float16 or bfloat16", "the dump's"},
    variants{"variants", "N", "Policy variants to list where the kept set departs; 0: none"};
}  // namespace conform_option

enum class Verdict { conforms, ties, differs, nothing_evicted, budget_not_held, same_result, cache_differs };

struct VerdictFacts {
  Verdict id;
  std::string_view name;
  bool good = false;
};
inline constexpr auto kVerdicts = facts_table<VerdictFacts>({
    {Verdict::conforms, "conforms", true},
    {Verdict::ties, "conforms but for ties", true},
    {Verdict::differs, "differs"},
    {Verdict::nothing_evicted, "nothing was evicted"},
    {Verdict::budget_not_held, "the budget is not held"},
    {Verdict::same_result, "another budget gave the same"},
    {Verdict::cache_differs, "the cache holds other numbers"},
});

/// A place in the caches.
struct TokenPlace {
  Index layer = 0, head = 0, position = 0;
  bool extra = false;         ///< true: kept but should be evicted; false: evicted but should be kept
  double score = 0, cut = 0;  ///< its score, and the nearest across the cut; nan where nothing ranks it
};

/// Change of the attention's outputs by a kept set, on the decoding steps; on the window if the dump has no
/// decoding steps.
struct ConformCost {
  std::string name;  ///< "as found", the policy's, "oracle"
  double output_error = 0;
  std::optional<double> layer_output_error, loss_step;  ///< the latter in nats
};

/// One explanation of the keys or values in the cache, and the heads that it is found in.
struct HeldFinding {
  std::string of;    ///< "keys", "values"
  std::string text;  ///< "as the model made them"
  bool as_meant = false;
  Index heads = 0;
  std::vector<Index> layers;
  double most = 0;  ///< the largest HeldAs::distance among them
};

/// A reading that was tried.
struct TriedReading {
  std::string text;      ///< "snapkv with pool = max:5"
  Index left = 0;        ///< tokens kept by only one of the two, among the tokens searched
  Index unequal = 0;     ///< of these: the score differs from the score across the cut
  Index apart = 0;       ///< of these: rounding cannot explain the difference
  Index elsewhere = 0;   ///< as apart, in heads that do not depart; counted where left is 0
  bool excuses = false;  ///< the reading uses coarser numbers, which make scores equal
};

/// Positions that the caches of some layers need not hold, because no later row sees them. Positions hidden
/// so are not compared.
struct HiddenPositions {
  Index positions = 0;  ///< count, from the prompt's first position on
  std::vector<Index> layers;
};

struct Conformance {
  std::string file, budget;
  Verdict verdict = Verdict::conforms;
  Index heads = 0;        ///< caches that were compared
  Index heads_apart = 0;  ///< of these: where something departs that no rounding explains
  Index heads_tied = 0;   ///< of these: where only what is equal was chosen otherwise
  Index tokens = 0;       ///< kept or not kept otherwise than the policy does, over all heads
  Index apart = 0;        ///< of these: not explained by rounding
  std::vector<Index> layers_apart;
  std::optional<TokenPlace> first;  ///< of these, else of those that tie
  Index meant_total = 0, found_total = 0;
  Index found_least = 0, found_most = 0, meant_least = 0, meant_most = 0;  ///< tokens of a head
  Index budgets_apart = 0;        ///< heads that keep more or fewer than they should
  bool all_kept = true;           ///< every head holds all compared positions, though some should not
  bool layers_hold = true;        ///< yet every layer keeps as many as it should
  std::vector<HeldFinding> held;  ///< of keys, then of values, the commonest first
  /// For the scores that an implementation ranked by: the lowest Spearman correlation of a head with the
  /// policy's scores, and the number of heads that keep a token ranked below an evicted one.
  std::optional<double> lowest_correlation;
  Index heads_off_scores = 0;
  Index heads_out_of_order =
      0;  ///< whose rows do not stand in the order of the prompt, which attention does not mind
  std::vector<ConformCost> costs;
  std::size_t tried = 0;               ///< readings
  Index searched = 0;                  ///< tokens kept by only one of the two, in the heads searched
  std::vector<TriedReading> readings;  ///< the variants that explain most, the best first
  std::optional<std::size_t> same_as;  ///< a case of another budget with the same kept sets
};

struct ConformResult {
  std::string policy, semantics, numbers;
  std::vector<HiddenPositions> hidden;
  std::vector<Conformance> cases;
  std::vector<OptionText> notes;
  bool ok() const;
};

/// Throws OptionError and InputError for input that cannot be compared.
ConformResult judge(const Dump& dump, const ConformOptions& options, const Compute& compute);

/// The verdict on one case, in one line.
std::string verdict_line(const ConformResult& result, const Conformance& one);
std::string plain_text(const ConformResult& result);
Json json_of(const ConformResult& result);

}  // namespace kvreplay::conform
