#pragma once

#include "analysis/options/option.hpp"
#include "analysis/recommend/choice.hpp"
#include "analysis/results/over_dumps.hpp"
#include "analysis/results/paired.hpp"

#include <cstddef>
#include <optional>
#include <string>
#include <vector>

// Recommendation of a recipe for a model within a number of bytes, and its certainty.

namespace kvreplay::recommend {

/// A number of bytes: a share of those that a cache takes in 16 bits, or an absolute number.
struct Memory {
  double share = 0;  ///< 0: `bytes`
  double bytes = 0;
  std::string text;  ///< as it was asked for
};

struct RecommendOptions {
  std::vector<Memory> bytes;
  std::optional<Index> context;  ///< tokens that bytes are for
  Index batch = 1;
  Engine engine = Engine::any;
  By by = By::mean;
  std::vector<std::string> without;  ///< prompts that are not looked at
};

namespace recommend_option {
inline constexpr OptionFacts bytes{"bytes", "LIST",
                                   "Size of the cache (required): 20% or 0.2 of its bytes in 16 bits; or "
                                   "1.5GiB, which needs context"},
    context{"context", "N", "Count bytes for sequences of N tokens, not for the measured prompts", "", 1},
    batch{"batch", "N", "Sequences at a time", "", 1},
    engine{"for", "ENGINE", "Engine that runs the setting; formats and policies that it lacks are left out"},
    by{"by", "NAME", "Statistic over prompts that is minimised"},
    without{"without", "LIST", "Prompts that the choice does not use, to test it on them"};
}  // namespace recommend_option

/// One way to spend the bytes.
struct Candidate {
  Use use = Use::both;
  Where where = Where::each;
  Chosen chosen;  ///< on all prompts
  /// The cost on each prompt of the choice made on the other prompts. Empty if there is only one prompt.
  std::vector<double> held_out = {};
  OverDumps nats = {};                        ///< over held_out; of a single prompt, its own cost
  std::optional<std::size_t> worst = {};      ///< the prompt with the largest held_out cost
  std::vector<double> bytes_of_prompts = {};  ///< shares of each prompt that `chosen` takes
  std::vector<double> asked_of_prompts = {};  ///< without the rounding up of token counts

  /// The objective by which candidates are sorted.
  double cost(By by) const { return by == By::worst && worst ? held_out[*worst] : nats.center(); }
};

/// The measured configuration with the fewest bytes.
struct Smallest {
  std::string text;
  double share = 0, bytes = 0;  ///< bytes of one prompt, or of all sequences of a context
  std::string to_type;          ///< the argument for --bytes
};

/// The recommendation within one number of bytes.
struct Recommendation {
  Memory memory;
  double share = 0;
  std::vector<Candidate> candidates;  ///< the cheapest first; empty where nothing is as small
  std::optional<Smallest> smallest;   ///< set if nothing fits, unless the engine can run none
  /// The first over the second, within each prompt; nothing without one. `p` is adjusted by Holm over all
  /// pairs of candidates.
  std::optional<Paired> against_second;
  std::optional<std::ptrdiff_t> prompts_needed;  ///< to tell them apart, where that is not sure
  /// Index of the recommended candidate: the simplest that does not differ significantly from the cheapest.
  /// One setting for all heads is simpler than a choice for each, and one technique than two. The cheapest
  /// below kFewestPrompts, where nothing differs significantly.
  std::size_t taken = 0;

  bool told_apart() const { return against_second && against_second->p < kToldApart; }
  const Candidate& winner() const { return candidates[taken]; }
};

/// The cheapest candidate among a way and its special cases. A choice that coincides with a special case is
/// listed only once. Null if there is no candidate.
const Candidate* candidate_of(const Recommendation& of, Use use, Where where);
/// Shares of the bytes that charts show.
inline constexpr double kShownShares[] = {0.5, 0.4, 0.3, 0.2, 0.15, 0.1, 0.05};

/// A case over all prompts.
struct CaseOver {
  std::string text;
  OverDumps bytes, nats, output_error, kl, right;
};

struct Recommended {
  Engine engine = Engine::any;
  By by = By::mean;
  std::optional<Index> context;
  Index batch = 1;
  std::vector<Recommendation> recommendations;
  /// Cases that no other case beats in both bytes and nats; the most bytes first. They are levers applied to
  /// all heads alike, or methods that recipes do not have.
  std::vector<CaseOver> front;
  std::vector<CaseOver> run;  ///< recipes that were run, all heads at once
  /// The measured KL over the predicted one, of levers and recipes whose KL was measured.
  OverDumps kl_over_predicted;
  std::string centering;  ///< the loss with centered keys in a format of the engine; empty: no cure
  std::size_t kl_cases = 0;
};

/// Throws OptionError for shares beyond 1, bytes without a context, and prompts that are not there.
Recommended recommend(MeasuredLevers& measured, const RecommendOptions& options);

/// A size as an argument for --bytes: "5.31MiB". `round` rounds to thousandths of that unit.
std::string bytes_text(double bytes, double (*round)(double));
/// "tokens and bits, each head its own".
std::string way_text(Use use, Where where);
/// "k8v4 in 12 layers, 4 in 18; h2o, 8 % to 100 % of a head's tokens kept, 40 % on average".
std::string chosen_text(const MeasuredLevers& measured, const Candidate& candidate);
std::string plain_text(const MeasuredLevers& measured, const Recommended& found);
Json json_of(const MeasuredLevers& measured, const Recommended& found);
/// "0.34 [0.24, 0.46]": the ratio of the first candidate's cost to the second's; empty without a second.
std::string over_second_text(const Recommendation& of);
/// "recommended" if the first candidate differs significantly from the second, else the objective that it is
/// lowest in.
std::string_view verdict(const Recommended& found, const Recommendation& of);
/// Its name in files: "both-each", "tokens-everywhere".
std::string way_of(Use use, Where where);
/// The recipe of a candidate, with why.
Json recipe_json(const MeasuredLevers& measured, const Recommended& found, const Recommendation& of,
                 const Candidate& candidate);

// Limits on the loss of the worst prompt, for continuous integration.

struct GateOptions {
  std::string check;                 ///< the measured case to judge; empty: the recommended setting
  std::optional<double> fail_above;  ///< nats, or output error without gradients
  std::optional<double> fail_flips;  ///< share of decoding steps whose likeliest token changes
  std::string junit;                 ///< file to write

  bool is_set() const { return fail_above || fail_flips; }
};

namespace recommend_option {
inline constexpr OptionFacts check{"check", "CASE",
                                   "Judge this measured case and choose nothing: a format as q4_0+hadamard, "
                                   "snapkv~4@0.8 as in evictions.csv, or a recipe's name"},
    fail_above{"fail-above", "NATS",
               "Exit with 1 if the worst prompt loses more: of the case, or of the setting that is chosen"},
    fail_flips{"fail-flips", "SHARE",
               "Exit with 1 if on any prompt more of the decoding steps change their likeliest token, of a "
               "case that kvvalidate.py measured"},
    junit{"junit", "FILE", "Write the judgement of every prompt as JUnit XML"};
}  // namespace recommend_option

/// The loss of one prompt.
struct GatedPrompt {
  std::string name;
  double loss = kNan;
  double flips = kNan;  ///< share of steps whose likeliest token changes; NaN if not measured
  std::string failure;  ///< empty: within the limits
};

struct Gate {
  std::string text;  ///< the case, or the setting that was chosen
  std::string unit;  ///< "nats, true KL"
  std::vector<GatedPrompt> prompts;

  bool passes() const;
};

/// Judges a measured case: by its KL where the model writes into the cache, else its KL where the cache is
/// stored, else its predicted nats, else its output error. One kind for all prompts. Throws OptionError for a
/// case that is not measured, and for flips of a case that was not validated.
Gate gate_of_case(const MeasuredLevers& measured, const GateOptions& options);
/// Judges the choice within one budget by its loss on prompts that did not choose it.
Gate gate_of_choice(const MeasuredLevers& measured, const Recommendation& of, const GateOptions& options);

/// One line: the worst prompt, the limit, and whether it is met.
std::string gate_text(const Gate& gate, const GateOptions& options);
Json gate_json(const Gate& gate);
/// A test suite per gate, a test case per prompt.
std::string junit_text(const std::vector<Gate>& gates);

}  // namespace kvreplay::recommend

namespace kvreplay {
template <>
struct OptionValue<recommend::Memory> {
  static std::string complaint(const OptionFacts& option, const std::string& word);
  static recommend::Memory parse(const OptionFacts& option, const std::string& word);
  static std::string text(const recommend::Memory& memory) { return memory.text; }
};
}  // namespace kvreplay
