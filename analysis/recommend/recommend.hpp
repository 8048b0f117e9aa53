#pragma once

#include "analysis/options/option.hpp"
#include "analysis/recommend/choice.hpp"
#include "analysis/results/over_dumps.hpp"
#include "analysis/results/paired.hpp"

#include <cstddef>
#include <optional>
#include <string>
#include <vector>

// Which recipe for a model within so many bytes, and how sure that is.

namespace kvreplay::recommend {

/// How many bytes: a share of those that a cache takes in 16 bits, or as many as there are.
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
  std::vector<std::string> without;  ///< prompts that are not looked at
};

namespace recommend_option {
inline constexpr OptionFacts bytes{"bytes", "LIST",
                                   "What the cache may take: 20% or 0.2 of its bytes in 16 bits; or 1.5GiB, "
                                   "of the tokens of context"},
    context{"context", "N", "Tokens of a sequence, where bytes are no share", "", 1},
    batch{"batch", "N", "Sequences at a time", "", 1},
    engine{"for", "ENGINE", "What is to run it: what it cannot do is not recommended"},
    without{"without", "LIST", "Leave these prompts out, to see on them what was chosen without them"};
}  // namespace recommend_option

/// One way to spend the bytes.
struct Candidate {
  Use use = Use::both;
  Where where = Where::each;
  Chosen chosen;                 ///< on all prompts
  std::vector<double> held_out;  ///< of each prompt, what the choice of the others costs; empty of one prompt
  OverDumps nats;                ///< over held_out; of one prompt what was chosen there
};

/// What is recommended within one number of bytes.
struct Recommendation {
  Memory memory;
  double share = 0;
  std::vector<Candidate> candidates;  ///< the cheapest first; empty where nothing is as small
  /// The first over the second, within each prompt; nothing without one.
  std::optional<Paired> against_second;
  std::optional<std::ptrdiff_t> prompts_needed;  ///< to tell them apart, where that is not sure
};

/// The cheapest that does no more than a way does: where both levers come to what one of them does, they are
/// not listed again. Null without one.
const Candidate* candidate_of(const Recommendation& of, Use use, Where where);
/// What pictures show.
inline constexpr double kShownShares[] = {0.5, 0.4, 0.3, 0.2, 0.15, 0.1, 0.05};

/// A case over all prompts.
struct CaseOver {
  std::string text;
  OverDumps bytes, nats, output_error, kl, right;
};

struct Recommended {
  Engine engine = Engine::any;
  std::vector<Recommendation> recommendations;
  /// What was measured of all heads alike, or of what recipes do not have, and none beats in both bytes and
  /// nats; the most bytes first.
  std::vector<CaseOver> front;
  std::vector<CaseOver> run;  ///< recipes that were run, all heads at once
  /// Of levers and recipes whose true KL was measured: it over what was predicted.
  OverDumps kl_over_predicted;
  std::size_t kl_cases = 0;
};

/// Throws OptionError for shares beyond 1, bytes without a context, and prompts that are not there.
Recommended recommend(MeasuredLevers& measured, const RecommendOptions& options);

/// "tokens and bits, each head its own".
std::string way_text(Use use, Where where);
/// "k8v4 in 12 layers, 4 in 18; h2o, 8 % to 100 % of a head's tokens kept, 40 % on average".
std::string chosen_text(const MeasuredLevers& measured, const Candidate& candidate);
std::string plain_text(const MeasuredLevers& measured, const Recommended& found);
Json json_of(const MeasuredLevers& measured, const Recommended& found);
/// Its name in files: "both-each", "tokens-everywhere".
std::string way_of(Use use, Where where);
/// The recipe of a candidate, with why.
Json recipe_json(const MeasuredLevers& measured, const Recommended& found, const Recommendation& of,
                 const Candidate& candidate);

}  // namespace kvreplay::recommend

namespace kvreplay {
template <>
struct OptionValue<recommend::Memory> {
  static std::string complaint(const OptionFacts& option, const std::string& word);
  static recommend::Memory parse(const OptionFacts& option, const std::string& word);
  static std::string text(const recommend::Memory& memory) { return memory.text; }
};
}  // namespace kvreplay
