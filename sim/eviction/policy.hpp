#pragma once

#include "data/dtype.hpp"
#include "sim/eviction/policy_facts.hpp"
#include "sim/kept_set.hpp"
#include "sim/positions.hpp"
#include "sim/tokens/expected_attention.hpp"
#include "sim/tokens/token_metrics.hpp"

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

// Ranking and kept sets of policies. Definitions: sim/eviction/POLICIES.md.

namespace kvreplay {

/// Centred filter over neighbouring positions, stride 1. Beyond the ends, max ignores positions and avg
/// counts 0.
struct Pooling {
  enum class Kind { none, max, avg };
  Kind kind = Kind::none;
  Index width = 1;  ///< odd
  bool operator==(const Pooling&) const = default;
};

/// Settings that replace those of a base; unset ones keep the base's.
struct PolicyOverrides {
  std::optional<Positions> window, sinks, recent;
  std::optional<Pooling> pool;
  std::optional<SearchBy> by;
  std::optional<Index> n_sink, n_future;  ///< of expected_attention, as epsilon
  std::optional<double> epsilon;
  std::optional<Index> page;
  std::optional<PageScore> page_by;
  std::optional<PageHeads> page_heads;
  std::optional<ChunkBy> chunk;
  std::optional<Index> r, dense;  ///< of policies that read less
  std::optional<double> threshold;
  std::optional<Index> seed;  ///< of random, as is `heads`: one draw for each head or for all of a layer
  std::optional<PageHeads> heads;
  bool operator==(const PolicyOverrides&) const = default;
  /// These settings, and where they are unset those of `others`.
  PolicyOverrides before(const PolicyOverrides& others) const;
};

/// BASE[+SCORE], or score:SCORE; the score is a token metric or the name of a user's score. exchange also
/// takes +BASE: it then starts from that base's kept set, and without one from the kept set of a greedy
/// search with the same objective.
struct Policy {
  std::string name;
  EvictionBase base = EvictionBase::h2o;
  std::optional<TokenMetric> metric;  ///< of +SCORE
  std::optional<std::size_t> given;   ///< of +SCORE: number of the user's score
  std::optional<EvictionBase> start;  ///< of exchange+BASE
  PolicyOverrides own = {};           ///< this policy's, before those of all policies
  bool operator==(const Policy&) const = default;
};
/// BASE+SCORE, or BASE:SCORE where the base has no score of its own; BASE without a score.
std::string policy_name(std::string_view base, std::string_view score);
/// True if the policy finds its kept set by search alone: nothing is ranked.
bool only_searches(const Policy& policy);
/// True if the policy of this name ranks by the decoding steps, which no method can know, or reads everything
/// to make its choice.
bool knows_the_future(std::string_view policy);
/// True if the policy of this name keeps the whole prompt while its rows read less.
bool evicts_nothing(std::string_view policy);

/// Policy with all settings resolved, for a prompt of l tokens and a budget.
struct EvictionRule {
  Policy policy;
  /// Score that ranks the tokens; neither metric nor given: position, where later is larger.
  std::optional<TokenMetric> metric;
  std::optional<std::size_t> given;
  Index window = 1;  ///< rows whose scores count: the last `window` queries
  Pooling pool;      ///< of all but the last `pool_window` positions
  Index pool_window = 0;
  Index sinks = 0;   ///< pinned: the first `sinks` positions
  Index recent = 0;  ///< pinned: the last `recent` positions
  Index page = 1;    ///< number of neighbouring tokens of a cache that are kept or evicted together
  PageScore page_by = PageScore::mean;
  /// In place of pages: ends (exclusive) of the pieces of the prompt's text, ascending, the last at l.
  std::vector<Index> chunk_ends = {};
  /// If set, all tokens with at least this score stay, besides the pinned ones, whatever the budget.
  std::optional<double> threshold;
  Index block = 0;  ///< tokens in a block of the prompt, which is ranked again after each; 0: once
  bool per_visible_row = false;  ///< scores divided by the number of window rows from the token on
  bool shared_by_layer = false;  ///< one ranking for all KV heads: the mean over the layer's query heads
  std::optional<Index> seed;     ///< if set, tokens rank by lot_of()
  bool one_draw_a_layer = false;
  bool two_stages = false;       ///< half of the budget goes by score, the rest by score times weight
  bool pins_in_first = false;    ///< the first half counts the pinned tokens
  Index least_in_first = 0;      ///< lower bound of the first half
  ExpectedAttention expected;    ///< the form of expected_attention
  std::optional<SearchBy> by;    ///< objective of a search
  std::optional<ReadBy> reads;   ///< evicts nothing: each row chooses by this what it reads
  std::optional<Index> r;        ///< channels read for the choice; unset: a quarter of them
  Index dense = 0;               ///< the first layers, in which rows read everything
  bool reads_by_logits = false;  ///< sums logits, not weights, over the query heads

  /// True if the search swaps kept and evicted tokens.
  bool exchanges() const { return by && !kBases[policy.base].greedy; }
  /// Greedy search that yields this rule's kept set, or the start of its exchange.
  std::optional<SearchBy> greedy_by() const;
};

/// Window rows of policies that define no window of their own.
inline constexpr Index kUsualWindow = 32;

/// Resolves a policy for a cache of l tokens. `hidden`: number of earlier prompt positions that a sliding
/// window hides. The first positions that a policy pins are the prompt's, so hidden ones are not pinned.
EvictionRule rule_of(const Policy& policy, Semantics semantics, const PolicyOverrides& of_all, Index l,
                     Index budget, bool has_wo, Index hidden = 0);

/// Random number of a token, uniform in [0, 1), from the rule's seed, the layer, the KV head (unless one draw
/// serves the layer), the number of positions seen when it is drawn, and the token's own position. Equal on
/// every machine and for any number of threads.
double lot_of(const EvictionRule& rule, Index layer, Index kv_head, Index seen, Index position);

/// Number of l tokens that are pinned with `sinks` first and `recent` last tokens: whole pages, and the last
/// page if it is not full. For pages of one token: sinks + recent.
Index pinned_tokens(Index sinks, Index recent, Index page, Index l);

/// Number of l tokens that a policy keeps within a budget, or a row reads where nothing is evicted: whole
/// pages.
Index tokens_within(const Policy& policy, Index budget, Index l);

/// Number of l tokens that whole pages keep within a budget: the last page, which may be partial, and full
/// ones.
Index tokens_of_pages(Index budget, Index page, Index l);

/// Number of l tokens that a compression ratio sigma in (0, 1) keeps: round((1 - sigma) l), in kvpress
/// int(l (1 - sigma)) in floating point, since 0.5.5 at least 1.
Index kept_tokens(double sigma, Index l, Semantics semantics);

/// Scores after the rule's pooling; `scores` has one value for each position of a cache, in order.
Vector<double> pooled(const Vector<double>& scores, const Pooling& pool, Index window);

/// Scores of pages of `page` tokens, the last of which may have fewer.
Vector<double> page_scores(const Vector<double>& scores, Index page, PageScore by);

/// Ends of the lines or sentences of a prompt, for EvictionRule::chunk_ends, from the texts of its tokens, at
/// least one. A line ends behind a token with a line break. A sentence ends there too, and behind a token
/// that ends in '.', '!' or '?', quotes and brackets aside, where the next token begins with a space.
std::vector<Index> chunk_ends(std::span<const std::string> texts, ChunkBy by);

/// The kept set of a cache: pinned tokens (sinks first, then the most recent), then the largest scores, ties
/// to the lower position. With a threshold, all tokens that reach it are kept, without a budget. Pages are
/// kept or evicted whole; a page that does not fit into the rest of the budget is evicted. Pieces of text go
/// in the order of their worth; of a piece that the budget does not hold whole, the first tokens stay.
/// `scores` are those that rule_scores() ranks by, in order of position; they must not be NaN. `weights` are
/// second_weights() of a rule with two stages: half of the budget goes by score, and of the other tokens
/// those of largest (score + kCriticalEpsilon) weight are kept.
KeptSet keep_by(const EvictionRule& rule, Vector<double> scores, Index budget,
                const Vector<double>& weights = {});

/// Number of tokens that share the score of the kept token with the lowest score, where one of them is not
/// kept: the choice among them is arbitrary. 0 where the cut runs between two scores. Scores are pooled, and
/// rounded to `numbers`, first. Pinned tokens do not count. For rules that rank token by token, once, in one
/// stage.
Index tied_at_cut(const EvictionRule& rule, const Vector<double>& scores, const KeptSet& kept, Dtype numbers);

/// Term that CriticalKV's code and kvpress add to mean attention before they multiply it.
inline constexpr double kCriticalEpsilon = 1e-4;

}  // namespace kvreplay
